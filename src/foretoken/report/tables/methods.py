"""What the methods of a report are, in a line each: what the names in its text and tables lead to."""

from __future__ import annotations

from typing import NamedTuple

from foretoken.report.runs.groups import Results


class MethodText(NamedTuple):
    """A method, the labels that a report has for it, what it trains, and its paper."""

    name: str
    labels: tuple[str, ...]
    title: str
    summary: str
    paper: str


def method_texts(results: Results) -> list[MethodText]:
    """Return the methods of the table of methods that a report has runs of, in its order."""
    if not results.groups:
        return []
    from foretoken.methods import METHODS  # brings torch and peft, which the rest of a report does without

    labels: dict[str, list[str]] = {}
    for group in results.groups:
        labels.setdefault(group.first.method, []).append(group.label)
    return [
        MethodText(name, tuple(dict.fromkeys(labels[name])), row.title, row.summary, row.paper)
        for name, row in METHODS.items()
        if name in labels
    ]
