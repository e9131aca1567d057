"""Clients that are slow, broken or hostile: each is answered or cut off, and the others do not notice."""

import asyncio
import io
import json
import socket
import stat
import time
import zipfile
from contextlib import asynccontextmanager, closing
from urllib.parse import urlsplit

import httpx
import pytest

from foretoken.serving.engine import Limits
from foretoken.serving.http.bodies import BODIES
from foretoken.serving.http.guard import Guard
from foretoken.serving.http.logs import json_logs
from foretoken.serving.http.metrics import Metrics
from foretoken.serving.http.settings import ServerSettings

from support.served import HeldBank, make_store, serving

KEYS = {"api_key": "open", "admin_key": "sesame"}


@pytest.fixture(scope="module")
def hostile(adapters):
    """A server that is quick to lose patience, with a bank that can be held, and the client of an honest user."""
    settings = ServerSettings(sources={}, client_seconds=3, body_bytes=10**6, adapter_bytes=10**6, **KEYS)
    store = make_store(*adapters, bank=HeldBank)
    headers = {"authorization": "Bearer open"}
    limits = Limits(rows_waiting=50)
    with (
        serving(store, settings=settings, limits=limits) as (address, service),
        httpx.Client(base_url=address, headers=headers, timeout=60) as client,
    ):
        client.service = service
        yield client


@pytest.fixture
def bank(hostile):
    found = hostile.service.engine.store.bank
    found.bad = None
    found.go.set()
    yield found
    found.bad = None
    found.go.set()


def is_fine(client):
    answer = client.post("/classify", json={"model": "spam", "input": "word1"})
    assert answer.status_code == 200, answer.text


def connect(client):
    address = urlsplit(str(client.base_url))
    found = socket.create_connection((address.hostname, address.port), timeout=60)
    return closing(found)


