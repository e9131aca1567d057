"""The run table: one row of the database per run, from which workers take them.

A worker takes a run with one UPDATE that has an effect only if the row is as it was read (state, owner and beat), so
one of several workers gets it, whatever their clocks say. While the worker holds the run it raises the row's beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from types import NoneType
from typing import TYPE_CHECKING, Any

from foretoken.errors import RecipeError, cut, quoted
from foretoken.options import Values
from foretoken.sweeps.database import Database, DatabaseError
from foretoken.sweeps.space import Params
from foretoken.training.run.record import differing_keys

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table

WAITING, RUNNING, TRAINED, MEASURING, MEASURED = "waiting", "running", "trained", "measuring", "measured"
PRUNED, FAILED, UNMEASURED = "pruned", "failed", "unmeasured"
STATES = (WAITING, RUNNING, TRAINED, MEASURING, MEASURED, PRUNED, FAILED, UNMEASURED)
HELD = (RUNNING, MEASURING)  # by a worker
SCORED = (TRAINED, MEASURING, MEASURED, UNMEASURED)  # validation is known
BROKEN = (FAILED, UNMEASURED)


@dataclass(frozen=True)
class RunRow:
    """A run, and the worker that holds it (`owner`).

    `step` is the furthest that any worker got, `takeovers` the number of workers that died without getting further.
    """

    run: str
    recipe: Values
    state: str = WAITING
    owner: str = ""
    beat: int = 0
    takeovers: int = 0
    step: int = 0
    seconds: float = 0.0
    validation: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    error: str | None = None
    history: Values | None = None


_FIELDS = tuple(item.name for item in fields(RunRow))
_KINDS: Values = {
    "run": str,
    "recipe": dict,
    "state": str,
    "owner": str,
    "beat": int,
    "takeovers": int,
    "step": int,
    "seconds": (int, float),
    "validation": (dict, NoneType),
    "test": (dict, NoneType),
    "error": (str, NoneType),
    "history": (dict, NoneType),
}


class RunTable:
    """The runs of one sweep in the database.

    The column "contestant" is older than the word variant; databases keep it.
    """

    def __init__(self, database: Database, sweep: str) -> None:
        self.database = database
        self.sweep = sweep
        self.runs, self.candidates = _tables()
        self._insert = _insert_or_leave(database)
        database.run(self._make_tables)

    def rows(self) -> dict[str, RunRow]:
        """Return all rows by the name of the run."""
        query = self.runs.select().where(self.runs.c.sweep == self.sweep)
        found = self._read(query)
        return {values["run"]: self._row(dict(values)) for values in found}

    def add(self, recipes: Mapping[str, Values]) -> dict[str, Values]:
        """Add the runs that are missing, and return the recipes as the table holds them.

        Raises:
            RecipeError: a run of that name is there, with another recipe.
        """
        rows = [{"sweep": self.sweep} | vars(RunRow(run, recipe)) for run, recipe in recipes.items()]
        if rows:
            self.database.run(lambda connection: self._insert(connection, self.runs, rows))
        known = {run: row.recipe for run, row in self.rows().items() if run in recipes}
        self._refuse_others(known, recipes)
        return known

    def claim(self, seen: RunRow, state: str, worker_id: str) -> bool:
        """Take a run that is still as it was seen; tell whether this worker got it."""
        runs, taken_over = self.runs, seen.takeovers + (seen.state in HELD)
        as_seen = (runs.c.state == seen.state, runs.c.owner == seen.owner, runs.c.beat == seen.beat)
        new = {"state": state, "owner": worker_id, "beat": seen.beat + 1, "takeovers": taken_over, "error": None}
        new["step"] = seen.step

        def work(connection: Connection) -> bool:
            connection.execute(runs.update().where(*self._is(seen.run), *as_seen).values(new))
            now = connection.execute(runs.select().where(*self._is(seen.run))).mappings().one()
            return (
                now["owner"] == worker_id and now["state"] == state
            )  # true also if the answer to a first try was lost

        return self.database.run(work)

    def beat(self, run: str, worker_id: str, *, step: int = 0) -> bool:
        """Raise the beat of a run and note its step; tell whether the worker still holds it.

        A step beyond all earlier ones sets `takeovers` back: the run was not what killed the workers before.
        """
        from sqlalchemy import case

        runs = self.runs
        further = runs.c.step < step
        progress = {"step": case((further, step), else_=runs.c.step)}
        progress["takeovers"] = case((further, 0), else_=runs.c.takeovers)
        return self.note(run, worker_id, beat=runs.c.beat + 1, **progress)

    def note(self, run: str, worker_id: str, **values: object) -> bool:
        """Write columns of a run; tell whether the worker still held it."""
        change = self.runs.update().where(*self._is(run), self.runs.c.owner == worker_id).values(values)
        return self.database.run(lambda connection: connection.execute(change).rowcount == 1)

    def give_back(self, run: str, worker_id: str, state: str) -> None:
        """Free a run for other workers."""
        change = self.runs.update().where(*self._is(run), self.runs.c.owner == worker_id)
        self.database.run(lambda connection: connection.execute(change.values(state=state, owner="")))

    def reset(self, run: str, seen: str, state: str) -> None:
        """Set a broken run back to `state`, so that a worker takes it again."""
        change = self.runs.update().where(*self._is(run), self.runs.c.state == seen)
        values = {"state": state, "owner": "", "error": None, "takeovers": 0}
        self.database.run(lambda connection: connection.execute(change.values(values)))

    def proposed(self) -> dict[str, list[Params]]:
        """Return the parameters of the proposed candidates by variant, in order."""
        table = self.candidates
        query = table.select().where(table.c.sweep == self.sweep).order_by(table.c.number)
        found: dict[str, list[Params]] = {}
        for row in self._read(query):
            found.setdefault(row["contestant"], []).append(self._params(dict(row)))
        return found

    def propose(self, variant: str, number: int, params: Values) -> None:
        """Add a proposed candidate, unless another worker has added one with that number."""
        row = {"sweep": self.sweep, "contestant": variant, "number": number, "params": dict(params)}
        self.database.run(lambda connection: self._insert(connection, self.candidates, [row]))

    def _make_tables(self, connection: Connection) -> None:
        """Create the tables, or the column `step` in tables of earlier versions."""
        from sqlalchemy import inspect, text
        from sqlalchemy.exc import OperationalError

        self.runs.metadata.create_all(connection)
        if "step" not in {column["name"] for column in inspect(connection).get_columns(self.runs.name)}:
            unless = "" if connection.dialect.name == "sqlite" else "IF NOT EXISTS "
            statement = f"ALTER TABLE {self.runs.name} ADD COLUMN {unless}step INTEGER NOT NULL DEFAULT 0"
            with suppress(OperationalError):  # another worker was first; a real reason comes with the first SELECT
                connection.execute(text(statement))

    def _read(self, query: Select[Any]) -> Sequence[RowMapping]:
        try:
            return self.database.run(lambda connection: connection.execute(query).mappings().all())
        except (ValueError, TypeError, RecursionError) as error:  # JSON that is none
            raise self._damaged(str(error)) from error

    def _row(self, values: Values) -> RunRow:
        """Return a row after a check of its types, on which the rest of the sweep relies."""
        for name, kinds in _KINDS.items():
            if not isinstance(values[name], kinds) or isinstance(values[name], bool):
                raise self._damaged(f"{name} of the run {values['run']} is {quoted(values[name])}")
        if values["state"] not in STATES:
            raise self._damaged(f"the run {values['run']} is {quoted(values['state'])}")
        for name in ("validation", "test"):
            wrong = [value for value in (values[name] or {}).values() if not isinstance(value, int | float)]
            if wrong:
                raise self._damaged(f"{name} of the run {values['run']} has the score {quoted(wrong[0])}")
        return RunRow(**{key: values[key] for key in _FIELDS})

    def _params(self, row: Values) -> Params:
        if not isinstance(row["params"], dict):
            raise self._damaged(f"candidate {row['number']} of {row['variant']} is {quoted(row['params'])}")
        return row["params"]

    def _damaged(self, what: str) -> DatabaseError:
        return DatabaseError(
            f"the database {self.database.place} holds what no sweep has written: {cut(what, 200)}; restore it, "
            "or name another one with --storage"
        )

    def _is(self, run: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return self.runs.c.sweep == self.sweep, self.runs.c.run == run

    def _refuse_others(self, known: Mapping[str, Values], recipes: Mapping[str, Values]) -> None:
        for run, recipe in recipes.items():
            differing = differing_keys(known[run], recipe)
            if differing:
                head = f"{self.database.place} holds {self.sweep}/{run} with another recipe; choose another `name`"
                raise RecipeError(head, differing)


def _tables() -> tuple[Table, Table]:
    from sqlalchemy import JSON, Column, Float, Integer, MetaData, String, Table, Text

    metadata = MetaData()
    runs = Table(
        "foretoken_runs",
        metadata,
        Column("sweep", String, primary_key=True),
        Column("run", String, primary_key=True),
        Column("recipe", JSON, nullable=False),
        Column("state", String, nullable=False),
        Column("owner", String, nullable=False),
        Column("beat", Integer, nullable=False),
        Column("takeovers", Integer, nullable=False),
        Column("step", Integer, nullable=False, server_default="0"),
        Column("seconds", Float, nullable=False),
        *(Column(name, JSON(none_as_null=True)) for name in ("validation", "test", "history")),
        Column("error", Text),
    )
    candidates = Table(
        "foretoken_candidates",
        metadata,
        Column("sweep", String, primary_key=True),
        Column("contestant", String, primary_key=True),
        Column("number", Integer, primary_key=True),
        Column("params", JSON, nullable=False),
    )
    return runs, candidates


def _insert_or_leave(database: Database) -> Callable[[Connection, Table, Sequence[Values]], None]:
    """Return an INSERT, in the dialect of the database, that keeps rows which exist already."""
    from sqlalchemy.dialects import postgresql, sqlite

    insert: Any = sqlite.insert if database.engine.dialect.name == "sqlite" else postgresql.insert

    def work(connection: Connection, table: Table, rows: Iterable[Values]) -> None:
        connection.execute(insert(table).on_conflict_do_nothing(), list(rows))

    return work
