import json
import logging
from dataclasses import replace

import datasets
import pytest
from transformers import BertConfig

from foretoken.data.options import DataOptions
from foretoken.errors import ConfigError
from foretoken.training.problems import make_problem
from foretoken.training.recipe.recipe import ChunkOptions
from foretoken.training.run import prepare as preparing
from foretoken.training.run.fingerprint import of_data
from foretoken.training.tokens import cache, ingredients
from foretoken.training.tokens.encode import EncodeSettings, token_rules

from support.tiny_run import documents, make_tokenizer, write_csv


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def data(tmp_path):
    return write_csv(tmp_path / "mail.csv", documents(60))


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def settings_of(tokenizer, **changes):
    return replace(EncodeSettings(tokenizer, 8, token_rules(BertConfig())), **changes)


def tokens(options, settings, **changes):
    """Return the tokens of a run as `prepare` does, and the messages of it."""
    loaded, fingerprint = preparing.read_data(options)
    problem = make_problem(loaded.problem, loaded.labels, chunks=settings.chunks, **changes)
    return preparing._tokens(loaded.splits, problem, settings, fingerprint, "mail")


@pytest.fixture
def made(monkeypatch):
    """How often data were read, and tokenised."""
    counts = {"read": 0, "tokenised": 0}

    def counting(name, function):
        def call(*given):
            counts[name] += 1
            return function(*given)

        return call

    monkeypatch.setattr(preparing, "load_data", counting("read", preparing.load_data))
    monkeypatch.setattr(preparing, "_tokenised", counting("tokenised", preparing._tokenised))
    return counts


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def same(one, other):
    assert one[1] == other[1]
    assert list(one[0]) == list(other[0])
    for name, table in one[0].items():
        assert table.features == other[0][name].features
        assert table.to_dict() == other[0][name].to_dict()


def test_the_same_data_are_read_and_tokenised_once(store, data, tokenizer, made):
    options = DataOptions(path=str(data))
    first = tokens(options, settings_of(tokenizer))
    tokenizer(["a text"], truncation=True, max_length=3, padding=True)  # leaves its mark on the backend
    second = tokens(options, settings_of(make_tokenizer()))
    assert made == {"read": 1, "tokenised": 1}
    same(first, second)
    assert len(list(store.iterdir())) == 2


def test_what_is_read_from_the_cache_is_what_was_read(store, data):
    options = DataOptions(path=str(data))
    (first, one), (second, other) = (preparing.read_data(options) for _ in range(2))
    assert (first.problem, first.labels, first.grouped) == (second.problem, second.labels, second.grouped)
    assert one == other == of_data(second.splits)
    for name, split in first.splits.items():
        assert second.splits[name].features == split.features
        assert second.splits[name].to_dict() == split.to_dict()


def test_every_ingredient_makes_another_entry(store, data, tokenizer, made, monkeypatch):
    options, settings = DataOptions(path=str(data)), settings_of(tokenizer)
    more = make_tokenizer()
    more.add_tokens(["zebra"])
    tokens(options, settings)
    for changed in (
        settings_of(tokenizer, max_length=9),
        settings_of(tokenizer, rules=replace(settings.rules, end_token=3)),
        settings_of(tokenizer, rules=replace(settings.rules, vocab_size=30_000)),
        settings_of(tokenizer, chunks=ChunkOptions()),
        settings_of(tokenizer, chunks=ChunkOptions(overlap=1)),
        settings_of(more),
    ):
        before = made["tokenised"]
        tokens(options, changed)
        assert made == {"read": 1, "tokenised": before + 1}, changed
    before = made["tokenised"]
    tokens(options, settings, n_bins=7)
    assert made == {"read": 1, "tokenised": before + 1}
    tokens(replace(options, split_seed=1), settings)
    assert made == {"read": 2, "tokenised": before + 2}
    write_csv(data, documents(61))
    tokens(options, settings)
    assert made == {"read": 3, "tokenised": before + 3}
    monkeypatch.setattr(cache, "FORMAT", 2)
    tokens(options, settings)
    assert made == {"read": 4, "tokenised": before + 4}


