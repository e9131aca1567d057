"""The worker: every run once, whoever dies; what fails is listed; the test split of the selected runs alone."""

import json
import threading
from collections import Counter
from contextlib import suppress

import pytest

from foretoken.errors import ConfigError, DataError
from foretoken.files import write_json
from foretoken.sweeps.heartbeat import Heartbeat, LostRun
from foretoken.sweeps.record import FILE, Record
from foretoken.sweeps.run_table import FAILED, MEASURED, PRUNED, RUNNING, TRAINED
from foretoken.sweeps.status import broken, is_over
from foretoken.sweeps.sweep import Sweep
from foretoken.sweeps.tables import broken_lines, progress_rows, result_rows
from foretoken.sweeps.worker import Worker
from foretoken.training.run import train as training
from foretoken.training.run.record import Pruned, recipe_to_json


def work(sweep, **options):
    Worker(sweep, lambda _: None, **options).work()
    return {item.variant.name: item for item in sweep.look()}


def names(*variants, rates, seeds):
    return [f"{name}/learning_rate={rate}-seed{seed}" for name in variants for rate in rates for seed in seeds]


def test_every_run_is_trained_once_and_the_best_alone_is_tested(sweep, runs):
    found = work(sweep())
    assert Counter(runs.trained) == Counter(
        names("lora", "prefix-tuning", rates=("0.1", "0.01", "0.001"), seeds=(0, 1))
    )
    assert sorted(runs.measured) == names("lora", "prefix-tuning", rates=("0.1",), seeds=(0, 1))
    assert found["lora"].selected.params == {"training.learning_rate": 0.1}


def test_variants_get_on_together(sweep, runs):
    work(sweep())
    assert [name.partition("/")[0] for name in runs.trained[:4]] == ["lora", "prefix-tuning"] * 2


def test_of_equal_scores_the_first_is_selected_and_low_is_good_for_a_loss(sweep, runs):
    runs.score = lambda recipe: 0.5
    assert work(sweep())["lora"].selected.params == {"training.learning_rate": 0.1}
    scores = {0.1: 0.9, 0.01: 0.2, 0.001: 0.4}
    runs.score = lambda recipe: scores[recipe.training.learning_rate]
    one = sweep(name="other")
    one.maximise = dict.fromkeys(one.maximise, False)
    assert work(one)["lora"].selected.params == {"training.learning_rate": 0.01}


def test_the_mean_over_seeds_selects_not_the_best_seed(sweep, runs):
    scores = {(0.1, 0): 1.0, (0.1, 1): 0.0, (0.01, 0): 0.6, (0.01, 1): 0.6}
    runs.score = lambda recipe: scores.get((recipe.training.learning_rate, recipe.training.seed), 0.1)
    assert work(sweep())["lora"].selected.params == {"training.learning_rate": 0.01}


def test_seeds_for_selected_searches_with_the_first_alone(sweep, runs):
    found = work(sweep(seeds_for="selected", seeds=[3, 4, 5]))
    searched = names("lora", "prefix-tuning", rates=("0.1", "0.01", "0.001"), seeds=(3,))
    later = names("lora", "prefix-tuning", rates=("0.1",), seeds=(4, 5))
    assert (sorted(runs.trained[:6]), sorted(runs.trained[6:])) == (sorted(searched), later)
    assert len(runs.measured) == 6
    assert sorted(row.test["f1_macro"] for row in found["lora"].selected.rows.values()) == [0.05] * 3


def test_a_finished_sweep_repeats_nothing(sweep, runs):
    work(sweep())
    before = len(runs.trained), len(runs.measured)
    assert is_over(work(sweep()).values())
    assert (len(runs.trained), len(runs.measured)) == before


def test_a_sweep_may_be_extended(sweep, runs):
    work(sweep())
    before = len(runs.trained)
    found = work(sweep(search__space={"training.learning_rate": [0.5, 0.1, 0.01, 0.001]}, seeds=[0, 1, 2]))
    assert len(runs.trained) - before == 2 * (3 + 1 * 2 + 1 * 1)
    assert found["lora"].selected.params == {"training.learning_rate": 0.5}


def test_a_failed_run_is_listed_and_its_candidate_cannot_win(sweep, runs):
    def score(recipe):
        if recipe.training.learning_rate == 0.1 and recipe.method["name"] == "lora":
            raise DataError("mail.csv: line 3: no label") if recipe.training.seed == 0 else ZeroDivisionError("x")
        return recipe.training.learning_rate

    runs.score, one = score, sweep()
    found = work(one)
    assert found["lora"].selected.params == {"training.learning_rate": 0.01}
    assert broken_lines(broken(found.values())) == [
        "mail.csv: line 3: no label: lora/learning_rate=0.1-seed0",
    ]
    assert "lora/learning_rate=0.1-seed1" not in runs.trained  # of a candidate that is lost
    assert found["lora"].counts == {"failed": 1, "trained": 2, "measured": 2}
    runs.score = lambda recipe: 0.7
    (one.plan.config.folder / "lora/learning_rate=0.1-seed0/run.json").unlink(missing_ok=True)
    assert one.retry_broken() == 1
    assert work(one)["lora"].selected.params == {"training.learning_rate": 0.1}


