"""The rows of loaded data, whatever split they are in."""


def texts_of(loaded, column="text"):
    """Return the text of every document by its id."""
    return {row["id"]: row[column] for split in loaded.splits.values() for row in split}
