import httpx
import pytest

from support.served import make_store, save_adapters, serving


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    """The folder of a tiny model and, by name, those of adapters of four kinds."""
    return save_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def server(adapters):
    """A server with all of them, and a client of it."""
    with serving(make_store(*adapters)) as (address, service), httpx.Client(base_url=address, timeout=60) as client:
        client.service = service
        yield client
