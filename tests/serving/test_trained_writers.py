"""Adapters that `foretoken train` made for generation, with new tokens of their own, beside each other on a server."""

import json

import httpx
import pytest
import yaml

from foretoken.errors import AdapterError
from foretoken.serving.http.settings import ServerSettings
from foretoken_cli import main

from support.served import make_store, serving
from support.tiny_generation import copies, save_model, write_rows

SOURCES = ["word1 word2 word3", "word4 word5", "word6 word7 word8 word9"]
METHODS = {"copy": "prefix-propagation", "lora": {"name": "lora", "r": 2}}


@pytest.fixture(scope="module", params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def written(request, tmp_path_factory, monkeypatch_module):
    """The model, the run folders, and what `foretoken predict` writes with each of them."""
    root = tmp_path_factory.mktemp(request.param)
    monkeypatch_module.setenv("FORETOKEN_WORDNET", str(root))
    model = save_model(root / "model", request.param)
    file = root / "rows.jsonl"
    write_rows(file, copies(60))
    asked = root / "sources.txt"
    asked.write_text("\n".join(SOURCES) + "\n")
    folders = {}
    for name, method in METHODS.items():
        values = {
            "model": str(model),
            "data": {"path": str(file), "problem": "generation"},
            "method": method,
            "generation": {"max_new_tokens": 6, "markers": ["<first>"] if name == "lora" else None},
            "training": {"num_threads": 1, "max_steps": 30, "batch_size": 8, "learning_rate": 0.05, "metric": "loss"},
            "output": str(root / "runs"),
            "name": name,
        }
        path = root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        assert main(["train", str(path)]) == 0
        folders[name] = root / "runs" / name
    return model, folders, file


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def predicted(capsys, folder, source):
    """What `foretoken predict` writes after a source."""
    capsys.readouterr()
    assert main(["predict", str(folder), source]) == 0
    return json.loads(capsys.readouterr().out)["text"]


def test_the_server_writes_what_predict_writes(written, capsys):
    model, folders, _ = written
    expected = {(name, text): predicted(capsys, folder, text) for name, folder in folders.items() for text in SOURCES}
    assert len(set(expected.values())) > 2  # or anything would be right
    with (
        serving(make_store(model, folders), settings=ServerSettings(sources={})) as (address, _),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        for name in folders:
            body = {"model": name, "prompt": SOURCES, "max_tokens": 6, "temperature": 0}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            found = [choice["text"].strip() for choice in answer.json()["choices"]]
            assert found == [expected[name, text] for text in SOURCES]


def test_adapters_with_other_new_tokens_share_a_batch(written, capsys):
    model, folders, _ = written
    from foretoken.serving.completion import Complete
    from foretoken.serving.engine import Engine, Request
    from foretoken.serving.generation import Sampling
    from foretoken.serving.tasks import Document

    expected = [predicted(capsys, folders[name], SOURCES[0]) for name in folders]
    store, sizes = make_store(model, folders), []
    real = store.bank.generate
    store.bank.generate = lambda wanted: sizes.append(len(wanted)) or real(wanted)
    engine = Engine(store)
    engine.state = "ready"
    futures = [
        engine.submit(Request(name, [Document(SOURCES[0])], Complete(Sampling(max_tokens=6, temperature=0))))
        for name in folders
    ]
    with engine:
        found = [future.result(60)[0].text.strip() for future in futures]
    assert found == expected
    assert sizes == [2]


def test_a_card_that_names_tokens_without_embeddings_is_refused(written, tmp_path):
    import shutil

    model, folders, _ = written
    shutil.copytree(folders["copy"] / "adapter", tmp_path / "copy")
    card = json.loads((tmp_path / "copy" / "foretoken.json").read_text())
    card["recipe"]["generation"]["markers"] = ["<more>", "<others>"]
    (tmp_path / "copy" / "foretoken.json").write_text(json.dumps(card))
    with pytest.raises(AdapterError, match="has no embeddings of <more>, <others>, <target>"):
        make_store(model, {"copy": tmp_path / "copy"})
