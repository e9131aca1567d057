"""Time and memory beside transformers and peft: ``python -m benchmarks NAME``, ``python -m benchmarks.STUDY``."""
