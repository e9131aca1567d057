"""Clients of a foretoken server, with and without asyncio: ``foretoken.client.Client`` and ``AsyncClient``.

They need httpx and pydantic (``pip install 'foretoken[serve]'``), and no PyTorch.
"""

from foretoken.client.asynchronous import AsyncClient
from foretoken.client.calls import ServerError, Writing
from foretoken.client.synchronous import Client

__all__ = ["AsyncClient", "Client", "ServerError", "Writing"]
