"""The exceptions of foretoken: one small tree, each branch also a builtin.

The command line prints the message of any :class:`ForetokenError` as one line and exits with code 2.
A message says what was got, what was expected, and how to mend it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ForetokenError(Exception):
    """Base of every error that foretoken raises on purpose."""


class ConfigError(ForetokenError, ValueError):
    """A method's or an option's value is not usable."""


class RecipeError(ConfigError):
    """A recipe has one or more errors; all of them are shown together."""


class BackboneError(ForetokenError, ValueError):
    """The model is of a family, or a shape, that cannot carry the adapter."""


class AdapterError(ForetokenError, ValueError):
    """An adapter folder, file or name is not usable."""


class DataError(ForetokenError, ValueError):
    """A data file, folder or column is not usable."""


class SaveError(ForetokenError, OSError):
    """A file could not be written; nothing half-written is left behind."""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for a near miss, else an empty string.

    >>> did_you_mean("prefix-propagaton", ["prefix-propagation", "bitfit"])
    " (did you mean 'prefix-propagation'?)"
    >>> did_you_mean("zzz", ["bitfit"])
    ''
    """
    near = get_close_matches(got, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
