"""The run table: a run has one holder, whoever else wants it, and whatever was cut off in between."""

import re
import threading

import pytest
from sqlalchemy import text

from foretoken.errors import RecipeError
from foretoken.sweeps.config import StorageOptions
from foretoken.sweeps.database import Database, DatabaseError
from foretoken.sweeps.heartbeat import LivenessCheck
from foretoken.sweeps.run_table import RUNNING, TRAINED, WAITING, RunTable
from foretoken.sweeps.worker_id import is_gone, machine, new_worker_id


@pytest.fixture
def run_table(tmp_path):
    database = Database(StorageOptions(url=f"sqlite:///{tmp_path}/run_table.db"))
    run_table = RunTable(database, "s")
    run_table.add({"a": {"model": "m"}, "b": {"model": "m"}})
    yield run_table
    database.close()


def test_of_many_who_saw_the_same_row_one_gets_it(run_table):
    seen, won = run_table.rows()["a"], []

    def take(name):
        if run_table.claim(seen, RUNNING, name):
            won.append(name)

    threads = [threading.Thread(target=take, args=(f"w{number}",)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(won) == 1
    assert run_table.rows()["a"].owner == won[0]
    assert run_table.rows()["b"].state == WAITING


def test_a_claim_that_is_repeated_because_its_answer_was_lost_still_holds(run_table):
    seen = run_table.rows()["a"]
    assert run_table.claim(seen, RUNNING, "w")
    assert run_table.claim(seen, RUNNING, "w")
    assert not run_table.claim(seen, RUNNING, "other")


def test_a_run_that_was_taken_over_no_longer_listens_to_its_first_worker(run_table):
    assert run_table.claim(run_table.rows()["a"], RUNNING, "first")
    assert run_table.beat("a", "first")
    assert run_table.claim(run_table.rows()["a"], RUNNING, "second")
    assert not run_table.beat("a", "first")
    assert not run_table.note("a", "first", state=TRAINED)
    run_table.give_back("a", "first", WAITING)
    row = run_table.rows()["a"]
    assert (row.state, row.owner, row.takeovers) == (RUNNING, "second", 1)


def test_a_beat_between_look_and_claim_saves_the_run(run_table):
    assert run_table.claim(run_table.rows()["a"], RUNNING, "first")
    seen = run_table.rows()["a"]
    run_table.beat("a", "first")
    assert not run_table.claim(seen, RUNNING, "second")


def test_adding_again_changes_nothing_and_another_recipe_is_refused(run_table):
    run_table.claim(run_table.rows()["a"], RUNNING, "w")
    run_table.add({"a": {"model": "m"}, "c": {"model": "m"}})
    assert {name: row.state for name, row in run_table.rows().items()} == {"a": RUNNING, "b": WAITING, "c": WAITING}
    with pytest.raises(RecipeError, match=r"(?s)holds s/a with another recipe.*model: 'm' in the folder, 'n' now"):
        run_table.add({"a": {"model": "n"}})


def test_sweeps_in_one_database_do_not_see_each_other(run_table):
    other = RunTable(run_table.database, "t")
    other.add({"a": {"model": "n"}})
    other.propose("x", 0, {"p": 1})
    other.propose("x", 0, {"p": 2})
    assert run_table.rows()["a"].recipe == {"model": "m"}
    assert (run_table.proposed(), other.proposed()) == ({}, {"x": [{"p": 1}]})


def test_a_silent_worker_is_given_its_time_and_more_after_an_outage(run_table):
    now = [0.0]
    watch = LivenessCheck(run_table, patience=10, clock=lambda: now[0])
    run_table.claim(run_table.rows()["a"], RUNNING, "elsewhere/1/2/3")

    def abandoned(at):
        now[0] = at
        return watch.is_abandoned(run_table.rows()["a"])

    assert [abandoned(at) for at in (0, 9, 11)] == [False, False, True]
    run_table.beat("a", "elsewhere/1/2/3")
    assert [abandoned(at) for at in (12, 21)] == [False, False]
    run_table.database.outages += 1
    assert [abandoned(at) for at in (23, 32, 34)] == [False, False, True]
    assert not watch.is_abandoned(run_table.rows()["b"])


def test_a_worker_of_this_machine_is_gone_when_its_process_is():
    own = new_worker_id()
    where, number, began, token = own.split("/")
    assert where == machine()
    assert not is_gone(own)
    assert is_gone("/".join([where, number, "1.00", token]))
    assert is_gone("/".join([where, "4194999", began, token]))
    assert not is_gone("/".join(["another", "4194999", began, token]))
    assert not is_gone("")


def test_a_database_of_before_steps_were_noted_goes_on(run_table):
    engine = run_table.database.engine
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE foretoken_runs DROP COLUMN step"))
        connection.execute(
            text(
                "INSERT INTO foretoken_runs (sweep, run, recipe, state, owner, beat, takeovers, seconds) "
                "VALUES ('s', 'old', '{}', 'running', 'me', 5, 2, 1.5)"
            )
        )
    for _ in range(2):
        again = RunTable(run_table.database, "s")
    assert (again.rows()["old"].step, again.rows()["old"].takeovers) == (0, 2)
    assert again.beat("old", "me", step=3)
    assert again.beat("old", "me", step=2)
    assert (again.rows()["old"].step, again.rows()["old"].takeovers, again.rows()["old"].beat) == (3, 0, 7)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("state", "asleep", "the run a is 'asleep'"),
        ("beat", "often", "beat of the run a is 'often'"),
        ("seconds", "long", "seconds of the run a is 'long'"),
        ("recipe", "[1]", "recipe of the run a is [1]"),
        ("recipe", "{", "Expecting property name"),
        ("validation", '{"f1": "good"}', "validation of the run a has the score 'good'"),
        ("history", "7", "history of the run a is 7"),
        ("error", b"\xff", "error of the run a is b'\\xff'"),
        ("recipe", "[" * 100_000, "recursion"),
    ],
)
def test_what_no_sweep_has_written_is_said_in_one_line(run_table, column, value, said):
    with run_table.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE foretoken_runs SET {column} = :value WHERE run = 'a'"), {"value": value})
    with pytest.raises(DatabaseError, match=re.escape(said)) as refused:
        run_table.rows()
    assert "\n" not in str(refused.value)
