"""Text files read strictly: UTF-8 or an error that says where the first bad byte is."""

from __future__ import annotations

from pathlib import Path

from foretoken.errors import DataError

_MAGIC = {
    b"\x1f\x8b": "a gzip archive: decompress it first (gunzip)",
    b"PK\x03\x04": "a zip archive: unpack it first (unzip)",
    b"\xfd7zXZ\x00": "an xz archive: decompress it first (unxz)",
    b"PAR1": "a parquet file: give it the suffix .parquet",
    b"%PDF": "a PDF: extract its text first (pdftotext)",
    b"\xff\xfe": "UTF-16 text: re-encode it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16 text: re-encode it with `iconv -f UTF-16 -t UTF-8`",
}
_BOM = b"\xef\xbb\xbf"


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes; DataError when it is absent, unreadable or empty."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the spelling, relative paths start at {Path.cwd()}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not content:
        raise DataError(f"{path}: the file is empty; expected at least one document")
    return content


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark.

    Raises:
        DataError: absent, empty, binary or not UTF-8; the message names line and byte column.
    """
    content = read_bytes(path)
    for magic, what in _MAGIC.items():
        if content.startswith(magic):
            raise DataError(f"{path}:1:1: not UTF-8 text but {what}")
    try:
        text = content.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + len(content) - len(content.removeprefix(_BOM))
        raise DataError(_not_utf8(path, content, offset)) from None
    if "\x00" in text:
        line, column = position(content, content.index(b"\x00"))
        raise DataError(f"{path}:{line}:{column}: a zero byte: this is a binary file, expected UTF-8 text")
    return text


def position(content: bytes, offset: int) -> tuple[int, int]:
    r"""Return line and byte column, both from 1, of an offset.

    >>> position(b"ab\ncd", 4)
    (2, 2)
    """
    before = content[:offset]
    return before.count(b"\n") + 1, offset - (before.rfind(b"\n") + 1) + 1


def _not_utf8(path: Path, content: bytes, offset: int) -> str:
    line, column = position(content, offset)
    return (
        f"{path}:{line}:{column}: byte 0x{content[offset]:02x} is not valid UTF-8; re-encode the file, "
        f"for example `iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8-{path.name}`"
    )
