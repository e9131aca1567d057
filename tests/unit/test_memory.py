"""The allocator: when foretoken sets it by itself, and who can say no. Each case is a process of its own."""

import os
import subprocess
import sys

import pytest

from foretoken import memory

CODE = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from foretoken.memory import malloc_is_tuned, tune_malloc, tune_malloc_by_default
{code}
print(malloc_is_tuned())
"""
BY_DEFAULT = "tune_malloc_by_default(); tune_malloc_by_default()"
IN_USE = """
import foretoken, torch
from peft import get_peft_model
from transformers import BertConfig, BertForSequenceClassification
config = BertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=9)
make = lambda: BertForSequenceClassification(config)
adapt = lambda model: get_peft_model(model, foretoken.PrefixPropagationConfig(task_type="SEQ_CLS"))
"""
ON_GLIBC = pytest.mark.skipif(not memory._is_glibc(), reason="needs glibc")


def said(code, **variables):
    environment = {name: value for name, value in os.environ.items() if name != memory.OFF_SWITCH}
    command = [sys.executable, "-c", CODE.format(code=code)]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
    *log, answer = done.stdout.splitlines()
    return answer == "True", [line for line in log if line.startswith("allocator")]


@ON_GLIBC
def test_it_is_set_and_said_once():
    assert said(BY_DEFAULT) == (True, ["allocator: glibc keeps freed memory (FORETOKEN_MALLOC=0: not)"])


@ON_GLIBC
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"FORETOKEN_MALLOC": "0"}, "FORETOKEN_MALLOC=0"),
        ({"MALLOC_ARENA_MAX": "2"}, "MALLOC_ARENA_MAX is set"),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, "GLIBC_TUNABLES is set"),
    ],
)
def test_who_has_decided_is_left_alone(variables, reason):
    assert said(BY_DEFAULT, **variables) == (False, [f"allocator: left as it is ({reason})"])


@ON_GLIBC
def test_an_explicit_yes_goes_before_variables_of_glibc():
    assert said(BY_DEFAULT, MALLOC_ARENA_MAX="2", FORETOKEN_MALLOC="1")[0]
    assert said("tune_malloc()", MALLOC_ARENA_MAX="2")[0]
    assert said(BY_DEFAULT, GLIBC_TUNABLES="glibc.rtld.nns=3")[0]


@ON_GLIBC
def test_an_explicit_no_holds_until_an_explicit_yes():
    assert not said(f"tune_malloc(False); {BY_DEFAULT}")[0]
    assert said("tune_malloc(False); tune_malloc()")[0]


def test_another_device_is_left_alone():
    assert said("tune_malloc_by_default(device='cuda')") == (False, [])


@pytest.mark.parametrize(
    ("mapped", "name"),
    [
        ("7f0 r-xp 0 00:01 7 /usr/lib/libc.so.6\n7f1 r-xp 0 00:01 8 /usr/lib/libjemalloc.so.2\n", "libjemalloc.so.2"),
        ("7f1 r-xp 0 00:01 8 /opt/libtcmalloc_minimal.so.4.5\n", "libtcmalloc_minimal.so.4.5"),
        ("7f1 r-xp 0 00:01 8 /usr/lib/libc.so.6\n", None),
    ],
)
def test_another_allocator_is_found_among_the_loaded_libraries(monkeypatch, tmp_path, mapped, name):
    (tmp_path / "maps").write_text(mapped)
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    assert memory.other_allocator() == (f"{name} is loaded" if name else None)
    monkeypatch.delenv(memory.OFF_SWITCH, raising=False)
    monkeypatch.setitem(memory._state, "tuned", False)
    if name:
        assert not memory.tune_malloc_by_default()


@ON_GLIBC
@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("make()", False),
        ("adapt(make())", True),
        ("foretoken.speed_up(make())", True),
        ("foretoken.speed_up(make(), malloc=False)", False),
        ("foretoken.tune_malloc(False); adapt(make())", False),
        ("adapt(make().to('meta'))", False),
    ],
)
def test_what_sets_it_in_python(use, expected):
    assert said(IN_USE + use) == (
        expected,
        ["allocator: glibc keeps freed memory (FORETOKEN_MALLOC=0: not)"] if expected else [],
    )