def test_an_unexpected_error_is_a_failed_run_too(sweep, runs, capsys):
    runs.score = lambda recipe: 1 / 0
    found = work(sweep(seeds=[0]))
    assert {row.error for row in broken(found.values())} == {"ZeroDivisionError: division by zero"}
    assert found["lora"].selected is None
    assert "Traceback" in capsys.readouterr().err


def test_a_test_split_that_cannot_be_measured_leaves_the_selection_as_it_is(sweep, runs, monkeypatch):
    def measure_test(recipe, **_):
        raise DataError("no test split")

    monkeypatch.setattr("foretoken.inference.evaluate.measure_test", measure_test)
    found = work(sweep())
    assert found["lora"].selected.params == {"training.learning_rate": 0.1}
    assert {row.error for row in broken(found.values())} == {"no test split"}
    assert result_rows([found["lora"]]) == [
        ["lora", "learning_rate=0.1", "f1_macro", "0.1000 ± 0.0000", "-", "0", "2", "0"]
    ]


def test_a_pruned_run_ends_its_candidate(sweep, runs):
    def score(recipe):
        if recipe.training.learning_rate < 0.1:
            raise Pruned("others were better")
        return 0.5

    runs.score = score
    found = work(sweep())
    assert found["lora"].counts == {"pruned": 2, "measured": 2}
    assert broken(found.values()) == []


def test_two_workers_share_the_runs(sweep, runs, monkeypatch):
    monkeypatch.setattr("foretoken.sweeps.worker.Worker._is_here", lambda *_: True)
    pair = [sweep(), sweep()]
    threads = [threading.Thread(target=work, args=(one,)) for one in pair]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(runs.trained) == len(set(runs.trained)) == 12
    assert len(runs.measured) == len(set(runs.measured)) == 4


def test_the_run_of_a_dead_worker_is_taken_up_and_after_three_deaths_no_more(sweep, runs):
    one = sweep(compare=None, search=None, seeds=[0, 1])
    rows = {row.run: row for item in one.look() for row in item.wanted}
    first, second = rows
    dead = "/".join([*Worker(one, print).worker_id.split("/")[:2], "1.00", "x"])
    for row in rows.values():
        one.run_table.claim(row, RUNNING, dead)
    for _ in range(3):
        one.run_table.claim(one.run_table.rows()[second], RUNNING, dead)
    found = work(one)["bitfit"]
    assert runs.trained == [first]
    states = {row.run: (row.state, row.error) for row in found.wanted}
    assert states == {first: (TRAINED, None), second: (FAILED, "its worker died 4 times without getting past step 0")}


class Died(BaseException):
    """The end of a process, as far as one can have it within a test: nothing is given back or noted."""


def dying(one, runs, monkeypatch, steps, *, heard=True):
    """Let workers of a sweep die at the given steps of their runs; the last one lives."""
    left, live = iter(steps), training.train

    def train(recipe, *, callbacks=(), **options):
        step = next(left, None)
        if step is None:
            return live(recipe, callbacks=callbacks, **options)
        heartbeat = callbacks[0]
        if heard:
            heartbeat.run_table.beat(heartbeat.run, heartbeat.worker_id, step=step)
        else:
            write_json(recipe.run_folder / "checkpoints" / f"checkpoint-{step}" / "state.json", step)
        raise Died

    monkeypatch.setattr("foretoken.training.run.train.train", train)
    monkeypatch.setattr("foretoken.sweeps.heartbeat.is_gone", lambda worker_id: True)
    for _ in steps:
        with suppress(Died):
            work(one)
    return work(one)


@pytest.mark.parametrize("heard", [True, False])
def test_workers_may_die_as_often_as_they_like_while_a_run_gets_on(heard, sweep, runs, monkeypatch):
    monkeypatch.setattr("foretoken.training.run.checkpoints.is_whole", lambda checkpoint: True)
    steps = [step for step in range(11, 20) for _ in range(3)]  # three times at every place
    one = sweep(compare=None, search=None, seeds=[0])
    found = dying(one, runs, monkeypatch, steps, heard=heard)["bitfit"]
    assert [row.state for row in found.wanted] == [MEASURED]
    assert [(row.step, row.takeovers) for row in found.wanted] == [(19, 0)]


def test_a_run_that_kills_its_workers_at_one_place_is_failed_and_the_others_go_on(sweep, runs, monkeypatch):
    one = sweep(search=None, seeds=[0])
    found = dying(one, runs, monkeypatch, [3, 7, 5, 7, 7])
    (row,) = found["lora"].wanted
    assert (row.state, row.error) == (FAILED, "its worker died 4 times without getting past step 7")
    assert [row.state for row in found["prefix-tuning"].wanted] == [MEASURED]
    assert one.retry_broken() == 1
    assert [row.state for row in work(one)["lora"].wanted] == [MEASURED]


