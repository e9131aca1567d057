"""Keys and verbs of earlier versions that left, and what to use instead: one line, not a list of what there is."""

KEYS = {  # of recipes and sweep files, by their dotted names
    "retrieval": "sentence-transformers trains encoders for search, with foretoken's configs as well",
    "tasks": "train one recipe per task (`foretoken train a.yaml b.yaml`); one server answers for all of them",
    "storage": "leave it out; a sweep's state is in the folders of its runs, and --ray ADDRESS takes many machines",
    "prune": "leave it out; training.early_stopping_patience ends a run that gains nothing",
}
VERBS = {
    "bench": "python -m benchmarks NAME, in a clone of foretoken's repository",
}
TASKS = dict.fromkeys(  # of data.task
    ("medhop", "medhop-masked"), "name its files as data of your own, with data.problem candidates"
)


def gone(name: str, table: dict[str, str]) -> str | None:
    """Return what to say of a key or a verb that left; None of any other.

    >>> gone("bench", VERBS)
    "left foretoken: python -m benchmarks NAME, in a clone of foretoken's repository"
    """
    return f"left foretoken: {table[name]}" if name in table else None