def read_all(connection):
    """Return everything until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


HEAD = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer open\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing", marks=pytest.mark.slow),
        pytest.param(b"POST /classify HT", id="half a line", marks=pytest.mark.slow),
        pytest.param(HEAD, id="half a head"),
    ],
)
def test_a_head_that_does_not_come_is_not_waited_for(hostile, sent):
    with connect(hostile) as slow:
        slow.sendall(sent)
        is_fine(hostile)
        assert read_all(slow) == b""


def test_a_body_that_does_not_come_is_not_waited_for(hostile):
    with connect(hostile) as slow:
        slow.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        is_fine(hostile)
        assert read_all(slow).startswith(b"HTTP/1.1 408")


def test_a_client_that_hangs_up_in_its_body_leaves_nothing(hostile):
    with connect(hostile) as gone:
        gone.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
    is_fine(hostile)


def test_a_hundred_megabytes_are_refused_unread(hostile):
    with connect(hostile) as large:
        large.sendall(HEAD + b"Content-Length: 100000000\r\n\r\n")
        assert read_all(large).startswith(b"HTTP/1.1 413")
    with connect(hostile) as chunked:
        chunked.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        part = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        try:
            for _ in range(1600):
                chunked.sendall(part)
        except OSError:
            pass  # the server has closed
        else:
            raise AssertionError("the server took a hundred megabytes")
    is_fine(hostile)


def test_bodies_that_are_in_memory_together_are_bounded():
    """By the bytes that have come, and no peer takes the room of all others."""
    waiting = {"type": "http.request", "body": b"a" * 100, "more_body": True}

    async def app(scope, receive, send):
        await scope["state"]["body"].whole()

    async def crowd():
        guard = Guard(app, settings=ServerSettings(sources={}, body_bytes=100), metrics=Metrics())

        def ask(peer, *messages, length=b"200"):
            sent, coming = [], [*messages]

            async def receive():
                return coming.pop() if coming else await asyncio.sleep(60)

            async def send(message):
                sent.append(message.get("status"))

            headers = [(b"host", b"localhost"), (b"content-length", length)]
            scope = {"type": "http", "method": "POST", "path": "/classify", "headers": headers, "client": (peer, 1)}
            return asyncio.create_task(guard(scope, receive, send)), sent

        tasks = [ask("silent", length=b"100")[0] for _ in range(10 * BODIES)]
        tasks += [ask("greedy", waiting, length=b"100")[0] for _ in range(BODIES // 2)]
        await asyncio.sleep(0.05)
        refused, sent = ask("greedy", waiting, length=b"100")
        other, _ = ask("honest", waiting, length=b"100")
        await asyncio.sleep(0.05)
        held = dict(guard.bodies.held)
        for task in [*tasks, refused, other]:
            task.cancel()
        await asyncio.gather(*tasks, refused, other, return_exceptions=True)
        return sent, held, +guard.bodies.held

    sent, held, left = asyncio.run(crowd())
    assert (sent[:1], left) == ([429], {})
    assert held == {None: 100 * (BODIES // 2 + 1), "greedy": 100 * BODIES // 2, "honest": 100}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\xfa",
        b'{"model": "spam", "input": "\xff\xfe"}',
        rb'{"model": "spam", "input": "\ud800"}',
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"model": "spam", "input": NaN}',
        b'{"model": "spam", "input": [' + b'"",' * 1000 + b'""]}',
        b'{"model": {"$ref": "file:///etc/passwd"}, "input": "a"}',
        b'{"model": "../../etc/passwd", "input": "a"}',
    ],
    ids=["empty", "bytes", "no utf-8", "surrogate", "deep", "deep objects", "nan", "empty texts", "object", "path"],
)
def test_unusable_bodies_are_answered(hostile, body):
    answer = hostile.post("/classify", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (404, 422), answer.text[:300]
    assert answer.json()["error"]["code"] == answer.status_code
    is_fine(hostile)


def test_texts_of_any_characters_are_classified(hostile):
    texts = ["\x00\x01", "é" * 50, "\U0001f600" * 50, "\u202e right to left", "a" * 100_000]
    answer = hostile.post("/classify", json={"model": "spam", "input": texts})
    assert answer.status_code == 200, answer.text


def test_nobody_gets_in_without_the_key(hostile):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic b3Blbg=="}, {"authorization": "é"}):
        for method, path in (("POST", "/classify"), ("GET", "/metrics"), ("GET", "/v1/models")):
            with httpx.Client(base_url=hostile.base_url) as stranger:
                raw = {name: value.encode() for name, value in headers.items()}
                answer = stranger.request(method, path, headers=raw)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert httpx.get(f"{hostile.base_url}/health/live").status_code == 200
    assert hostile.delete("/v1/adapters/spam").status_code == 401  # the key of clients is not that of admins
    is_fine(hostile)


def test_many_tiny_requests_are_answered(server):
    async def flood():
        async with httpx.AsyncClient(base_url=server.base_url, timeout=300) as many:
            asked = ({"model": "spam", "input": f"word{number % 40}"} for number in range(100))
            return await asyncio.gather(*(many.post("/classify", json=body) for body in asked))

    assert {answer.status_code for answer in asyncio.run(flood())} == {200}


@asynccontextmanager
async def busy(client, bank):
    """Yield a client while the model computes a row of somebody else, and then let it go on."""
    async with httpx.AsyncClient(base_url=client.base_url, headers=client.headers, timeout=60) as other:
        bank.hold()
        held = asyncio.create_task(classify(other, "word1"))
        await asyncio.to_thread(bank.entered.wait, 60)
        yield other
        bank.go.set()
        assert (await held).status_code == 200


def classify(client, *texts):
    return client.post("/classify", json={"model": "spam", "input": texts})


async def until_waiting(client, rows):
    while client.service.engine.rows_waiting < rows:
        await asyncio.sleep(0.01)


def test_overload_says_when_to_come_back(hostile, bank):
    async def overload():
        async with busy(hostile, bank) as client:
            waiting = asyncio.create_task(classify(client, *["word1"] * 50))
            await until_waiting(hostile, 50)
            refused = await classify(client, "word1")
            bank.go.set()
            return refused, (await waiting).status_code

    refused, waited = asyncio.run(overload())
    assert (refused.status_code, waited) == (429, 200)
    assert int(refused.headers["retry-after"]) >= 1


def test_a_client_that_leaves_takes_its_request_out_of_the_queue(hostile, bank):
    async def leave():
        async with busy(hostile, bank) as client:
            leaving = asyncio.create_task(classify(client, "word2"))
            await until_waiting(hostile, 1)
            leaving.cancel()
            while hostile.service.engine.store.get("spam").waiting > 1:
                await asyncio.sleep(0.01)

    batches = len(bank.batches)
    asyncio.run(leave())
    assert len(bank.batches) == batches + 1


def test_a_row_that_breaks_the_model_is_a_424_for_its_client_alone(hostile, bank):
    bank.bad = hostile.service.engine.store.base.tokenizer.convert_tokens_to_ids("prize")
    answer = hostile.post("/classify", json={"model": "spam", "input": "prize"})
    assert answer.status_code == 424
    assert "prize" not in answer.text
    is_fine(hostile)


def test_an_adapter_is_loaded_replaced_and_deleted(hostile, adapters):
    admin = {"authorization": "Bearer sesame"}
    for name, labels in (("spam", ["ham", "spam"]), ("topic", ["art", "law", "war"])):
        loaded = hostile.post("/v1/adapters/brief", content=archive(adapters[1][name]), headers=admin)
        assert (loaded.status_code, loaded.json()["labels"]) == (201, labels), loaded.text
        answer = hostile.post("/classify", json={"model": "brief", "input": "word1"})
        assert answer.json()["labels"] == labels
    assert hostile.delete("/v1/adapters/brief", headers=admin).json()["id"] == "brief"
    assert hostile.post("/classify", json={"model": "brief", "input": "word1"}).status_code == 404
    hostile.service.engine.call(lambda: None).result(60)
    assert not list(hostile.service.uploads.iterdir())


def archive(folder, **changes):
    """Return a folder's files as a zip archive, some of them changed, or left out."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as target:
        for name in ("adapter_config.json", "adapter_model.safetensors", "foretoken.json"):
            content = changes.get(name.partition(".")[0], (folder / name).read_bytes())
            if content is not None:
                target.writestr(name, content)
    return written.getvalue()


