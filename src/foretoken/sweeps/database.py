"""The database of a sweep: SQLite or PostgreSQL, waited for while it is down."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from foretoken.errors import ConfigError, ForetokenError, one_line
from foretoken.files import make_folder
from foretoken.sweeps.config import StorageOptions

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

log = logging.getLogger(__name__)
T = TypeVar("T")
_LONGEST_LOCK = 60.0  # seconds that SQLite itself waits for another writer
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between two attempts
INSTALL = "pip install 'foretoken[sweep]'"
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# libpq gives no code when a connection is refused for good, only these words
_HOPELESS = re.compile(
    r"password authentication failed|no password supplied|(database|role) \".*\" does not exist|no pg_hba\.conf entry|"
    r"permission denied|unable to open database file|file is not a database|readonly database|"
    r"invalid connection option",
)


class DatabaseError(ForetokenError, OSError):
    """The database cannot be used, or stayed away for too long."""


class Database:
    """Runs transactions, and repeats them until the database is back.

    A transaction runs twice if the connection breaks during its commit, so it must leave the same state then.
    """

    def __init__(self, options: StorageOptions, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self.url = parse_url(options.url or "")
        self.give_up_after = options.give_up_after
        self.outages = 0
        self._sleep = sleep
        self._saying = threading.Lock()
        self.engine = _engine(self.url, patience=options.give_up_after)

    @property
    def place(self) -> str:
        """Where the database is, without its password."""
        return describe(self.url)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Do `work` in a transaction and return its result.

        Raises:
            DatabaseError: refused for good, or down for longer than `give_up_after`.
        """
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        began, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                with self.engine.begin() as connection:
                    result = work(connection)
            except DBAPIError as error:
                self._give_up(error, time.monotonic() - began)
                self._wait(error, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except UnicodeDecodeError as error:  # the names of a damaged file's tables, from the driver itself
                raise DatabaseError(
                    f"the database {self.place} is damaged: {one_line(str(error))}; restore it, or name another one "
                    "with --storage"
                ) from error
            except SQLAlchemyError as error:
                raise DatabaseError(f"the database {self.place} cannot be used: {first_line(error)}") from error
            else:
                if pause > FIRST_PAUSE:
                    log.info("the database %s is back", self.place)
                return result

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _give_up(self, error: Exception, waited: float) -> None:
        reason = first_line(error)
        if not _may_pass(error) or _HOPELESS.search(str(error)):
            raise DatabaseError(f"the database {self.place} cannot be used: {reason}") from error
        if waited >= self.give_up_after:
            raise DatabaseError(
                f"the database {self.place} has been down for {waited:.0f} s: {reason}; "
                "start it and give the same command again: what was done is kept"
            ) from error

    def _wait(self, error: Exception, pause: float) -> None:
        with self._saying:
            self.outages += 1
        log.warning(
            "the database %s does not answer (%s); trying again in %.0f s", self.place, first_line(error), pause
        )
        self._sleep(pause)


def parse_url(text: str) -> URL:
    """Return the URL of a database with its environment variables filled in and its driver named.

    Raises:
        ConfigError: a variable that is not set, no URL, or a database of another kind.
    """
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise ConfigError(f"a sweep needs optuna and SQLAlchemy; {INSTALL}") from None
    missing = [name for name in _VARIABLE.findall(text) if name not in os.environ]
    if missing:
        raise ConfigError(f"storage: the environment variable {missing[0]} is not set")
    expected = "expected sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        url = make_url(_VARIABLE.sub(lambda match: os.environ[match[1]], text))
    except (ArgumentError, ValueError):
        raise ConfigError(f"storage: this is no URL of a database; {expected}") from None  # it may hold a password
    kind = url.get_backend_name()
    if kind == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigError(f"storage: a database in memory, which no other process reaches; {expected}")
    if kind not in _DRIVERS:
        raise ConfigError(f"storage: a {kind} database; {expected}")
    return url.set(drivername=_DRIVERS[kind])


def describe(url: URL) -> str:
    """Return where a database is, without user and password.

    >>> describe(parse_url("postgresql://ann:secret@db.example.org:5433/sweeps"))
    'postgresql://db.example.org:5433/sweeps'
    """
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{url.host or url.query.get('host', 'localhost')}{port}/{url.database or ''}"


def first_line(error: Exception) -> str:
    """Return the driver's message, without SQLAlchemy's link and the statement."""
    lines = [line.strip() for line in str(getattr(error, "orig", error)).splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def _engine(url: URL, *, patience: float) -> Engine:
    from sqlalchemy import create_engine

    if url.get_backend_name() == "sqlite":
        make_folder(Path(str(url.database)).parent)
        return create_engine(url, connect_args={"timeout": min(_LONGEST_LOCK, patience)})
    try:
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 10})
    except ImportError:
        raise ConfigError(f"a sweep in PostgreSQL needs psycopg; {INSTALL}") from None


def _may_pass(error: Exception) -> bool:
    """Tell whether waiting may help: lost connections and locks, not a wrong statement."""
    from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

    if isinstance(getattr(error, "orig", None), sqlite3.Error):
        return "is locked" in str(error)
    return isinstance(error, OperationalError | InterfaceError | InternalError) or bool(
        getattr(error, "connection_invalidated", False)
    )