def test_ctrl_c_gives_the_run_back(sweep, runs):
    def interrupt(recipe):
        raise KeyboardInterrupt

    runs.score, one = interrupt, sweep()
    with pytest.raises(KeyboardInterrupt):
        work(one)
    assert {(row.state, row.owner) for row in one.run_table.rows().values()} == {("waiting", "")}


def test_a_worker_that_lost_its_run_leaves_it_alone(sweep, runs):
    def lose(recipe):
        if not runs.lost:
            name = "/".join(recipe.run_folder.parts[-2:])
            runs.lost.append(name)
            one.run_table.claim(one.run_table.rows()[name], RUNNING, "other/1/2/3")
            raise LostRun(name)
        return 0.5

    runs.lost, runs.score = [], lose
    one = sweep(compare=None, search=None, seeds=[0, 1])
    worker = Worker(one, lambda _: None)
    while worker._take(worker.look()):
        pass
    rows = one.run_table.rows()
    assert (rows[runs.lost[0]].state, rows[runs.lost[0]].owner) == (RUNNING, "other/1/2/3")


def test_the_heartbeat_tells_the_trainer_that_a_run_is_lost(sweep, runs):
    one = sweep(compare=None, search=None, seeds=[0])
    row = one.look()[0].wanted[0]
    beaten = threading.Event()
    with Heartbeat(one.run_table, row.run, "me", interval=0.01, after_beat=beaten.set) as heartbeat:
        assert beaten.wait(10)
        heartbeat._thread.join()  # it has nothing to beat for
        with pytest.raises(LostRun):
            heartbeat.on_step_end(None, None, None)


def test_folders_on_another_machine_are_named_after_a_while(sweep, runs, monkeypatch):
    one = sweep(compare=None, search=None, seeds=[0], storage={"heartbeat": 0.01, "takeover_after": 0.1})
    row = one.look()[0].wanted[0]
    one.run_table.claim(row, RUNNING, "far@1/2/3/4")
    one.run_table.note(row.run, "far@1/2/3/4", state=TRAINED, validation={"f1_macro": 0.5})
    with pytest.raises(ConfigError, match="1 selected runs were trained on far and their folders are not here"):
        work(one)


def test_tpe_proposes_up_to_its_number_from_what_is_known(sweep, runs):
    search = {
        "strategy": "tpe",
        "trials": 12,
        "space": {"training.learning_rate": {"low": 1e-4, "high": 1.0, "log": True}},
    }
    found = work(sweep(search=search, seeds=[0], compare=None))["bitfit"]
    assert len(found.candidates) == len(runs.trained) == 12
    best = max(item.params["training.learning_rate"] for item in found.candidates)
    assert found.selected.params == {"training.learning_rate": best}


def test_the_record_says_it_all(sweep, runs):
    one = sweep(seeds_for="selected")
    found = list(work(one).values())
    Record(one.plan, one.run_table.database.place).write(found)
    record = json.loads((one.plan.config.folder / FILE).read_text())
    assert (record["status"], record["counts"], record["failures"]) == ("finished", {"measured": 4, "trained": 4}, [])
    lora = record["contestants"][0]
    assert lora["selected"] == {"training.learning_rate": 0.1}
    assert lora["test"]["f1_macro"] == {"mean": 0.05, "std": 0.0, "seeds": {"0": 0.05, "1": 0.05}}
    assert [item["score"] for item in lora["candidates"]] == [0.1, 0.01, 0.001]
    assert [len(item["runs"]) for item in lora["candidates"]] == [2, 1, 1]
    assert progress_rows(found)[0][:2] == ["lora", "4/4"]


def test_an_earlier_note_of_a_pruned_run_is_believed(sweep, runs):
    one = sweep(compare=None, search=None, seeds=[0])
    row = one.look()[0].wanted[0]
    one.run_table.claim(row, RUNNING, "/".join([*Worker(one, print).worker_id.split("/")[:2], "1.00", "x"]))
    record = {"status": "pruned", "error": "others were better", "recipe": {}}
    write_json(one.recipes[row.run].run_folder / "run.json", record)
    assert work(one)["bitfit"].counts == {PRUNED: 1}


def test_measured_rows_keep_validation_and_test(sweep, runs):
    found = work(sweep(compare=None, search=None, seeds=[0]))["bitfit"]
    row = found.wanted[0]
    assert isinstance(Sweep, type)
    assert (row.state, row.validation["f1_macro"], row.test["f1_macro"]) == (MEASURED, 0.003, 0.0015)


def test_a_sweep_of_before_methods_had_rates_goes_on_with_those_it_began_with(sweep, runs):
    one = sweep(compare=None, search=None, seeds=[0, 1])
    begun = one.look()[0].wanted[0].run
    values = recipe_to_json(one.recipes.pop(begun))
    del values["auto"]
    values["training"]["learning_rate"] = 1e-3
    table = one.run_table
    change = table.runs.update().where(table.runs.c.run == begun).values(recipe=values)
    table.database.run(lambda connection: connection.execute(change))
    assert [row.validation["f1_macro"] for row in work(one)["bitfit"].wanted] == [1e-3, 3e-3]
