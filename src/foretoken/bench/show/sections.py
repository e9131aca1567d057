"""What the report shows of each benchmark: tables and charts from the results alone."""

from __future__ import annotations

from collections.abc import Callable

from foretoken.bench.show.encoder import attention, encoder
from foretoken.bench.show.lengths import exported, families, padding, predicted
from foretoken.bench.show.methods import ahead_of_time, methods
from foretoken.bench.show.numbers import Results
from foretoken.bench.show.section import Section
from foretoken.bench.show.serving import mixed, serve

SECTIONS: dict[str, Callable[[Results], Section]] = {
    "attention": attention,
    "encoder": encoder,
    "methods": methods,
    "padding": padding,
    "families": families,
    "predict": predicted,
    "mixed": mixed,
    "serve": serve,
    "aot": ahead_of_time,
    "export": exported,
}
