"""`foretoken tasks`: list the built-in data sets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from foretoken.cli.console import described, table


def run(arguments: Sequence[str]) -> int:
    """Print the table of tasks."""
    argparse.ArgumentParser(prog="foretoken tasks", description=described(__doc__), allow_abbrev=False).parse_args(
        arguments
    )
    from foretoken.data.tasks import TASKS

    rows = [(task.name, task.title, len(task.labels), task.metric, task.licence) for task in TASKS.values()]
    table(("task", "title", "labels", "metric", "licence"), rows)
    return 0
