"""What a server holds does not grow with the requests that it has answered: objects counted, no clock read."""

import gc
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from foretoken.memory import keep_few_primitives

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
ENGINE = """
import gc, json, random, sys
from pathlib import Path
import torch
from foretoken.memory import keep_few_primitives
if sys.argv[2] == "few":
    keep_few_primitives()
from watched import glibc
from support.served import make_store
from foretoken.serving.engine import Engine, Request
from foretoken.serving.tasks import Classify, Document

torch.set_num_threads(1)
root, names, chance, found = Path(sys.argv[1]), ["spam", "stars"], random.Random(0), []
with Engine(make_store(root / "model", {name: root / name for name in names})) as engine:
    for count in (300, 300):
        for _ in range(count):
            texts = [" ".join(["word1"] * chance.randint(1, 60)) for _ in range(chance.randint(1, 12))]
            engine.submit(Request(chance.choice(names), [Document(text) for text in texts], Classify())).result(60)
        gc.collect()
        found.append({"used_mb": glibc()[0], "objects": len(gc.get_objects())})
print(json.dumps(found))
"""


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
    monkeypatch.delenv(VARIABLES[1])
    keep_few_primitives()
    assert os.environ.pop(VARIABLES[0]) == "128"


@pytest.mark.slow
def test_batches_of_ever_new_sizes_fill_no_memory(adapters):
    places = (ROOT / "src", ROOT / "tests", ROOT / "benchmarks" / "serving")
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, places))
    grown = {}
    for kept in ("few", "many"):
        command = [sys.executable, "-c", ENGINE, str(adapters[0].parent), kept]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        first, last = json.loads(done.stdout.splitlines()[-1])
        assert abs(last["objects"] - first["objects"]) < 300
        if last["used_mb"] is None:
            pytest.skip("without glibc nothing tells what is in use")
        grown[kept] = last["used_mb"] - first["used_mb"]
    assert grown["few"] < 0.5 * grown["many"]
    assert grown["few"] < 1.0