def bad_archives(folder):
    config = json.loads((folder / "adapter_config.json").read_text())
    weights = (folder / "adapter_model.safetensors").read_bytes()
    yield "nothing", b""
    yield "no zip", b"PK" + b"a" * 1000
    yield "cut", archive(folder)[:-30]
    yield "no weights", archive(folder, adapter_model=None)
    yield "weights cut", archive(folder, adapter_model=weights[:-10])
    yield "a pickle", archive(folder, adapter_model=b"\x80\x04K*.")
    yield "a bomb", archive(folder, adapter_model=b"\0" * 10**7)
    yield "deep json", archive(folder, foretoken=b'{"a":' + b"[" * 60 + b"]" * 60 + b"}")
    yield "deeper json", archive(folder, foretoken=b"[" * 10**5)
    yield "large json", archive(folder, foretoken=b'{"a": "' + b"a" * (5 * 2**20) + b'"}')
    yield "another shape", archive(folder, adapter_config=json.dumps(config | {"num_virtual_tokens": 10**9}).encode())
    yield "another method", archive(folder, adapter_config=json.dumps(config | {"peft_type": "EVIL"}).encode())
    module = {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "antigravity"}
    yield "a module", archive(folder, adapter_config=json.dumps(config | module).encode())
    link = io.BytesIO(archive(folder, foretoken=None))
    with zipfile.ZipFile(link, "a") as target:
        item = zipfile.ZipInfo("foretoken.json")
        item.external_attr = (stat.S_IFLNK | 0o777) << 16
        target.writestr(item, "/etc/passwd")
    yield "a link", link.getvalue()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_uploads_that_are_no_adapters_change_nothing(hostile, adapters):
    admin = {"authorization": "Bearer sesame"}
    for what, content in bad_archives(adapters[1]["spam"]):
        answer = hostile.post("/v1/adapters/spam", content=content, headers=admin)
        assert answer.status_code in (413, 422), (what, answer.status_code, answer.text)
        assert str(hostile.service.uploads) not in answer.text, what
    large = hostile.post("/v1/adapters/spam", content=b"a" * 10**6 + b"a", headers=admin)
    assert large.status_code == 413
    for name in ("..%2F..%2Fetc", ".hidden", "__base__", "a" * 200, "a%00b"):
        answer = hostile.post(f"/v1/adapters/{name}", content=archive(adapters[1]["spam"]), headers=admin)
        assert answer.status_code in (404, 422), (name, answer.text)
    assert not list(hostile.service.uploads.iterdir())
    is_fine(hostile)


def test_nothing_that_is_sent_is_in_the_log(hostile, bank, capsys):
    secret = "xyzzysecret"
    bank.bad = hostile.service.engine.store.base.tokenizer.unk_token_id
    with json_logs():
        hostile.post("/classify", json={"model": "spam", "input": secret}, headers={"x-request-id": "mine"})
        hostile.post("/classify", json={"model": "spam", "inputs": secret})
        hostile.post(f"/models/{secret}", json={"inputs": secret})
        hostile.post("/classify", content=b'{"input": "' + secret.encode())
        printed = capsys.readouterr().err
        ends = time.monotonic() + 10
        while printed.count('"request"') < 4 and time.monotonic() < ends:  # a line may follow its answer
            time.sleep(0.01)
            printed += capsys.readouterr().err
    lines = [json.loads(line) for line in printed.splitlines()]
    asked = [line for line in lines if line["message"] == "request"]
    found = [(line["route"], line["status"]) for line in asked]
    assert found == [("/classify", 424), ("/classify", 422), ("/models/{adapter}", 404), ("/classify", 415)]
    assert {"request_id": "mine", "adapter": "spam", "documents": 1}.items() <= asked[0].items()
    assert secret not in printed
    assert "open" not in printed


def test_a_server_that_is_starting_says_so(adapters):
    with serving(None, engine=False) as (address, _), httpx.Client(base_url=address) as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").status_code == 503
        answer = client.post("/classify", json={"input": "a"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert client.get("/").status_code == 200
