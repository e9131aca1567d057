"""`foretoken serve` as a user starts and stops it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foretoken.client import Client
from foretoken_cli import main

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="module")
def folders(adapters, tmp_path_factory):
    """A folder to watch, with one adapter."""
    watched = tmp_path_factory.mktemp("watched")
    shutil.copytree(adapters[1]["topic"], watched / "topic")
    return adapters, watched


@pytest.mark.slow
def test_it_starts_with_one_command_watches_its_folder_and_drains(folders):
    (_, named), watched = folders
    words = ["serve", f"mail={named['spam']}", "--adapters", str(watched), "--port", "0", "--admin-key", "sesame"]
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    command = [sys.executable, "-m", "foretoken", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("serving 2 adapters of model in fp32 at http://127.0.0.1:"), line
            with Client(line.split()[-1]) as client:
                assert client.classify("word1 lunch", model="mail").data[0].label in ("ham", "spam")
                assert {item.id for item in client.adapters()} == {"mail", "topic"}
                shutil.copytree(named["stars"], watched / "stars")
                while "stars" not in {item.id for item in client.adapters()}:
                    assert server.poll() is None
                shutil.rmtree(watched / "topic")
                while "topic" in {item.id for item in client.adapters()}:
                    assert server.poll() is None
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
            assert server.stdout.read() == ""
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to serve"),
        (["nowhere"], "nowhere is not there"),
        (["{spam}", "{spam}"], "two adapters are called 'spam'"),
        (["a/b={spam}"], "got the name 'a/b'"),
        (["{spam}", "--port", "70000"], "expected a whole number from 0 to 65,535"),
        (["{spam}", "--host", "256.1.1.1", "--port", "0"], "cannot listen at 256.1.1.1:0"),
        (["{spam}", "--adapters", "nowhere"], "--adapters: nowhere is not a folder"),
        (["{spam}", "--api-key", ""], "the key is empty"),
        (["{model}"], "holds no adapter_config.json"),
        (["{linked}"], "is a link"),
        (["{damaged}", "--port", "0"], "corrupt"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(adapters, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    model, named = adapters
    linked, damaged = shutil.copytree(named["spam"], "linked"), shutil.copytree(named["spam"], "damaged")
    (Path(linked) / "foretoken.json").unlink()
    (Path(linked) / "foretoken.json").symlink_to(named["spam"] / "foretoken.json")
    (Path(damaged) / "adapter_model.safetensors").write_bytes(b"x" * 50)
    places = {"spam": named["spam"], "model": model, "linked": linked, "damaged": damaged}
    assert main(["serve", *(word.format(**places) for word in words)]) == 2
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert message in errors[0]
    assert printed.out == ""


def test_a_port_that_is_taken(adapters, capsys):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(adapters[1]["spam"]), "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --host or --port" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
def test_the_client_speaks_every_route(server, adapters):
    import asyncio

    from foretoken.client import AsyncClient, ServerError

    with Client(str(server.base_url)) as client:
        assert len(client.tag(["lunch prize"], model="names", aggregation_strategy="first")) == 1
        assert len(client.embed(["a", "b"], model="spam").data) == 2
        with pytest.raises(ServerError, match="did you mean 'spam'") as refused:
            client.classify("a", model="spma")
        assert refused.value.status == 404
        assert len(client.rerank("a", ["b", "c"], model="relevance", top_n=1).results) == 1
        with pytest.raises(ServerError, match="--admin-key"):
            client.load("new", adapters[1]["spam"])
        with pytest.raises(ServerError, match="--admin-key"):
            client.remove("spam")

    async def ask():
        async with AsyncClient(str(server.base_url)) as client:
            return await client.classify(["a", "b"], model="spam", min_confidence=1.0), await client.adapters()

    found, listed = asyncio.run(ask())
    assert [item.abstained for item in found.data] == [True, True]
    assert len(listed) == len(adapters[1])


def test_nothing_of_the_server_is_imported_with_foretoken():
    code = "import foretoken, sys; assert not {'fastapi', 'uvicorn', 'httpx', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SRC)}, check=False)
    assert done.returncode == 0