def test_the_same_texts_in_another_file_are_read_again_but_not_tokenised(store, data, tokenizer, made):
    tokens(DataOptions(path=str(data)), settings_of(tokenizer))
    copy = data.with_name("copy.csv")
    copy.write_bytes(data.read_bytes())
    tokens(DataOptions(path=str(copy)), settings_of(tokenizer))
    assert made == {"read": 2, "tokenised": 1}


def test_messages_are_the_same_on_a_hit_whatever_was_shown_before(store, tmp_path, tokenizer, caplog):
    rows = [*documents(60), ("lunch", "ham"), ("lunch", "spam")]
    options = DataOptions(path=str(write_csv(tmp_path / "odd.csv", rows)))
    shown = []
    for level in (logging.WARNING, logging.INFO, logging.INFO, logging.WARNING):
        caplog.clear()
        with caplog.at_level(level, logger="foretoken"):
            tokens(options, settings_of(tokenizer))
        shown.append([(record.name, record.levelno, record.getMessage()) for record in caplog.records])
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO, logger="foretoken"):
        patch.setenv("FORETOKEN_CACHE", "off")
        caplog.clear()
        tokens(options, settings_of(tokenizer))
    expected = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    assert shown[1] == shown[2] == expected
    assert shown[0] == shown[3] == [message for message in expected if message[1] >= logging.WARNING]
    assert any("train: " in message for _, _, message in expected)
    assert logging.getLogger("foretoken").propagate


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "entry cut", "entry changed", "entry missing"])
def test_a_damaged_entry_is_noticed_and_made_again(store, data, tokenizer, made, damage, caplog):
    options, settings = DataOptions(path=str(data)), settings_of(tokenizer)
    first = tokens(options, settings)
    for folder in store.iterdir():
        arrow, entry = folder / "validation.arrow", folder / "entry.json"
        content = arrow.read_bytes()
        if damage == "cut":
            arrow.write_bytes(content[:-8])
        elif damage == "flip":
            arrow.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
        elif damage == "missing":
            arrow.unlink()
        elif damage == "entry cut":
            entry.write_bytes(entry.read_bytes()[:-20])
        elif damage == "entry changed":
            values = json.loads(entry.read_text())
            values["entry"]["facts"]["more"] = 1
            entry.write_text(json.dumps(values))
        else:
            entry.unlink()
    with caplog.at_level(logging.WARNING, logger="foretoken"):
        same(first, tokens(options, settings))
    assert made == {"read": 2, "tokenised": 2}
    assert [message.count("are damaged") for message in warnings_of(caplog)] == [1, 1]
    same(first, tokens(options, settings))
    assert made == {"read": 2, "tokenised": 2}


def test_of_two_writers_the_first_ones_entry_stays(store, data, tokenizer, made, monkeypatch, caplog):
    options, settings = DataOptions(path=str(data)), settings_of(tokenizer)
    written = []
    real = cache._write

    def slow(path, content, values):
        real(path, content, values)  # another process is done first
        written.append((path / "entry.json").stat().st_ino)
        real(path, content, values)
        assert (path / "entry.json").stat().st_ino == written[-1]

    monkeypatch.setattr(cache, "_write", slow)
    same(tokens(options, settings), tokens(options, settings))
    assert made == {"read": 1, "tokenised": 1}
    assert warnings_of(caplog) == []
    assert sorted(len(path.name) for path in store.iterdir()) == [64, 64]  # no temporary name


def test_the_least_recently_used_entries_go_beyond_the_limit(store, data, tokenizer, made, monkeypatch):
    options = DataOptions(path=str(data))
    tokens(options, settings_of(tokenizer))
    size = sum(entry.size for entry in cache.entries(store.parent))
    monkeypatch.setenv("FORETOKEN_CACHE_LIMIT", f"{2 * size}")
    for length in (9, 10, 11, 12, 13):
        tokens(options, settings_of(tokenizer, max_length=length))
        assert sum(entry.size for entry in cache.entries(store.parent)) <= 2 * size
    assert made["read"] == 1  # it was used every time
    before = made["tokenised"]
    tokens(options, settings_of(tokenizer, max_length=13))
    assert made["tokenised"] == before
    tokens(options, settings_of(tokenizer))
    assert made["tokenised"] == before + 1
    monkeypatch.setenv("FORETOKEN_CACHE_LIMIT", "1")
    tokens(options, settings_of(tokenizer, max_length=14))
    assert cache.entries(store.parent) == []
    monkeypatch.setenv("FORETOKEN_CACHE_LIMIT", "much")
    with pytest.raises(ConfigError, match="FORETOKEN_CACHE_LIMIT: got 'much', expected a size"):
        tokens(options, settings_of(tokenizer))


