"""The engine behind HTTP: FastAPI and uvicorn."""
