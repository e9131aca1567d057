"""Stages: fields that are searched one group after the other, each from the best of those before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from foretoken.options import Errors
from foretoken.sweeps.space import FieldValues, Params

Stages = Sequence[Sequence[str]]


def stages_of(space: Mapping[str, FieldValues], stages: Stages | None) -> list[list[str]]:
    """Return the fields of every stage that a space has something for; without stages all are searched at once."""
    if stages is None:
        return [list(space)]
    return [named for stage in stages if (named := [field for field in stage if field in space])]


def stage_grid(space: Mapping[str, FieldValues], stage: Sequence[str], start: Params | None = None) -> list[Params]:
    """Return every value of the stage's fields; the others are as in ``start``, or have their first value.

    >>> from foretoken.sweeps.space import ValueList
    >>> stage_grid({"rate": ValueList((0.1, 0.2)), "alpha": ValueList((1, 2))}, ["rate"])
    [{'rate': 0.1, 'alpha': 1}, {'rate': 0.2, 'alpha': 1}]
    """
    values = [values.grid or () if field in stage else _only(field, values, start) for field, values in space.items()]
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*values)]


def number_in_stages(space: Mapping[str, FieldValues], stages: Stages | None) -> int:
    """Return the number of different candidates: the best of a stage is among those of the next.

    >>> from foretoken.sweeps.space import ValueList
    >>> number_in_stages({"rate": ValueList((0.1, 0.2)), "alpha": ValueList((1, 2, 3))}, [["rate"], ["alpha"]])
    4
    """
    named = stages_of(space, stages)
    sizes = [math.prod(space[field].count or 0 for field in stage) for stage in named]
    return sum(sizes) - len(sizes) + 1


def stage_errors(space: Mapping[str, FieldValues], stages: Stages | None) -> Iterator[str]:
    """Yield the searched fields that are in no stage."""
    named = {field for stage in stages or () for field in stage}
    yield from (f"search.stages: no stage has {field}" for field in space if stages is not None and field not in named)


def field_errors(spaces: Sequence[Mapping[str, FieldValues]], stages: Stages | None) -> Errors:
    """Return what is wrong with the stages of a file whose variants search these spaces."""
    named = [field for stage in stages or () for field in stage]
    errors = [f"search.stages: {field} is named twice" for field in dict.fromkeys(named) if named.count(field) > 1]
    errors += [
        f"search.stages: {field} is searched by no variant; give its values in space"
        for field in dict.fromkeys(named)
        if not any(field in space for space in spaces)
    ]
    return errors + list(dict.fromkeys(line for space in spaces for line in stage_errors(space, stages)))


def _only(field: str, values: FieldValues, start: Params | None) -> tuple[object, ...]:
    return values.ends[:1] if start is None else (start[field],)