def test_a_cache_that_cannot_be_written_is_said_once_and_the_run_goes_on(
    tmp_path, data, tokenizer, monkeypatch, caplog
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file" / "below"))
    with caplog.at_level(logging.WARNING, logger="foretoken"):
        for _ in range(2):
            tokens(DataOptions(path=str(data)), settings_of(tokenizer))
    assert [message.partition(": ")[2] for message in warnings_of(caplog)] == [
        "nothing can be cached (Not a directory); set FORETOKEN_CACHE to another folder, or to 0"
    ]


def test_a_full_disk_leaves_nothing_behind(store, data, tokenizer, monkeypatch, caplog):
    def full(file, table):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write_table", full)
    with caplog.at_level(logging.WARNING, logger="foretoken"):
        tokens(DataOptions(path=str(data)), settings_of(tokenizer))
    assert len(warnings_of(caplog)) == 1
    assert "No space left on device" in caplog.text
    assert list(store.iterdir()) == []


def test_switched_off_it_keeps_nothing(tmp_path, data, tokenizer, made, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FORETOKEN_CACHE", "0")
    for _ in range(2):
        tokens(DataOptions(path=str(data)), settings_of(tokenizer))
    assert made == {"read": 2, "tokenised": 2}
    assert not (tmp_path / "home").exists()


def test_a_file_that_changes_while_it_is_read_is_not_kept(store, data, tokenizer, made, monkeypatch):
    read = preparing.load_data

    def change(options):
        loaded = read(options)
        write_csv(data, documents(62))
        return loaded

    monkeypatch.setattr(preparing, "load_data", change)
    preparing.read_data(DataOptions(path=str(data)))
    assert not store.exists()


def test_what_comes_from_the_hub_or_from_installed_packages_has_no_files():
    assert ingredients.of_source(DataOptions(path="hub:someone/something")) is None
    assert ingredients.of_source(DataOptions(task="pydocs")) is None
    assert ingredients.of_source(DataOptions(task="mrpc", path="hub")) is None
    assert ingredients.of_source(DataOptions(path="nowhere.csv")) is None


def test_the_digest_of_a_folder_knows_names_and_contents_and_follows_links(tmp_path):
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "a.txt").write_text("a")
    found = [ingredients.files_digest(folder)]
    (folder / "below" / "a.txt").rename(folder / "below" / "b.txt")
    found.append(ingredients.files_digest(folder))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.txt").write_text("c")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    found.append(ingredients.files_digest(folder))
    (tmp_path / "elsewhere" / "c.txt").write_text("d")
    found.append(ingredients.files_digest(folder))
    assert len(set(found)) == 4
    (folder / "linked" / "back").symlink_to(folder)  # a circle
    assert ingredients.files_digest(folder)


def test_a_tokenizer_is_known_by_its_content():
    one, other = make_tokenizer(), make_tokenizer()
    assert ingredients.tokenizer_digest(one) == ingredients.tokenizer_digest(other)
    other.truncation_side = "left"
    assert ingredients.tokenizer_digest(one) != ingredients.tokenizer_digest(other)


def test_tables_of_every_shape_come_back_as_they_were(store):
    tables = {
        "train": datasets.Dataset.from_dict(
            {"sequences": [[{"input_ids": [1, 2]}, {"input_ids": [3]}], []], "labels": [0.5, -1.0], "part": [None, "a"]}
        ),
        "test": datasets.Dataset.from_dict({"id": list("abc"), "n": [1, 2, 3]}).select([2, 0]),
    }
    content = cache.Content(tables, {"a": 1})
    first, second = (cache.cached(lambda: {"x": 1}, lambda: content, kind="tokens", name="any") for _ in range(2))
    assert first is content
    assert second.facts == content.facts
    assert {name: table.to_dict() for name, table in second.tables.items()} == {
        name: table.to_dict() for name, table in tables.items()
    }
