"""The database: waited for while it is down, refused at once where waiting is no use, its password never said."""

import logging
import sqlite3

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from foretoken.errors import ConfigError
from foretoken.sweeps.config import StorageOptions
from foretoken.sweeps.database import Database, DatabaseError, describe, parse_url


@pytest.fixture
def database(tmp_path):
    pauses = []
    database = Database(StorageOptions(url=f"sqlite:///{tmp_path}/x.db", give_up_after=60), sleep=pauses.append)
    database.pauses = pauses
    yield database
    database.close()


def failing(times, words="database is locked"):
    left = [times]

    def work(connection):
        left[0] -= 1
        if left[0] >= 0:
            raise OperationalError("SELECT secret", {}, sqlite3.OperationalError(words))
        return connection.execute(sqlalchemy.text("select 7")).scalar()

    return work


def test_it_is_tried_again_with_growing_pauses_and_said(database, caplog):
    caplog.set_level(logging.INFO, "foretoken")
    assert database.run(failing(4)) == 7
    assert database.pauses == [1, 2, 4, 8]
    assert database.outages == 4
    said = [record.getMessage() for record in caplog.records]
    assert said[0].endswith("x.db does not answer (database is locked); trying again in 1 s")
    assert said[-1].endswith("is back")


def test_it_is_given_up_when_its_time_is_over(database, monkeypatch):
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr("foretoken.sweeps.database.time.monotonic", lambda: next(clock))
    with pytest.raises(DatabaseError, match=r"has been down for 75 s.*give the same command again"):
        database.run(failing(100))


@pytest.mark.parametrize("words", ['password authentication failed for user "u"', 'database "x" does not exist'])
def test_what_waiting_does_not_mend_is_said_at_once(database, words):
    with pytest.raises(DatabaseError, match="cannot be used: ") as refused:
        database.run(failing(100, words))
    assert words in str(refused.value)
    assert "SELECT" not in str(refused.value)
    assert database.pauses == []


def test_a_defect_of_ours_is_not_waited_for(database):
    with pytest.raises(DatabaseError, match="no such table"):
        database.run(lambda connection: connection.execute(sqlalchemy.text("select * from absent")))
    assert database.pauses == []


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "x.db").write_text("hello " * 1000)
    database = Database(StorageOptions(url=f"sqlite:///{tmp_path}/x.db"))
    with pytest.raises(DatabaseError, match="file is not a database"):
        database.run(lambda connection: connection.execute(sqlalchemy.text("select * from runs")))
    database.close()


def test_a_file_whose_damage_sqlite_cannot_say_in_utf_8_is_refused(tmp_path):
    file = tmp_path / "x.db"
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE wellformed (a)")
    other.close()
    file.write_bytes(file.read_bytes().replace(b"CREATE", b"CRE\x80TE"))  # SQLite's message repeats the byte
    database = Database(StorageOptions(url=f"sqlite:///{file}"))
    with pytest.raises(DatabaseError, match=r"x\.db is damaged: .*; restore it") as caught:
        database.run(lambda connection: connection.execute(sqlalchemy.text("SELECT * FROM wellformed")).all())
    assert str(caught.value).isprintable()
    database.close()


def test_urls(monkeypatch):
    monkeypatch.setenv("SWEEP_PASSWORD", "s3cret")
    url = parse_url("postgresql://ann:${SWEEP_PASSWORD}@db:5433/sweeps")
    assert (url.drivername, url.password) == ("postgresql+psycopg", "s3cret")
    assert describe(url) == "postgresql://db:5433/sweeps"
    assert describe(parse_url("postgres:///sweeps?host=/run/pg")) == "postgresql:///run/pg/sweeps"
    for text, said in {
        "postgresql://${NOT_SET_HERE}@db/x": "environment variable NOT_SET_HERE is not set",
        "mysql://u:s3cret@db/x": "a mysql database; expected sqlite",
        "u:s3cret@db/x": "no URL of a database",
    }.items():
        with pytest.raises(ConfigError, match=said) as refused:
            parse_url(text)
        assert "s3cret" not in str(refused.value)


def test_without_psycopg_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"needs psycopg; pip install 'foretoken\[sweep\]'"):
        Database(StorageOptions(url="postgresql://h/d"))
