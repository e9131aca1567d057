"""Hub names and folders written by save_to_disk; no network."""

import datasets
import pytest

from foretoken.data.load import load_examples
from foretoken.data.options import DataOptions
from foretoken.data.problems import CLASSIFICATION
from foretoken.data.readers.hub import hub_name
from foretoken.errors import DataError

from support.data import load


def made(count=40, names=("yes", "no")):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    return datasets.Dataset.from_dict(
        {"text": [f"text {i}" for i in range(count)], "label": [i % 2 for i in range(count)]}, features=features
    )


def test_a_saved_table_and_a_saved_dict(tmp_path):
    made().save_to_disk(tmp_path / "one")
    data = load(DataOptions(path=str(tmp_path / "one")))
    assert data["train"].features["label"].names == ["no", "yes"]
    assert all((int(row["text"].split()[1]) % 2 == 0) == (row["label"] == 1) for row in data["train"])
    tables = {"train": made(), "dev": made(6).map(lambda row: {"text": "dev " + row["text"]}), "other": made(2)}
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "several")
    data = load(DataOptions(path=str(tmp_path / "several")))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [36, 6, 4]
    assert len(load_examples(tmp_path / "one", DataOptions(path="unused"), CLASSIFICATION, ["no", "yes"])) == 40
    with pytest.raises(DataError, match="holds the splits train, validation, expected one table"):
        load_examples(tmp_path / "several", DataOptions(path="unused"), CLASSIFICATION, ["no", "yes"])


def test_hub_names_and_local_paths_are_told_apart(tmp_path, monkeypatch):
    assert hub_name("owner/some-data.v2") == "owner/some-data.v2"
    assert hub_name("hub:imdb") == "imdb"
    for local in ("a.csv", "data/a.jsonl", "./a/b", "/a/b", "~/a", "a/b/c", "folder"):
        assert hub_name(local) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)  # a local folder goes first
    with pytest.raises(DataError, match="no usable files"):
        load(DataOptions(path="owner/name"))


def test_an_unreachable_hub_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as caught:
        load(DataOptions(path="nobody/nothing"))
    message = str(caught.value)
    assert "'nobody/nothing'" in message
    assert "was not loaded (" in message
    assert "set path to a local copy" in message
    assert "\n" not in message


@pytest.fixture
def hub(monkeypatch):
    """The hub's answers by name; requests are recorded."""
    answers, asked = {}, []

    def load_dataset(name, config_name=None):
        asked.append((name, config_name))
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return answers, asked


def test_a_hub_data_set_is_read_by_its_columns_and_config(hub):
    answers, asked = hub
    answers["owner/name"] = datasets.DatasetDict({"train": made().rename_columns({"text": "body", "label": "y"})})
    options = DataOptions(path="owner/name", config_name="small", text_column="body", label_column="y")
    assert sum(map(len, load(options).values())) == 40
    assert asked == [("owner/name", "small")]
    with pytest.raises(DataError, match=r"'owner/name' \[train\]: no column 'txt'; the columns are body, y"):
        load(DataOptions(path="owner/name", text_column="txt"))
    assert {split: rows.to_list() for split, rows in load(DataOptions(path="owner/name")).items()} == {
        split: rows.to_list() for split, rows in load(options).items()
    }


def test_an_error_of_the_library_becomes_a_data_error(hub):
    hub[0]["owner/name"] = ValueError("Config name is missing.\nPick one")
    with pytest.raises(
        DataError, match=r"'owner/name' \(config None\) was not loaded \(ValueError: Config name is missing. Pick one"
    ):
        load(DataOptions(path="owner/name"))
