"""The board: a run has one holder, whoever else wants it, and whatever was cut off in between."""

import re
import threading

import pytest
from sqlalchemy import text

from foretoken.errors import RecipeError
from foretoken.sweeps.config import StorageOptions
from foretoken.sweeps.database import Database, DatabaseError
from foretoken.sweeps.heartbeat import Watch
from foretoken.sweeps.run_table import RUNNING, TRAINED, WAITING, Board
from foretoken.sweeps.worker_id import is_gone, machine, new_owner


@pytest.fixture
def board(tmp_path):
    database = Database(StorageOptions(url=f"sqlite:///{tmp_path}/board.db"))
    board = Board(database, "s")
    board.add({"a": {"model": "m"}, "b": {"model": "m"}})
    yield board
    database.close()


def test_of_many_who_saw_the_same_row_one_gets_it(board):
    seen, won = board.rows()["a"], []

    def take(name):
        if board.claim(seen, RUNNING, name):
            won.append(name)

    threads = [threading.Thread(target=take, args=(f"w{number}",)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(won) == 1
    assert board.rows()["a"].owner == won[0]
    assert board.rows()["b"].state == WAITING


def test_a_claim_that_is_repeated_because_its_answer_was_lost_still_holds(board):
    seen = board.rows()["a"]
    assert board.claim(seen, RUNNING, "w")
    assert board.claim(seen, RUNNING, "w")
    assert not board.claim(seen, RUNNING, "other")


def test_a_run_that_was_taken_over_no_longer_listens_to_its_first_worker(board):
    assert board.claim(board.rows()["a"], RUNNING, "first")
    assert board.beat("a", "first")
    assert board.claim(board.rows()["a"], RUNNING, "second")
    assert not board.beat("a", "first")
    assert not board.note("a", "first", state=TRAINED)
    board.give_back("a", "first", WAITING)
    row = board.rows()["a"]
    assert (row.state, row.owner, row.takeovers) == (RUNNING, "second", 1)


def test_a_beat_between_look_and_claim_saves_the_run(board):
    assert board.claim(board.rows()["a"], RUNNING, "first")
    seen = board.rows()["a"]
    board.beat("a", "first")
    assert not board.claim(seen, RUNNING, "second")


def test_adding_again_changes_nothing_and_another_recipe_is_refused(board):
    board.claim(board.rows()["a"], RUNNING, "w")
    board.add({"a": {"model": "m"}, "c": {"model": "m"}})
    assert {name: row.state for name, row in board.rows().items()} == {"a": RUNNING, "b": WAITING, "c": WAITING}
    with pytest.raises(RecipeError, match=r"(?s)holds s/a with another recipe.*model: 'm' in the folder, 'n' now"):
        board.add({"a": {"model": "n"}})


def test_sweeps_in_one_database_do_not_see_each_other(board):
    other = Board(board.database, "t")
    other.add({"a": {"model": "n"}})
    other.propose("x", 0, {"p": 1})
    other.propose("x", 0, {"p": 2})
    assert board.rows()["a"].recipe == {"model": "m"}
    assert (board.proposed(), other.proposed()) == ({}, {"x": [{"p": 1}]})


def test_a_silent_worker_is_given_its_time_and_more_after_an_outage(board):
    now = [0.0]
    watch = Watch(board, patience=10, clock=lambda: now[0])
    board.claim(board.rows()["a"], RUNNING, "elsewhere/1/2/3")

    def abandoned(at):
        now[0] = at
        return watch.abandoned(board.rows()["a"])

    assert [abandoned(at) for at in (0, 9, 11)] == [False, False, True]
    board.beat("a", "elsewhere/1/2/3")
    assert [abandoned(at) for at in (12, 21)] == [False, False]
    board.database.outages += 1
    assert [abandoned(at) for at in (23, 32, 34)] == [False, False, True]
    assert not watch.abandoned(board.rows()["b"])


def test_a_worker_of_this_machine_is_gone_when_its_process_is():
    own = new_owner()
    where, number, began, token = own.split("/")
    assert where == machine()
    assert not is_gone(own)
    assert is_gone("/".join([where, number, "1.00", token]))
    assert is_gone("/".join([where, "4194999", began, token]))
    assert not is_gone("/".join(["another", "4194999", began, token]))
    assert not is_gone("")


def test_a_database_of_before_steps_were_noted_goes_on(board):
    engine = board.database.engine
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE foretoken_runs DROP COLUMN step"))
        connection.execute(
            text(
                "INSERT INTO foretoken_runs (sweep, run, recipe, state, owner, beat, takeovers, seconds) "
                "VALUES ('s', 'old', '{}', 'running', 'me', 5, 2, 1.5)"
            )
        )
    for _ in range(2):
        again = Board(board.database, "s")
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
def test_what_no_sweep_has_written_is_said_in_one_line(board, column, value, said):
    with board.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE foretoken_runs SET {column} = :value WHERE run = 'a'"), {"value": value})
    with pytest.raises(DatabaseError, match=re.escape(said)) as refused:
        board.rows()
    assert "\n" not in str(refused.value)
