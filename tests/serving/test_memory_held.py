"""What a server holds does not grow with the requests that it has answered: objects counted, no clock read."""

import gc
import logging
import os
import random

import pytest

from foretoken.memory import keep_few_primitives

VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def live():
    gc.collect()
    return len(gc.get_objects())


def ask(server, count, seed):
    chance = random.Random(seed)
    for number in range(count):
        text = " ".join(["word1"] * chance.randint(1, 60))
        if number % 10 == 0:
            server.post("/classify", content=chance.choice([b"{", b"[" * 1000, b'{"model": "nobody", "input": "a"}']))
        elif number % 10 == 1:
            server.post("/models/names", json={"inputs": text})
        else:
            assert server.post("/classify", json={"model": "spam", "input": [text, "lunch"]}).status_code == 200


@pytest.fixture
def _no_log():
    """pytest keeps every line of a log that another test has turned on."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_no_log")
def test_requests_leave_no_objects_behind(server):
    ask(server, 60, seed=0)
    before = live()
    ask(server, 200, seed=1)
    assert live() - before < 150  # less than one a request; threads and connections come and go


def test_somebody_who_has_said_how_many_kernels_are_kept_is_left_alone(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VARIABLES[1], "7")
    keep_few_primitives()
    assert VARIABLES[0] not in os.environ
    assert os.environ.pop(VARIABLES[2]) == "32"
    monkeypatch.delenv(VARIABLES[1])
    keep_few_primitives()
    assert os.environ.pop(VARIABLES[0]) == os.environ.pop(VARIABLES[2]) == "32"
