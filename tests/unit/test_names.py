"""Names of runs, sweeps and variants: what is a plain folder name on every system, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken.errors import ConfigError
from foretoken.names import LONGEST, check_name, plain_name

PLAIN = ("learning_rate=0.001,seed=1", "mail (2)", "naïve-größe", "a" * LONGEST, "x#1 & y", "-x", "com")
BAD = {
    "": "is empty",
    ".": "begins with a dot",
    "..": "begins with a dot",
    ".git": "begins with a dot",
    "a/b": "holds the character '/'",
    "a\\b": "holds the character",
    "a:b": "holds the character ':'",
    "a\nb": r"holds the character '\\n'",
    "a\x00b": r"holds the character '\\x00'",
    "a\u202eb": r"holds the character '\\u202e'",
    "a\ud800b": r"holds the character '\\ud800'",
    " a": "begins or ends with a space",
    "a.": "ends with a dot",
    "NUL.txt": "device on Windows",
    "é" * (LONGEST // 2 + 1): "is longer than 150",
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_names_pass_and_stay(name):
    check_name(name, what="name")
    assert plain_name(name) == name


@pytest.mark.parametrize(("name", "problem"), BAD.items())
def test_other_names_are_refused_in_one_short_printable_line(name, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        check_name(name, what="training.name")
    message = str(caught.value)
    assert message.startswith("training.name: got ")
    assert message.isprintable()
    assert len(message) < 300


@given(st.text(st.characters()))
def test_any_text_becomes_a_plain_name(text):
    check_name(plain_name(text), what="name")
