"""`foretoken push`: put an adapter or a model on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretoken.options import option
from foretoken_cli.console import described, say, table
from foretoken_cli.parser import parse


@dataclass(frozen=True)
class PushCommand:
    """The command line of `foretoken push`."""

    source: Path = option("folder of a finished run, of an adapter or of a model")
    repository: str = option("its name on the hub: owner/name")
    private: bool = option("make the repository a private one", False)
    base_model: str | None = option(
        "name on the hub of the model that the adapter is for (default: what it was trained with)", None
    )
    dry_run: bool = option("say what would be pushed, and send nothing", False)


def run(words: Sequence[str]) -> int:
    """Push what a run has saved, or say what would be pushed, and print the repository's address."""
    epilog = "The card and the configs go without paths of this machine; predictions and run.json stay here."
    options = parse(PushCommand, "push", words, described(__doc__), epilog=epilog)
    from foretoken.inference.push import push

    address, sizes = push(
        options.source,
        options.repository,
        private=options.private,
        base_model=options.base_model,
        dry_run=options.dry_run,
    )
    if options.dry_run:
        table(("file", "bytes"), [[name, f"{size:,}"] for name, size in sizes.items()])
    say(f"would go to {address}" if options.dry_run else address)
    return 0
