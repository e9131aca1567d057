"""The card of a run, `foretoken push`, and predicting by a name of the hub: behind a hub that is a folder."""

import json
import re
import shutil
from typing import ClassVar

import pytest
from huggingface_hub import ModelCard, RepoUrl
from huggingface_hub.errors import LocalTokenNotFoundError

from foretoken.inference import hub

BASE = "somebody/base"
NAME = "somebody/mail"


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """A hub in a folder; what was asked of it is in `calls`."""

    class FakeHub:
        calls: ClassVar[list[object]] = []
        error = None

        def whoami(self):
            if self.error:
                raise self.error

        def create_repo(self, name, **options):
            self.calls.append(("create", name, options))
            return RepoUrl(f"https://huggingface.co/{name}")

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            shutil.copytree(folder_path, tmp_path / "hub" / repo_id)

    monkeypatch.setattr(FakeHub, "calls", [])
    monkeypatch.setattr(hub, "HfApi", FakeHub)
    monkeypatch.chdir(tmp_path)
    FakeHub.root = tmp_path / "hub"
    return FakeHub


def card_of(folder):
    return ModelCard.load(folder / "README.md")


def test_a_run_has_a_card_that_the_hub_reads(finished, record, tiny):
    card = card_of(finished / "adapter")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    measured = record(finished)["test"]
    assert card.data.library_name == "peft"
    assert {"foretoken", "lora"} <= set(card.data.tags)
    assert results["accuracy"] == pytest.approx(measured["accuracy"], abs=1e-6)
    assert re.search(rf"\| Accuracy \| {measured['accuracy']:.4f} \| 0\.\d+ to [01]\.\d+ \|", card.text)
    assert "| train | 96 |" in card.text
    assert "Licence of the data: not known" in card.text
    assert "| `r` | `4` |" in card.text
    assert str(tiny.root) not in str(card)


def test_push_and_predict_by_name(finished, cli, fake_hub, tiny, monkeypatch):
    before = (finished / "adapter" / "adapter_config.json").read_text()
    done = cli("push", finished, NAME, "--private", "--base-model", BASE)
    assert (done.code, done.out.strip()) == (0, f"https://huggingface.co/{NAME}")
    assert fake_hub.calls == [("create", NAME, {"private": True, "exist_ok": True})]
    pushed = fake_hub.root / NAME
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "foretoken.json"} <= {
        file.name for file in pushed.iterdir()
    }
    for file in pushed.iterdir():
        assert str(tiny.root).encode() not in file.read_bytes(), file.name
    card = card_of(pushed)
    assert card.data.base_model == BASE
    assert f"base_model:adapter:{BASE}" in card.data.tags
    assert f'folder = "{NAME}"' in card.text
    assert f"foretoken predict {NAME}" in card.text
    assert (finished / "adapter" / "adapter_config.json").read_text() == before

    config = json.loads((pushed / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == BASE
    (pushed / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(tiny.model)}))
    monkeypatch.setattr(hub, "snapshot_download", lambda name, allow_patterns: str(fake_hub.root / name))
    by_name, by_folder = (cli("predict", source, "word1 prize word2") for source in (NAME, finished))
    assert by_name.code == 0
    assert by_name.out == by_folder.out


def test_a_dry_run_sends_nothing(finished, cli, fake_hub):
    done = cli("push", finished, NAME, "--dry-run", "--base-model", BASE)
    assert done.code == 0
    assert "adapter_model.safetensors" in done.out
    assert not fake_hub.calls
    assert not fake_hub.root.exists()


def test_a_card_of_ones_own_is_pushed_as_it_is(finished, cli, fake_hub, tmp_path):
    adapter = tmp_path / "adapter"
    shutil.copytree(finished / "adapter", adapter)
    (adapter / "README.md").write_text("# Mine\n\nMy words.\n")
    assert cli("push", adapter, NAME, "--base-model", BASE).code == 0
    card = card_of(fake_hub.root / NAME)
    assert "My words." in card.text
    assert card.data.base_model == BASE


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalTokenNotFoundError("none"), "not logged in to the hub; log in with `hf auth login`"),
        (OSError("no route"), "cannot be pushed: no route"),
    ],
)
def test_what_the_hub_refuses_is_one_line(error, said, finished, refused, fake_hub, monkeypatch):
    monkeypatch.setattr(fake_hub, "error", error)
    assert said in refused("push", finished, NAME, "--base-model", BASE)
    assert not fake_hub.root.exists()


def test_what_cannot_be_pushed_is_one_line(finished, refused, fake_hub, tmp_path):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished)
    values = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(json.dumps(values | {"status": "interrupted"}))
    (tmp_path / "empty").mkdir()
    for words, said in (
        ((tmp_path / "nothing", NAME), "is not there"),
        ((unfinished, NAME), "the run is not finished (status: interrupted)"),
        ((tmp_path / "empty", NAME), "holds neither an adapter"),
        ((finished, "mail"), "expected owner/name"),
        ((finished, NAME), "name its repository with --base-model"),
    ):
        assert said in refused("push", *words)
    assert not fake_hub.calls


def test_a_name_that_is_nowhere_is_one_line(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    assert "neither as a folder nor in the hub's cache, and HF_HUB_OFFLINE" in refused("predict", NAME, "hello")
    (tmp_path / "somebody").mkdir()  # then it is a path, and the hub is not asked
    assert "is not there; expected a folder" in refused("predict", NAME, "hello")
