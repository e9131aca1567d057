"""Ray Data and Ray Serve on a real local cluster of two workers."""

import os
import re
import signal
import threading
from dataclasses import replace

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foretoken.errors import ConfigError
from foretoken.serving.ray import predict as door

from support.clusters import local_cluster
from support.served import started

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings, of any kind


@pytest.fixture(scope="module")
def cluster():
    with local_cluster():
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A parquet file of 240 documents for three adapters."""
    file = tmp_path_factory.mktemp("documents") / "in.parquet"
    texts = [f"word{row % 40} " * (row % 9 + 1) + "lunch" for row in range(240)]
    names = [("spam", "topic", "stars")[row % 3] for row in range(240)]
    pq.write_table(pa.table({"id": [f"d{row}" for row in range(240)], "text": texts, "name": names}), file)
    return file


def options(adapters, source, output, **more):
    folder = adapters[1]["spam"].parent
    return door.RayOptions(
        adapter=folder, input=source, output=output, adapter_column="name", workers=2, rows_per_block=8, **more
    )


def test_a_killed_worker_loses_no_row_and_doubles_none(cluster, adapters, source, tmp_path, monkeypatch):
    killed, results = [], door._results

    def killing(*given):
        for found in results(*given):
            if not killed:
                killed.append(int(found["process"]))
                os.kill(killed[0], signal.SIGKILL)
            else:
                processes.add(int(found["process"]))
            yield found

    processes = set()
    monkeypatch.setattr(door, "_results", killing)
    done = door.predict(options(adapters, source, tmp_path / "out"))
    assert (done.rows, done.errors, done.kept) == (240, 0, 0)
    assert killed
    assert not psutil.pid_exists(killed[0]) or psutil.Process(killed[0]).status() == psutil.STATUS_ZOMBIE
    found = pq.read_table(tmp_path / "out").sort_by("row")
    assert found["row"].to_pylist() == list(range(240))
    assert found["id"].to_pylist() == [f"d{row}" for row in range(240)]
    assert [label is None for label in found["label"].to_pylist()] == [row % 3 == 2 for row in range(240)]


def test_a_repeated_command_does_what_is_missing_alone(cluster, adapters, source, tmp_path):
    output = tmp_path / "out"
    door.predict(options(adapters, source, output))
    before = {file.name: file.stat().st_mtime_ns for file in output.glob("part-*")}
    gone = sorted(before)[3:5]
    for name in gone:
        (output / name).unlink()
    assert door.predict(options(adapters, source, output)) == door.Done(240, 0, 224)
    after = {file.name: file.stat().st_mtime_ns for file in output.glob("part-*")}
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} == set(gone)


def test_more_workers_than_cpus_are_refused(cluster, adapters, source, tmp_path):
    with pytest.raises(ConfigError, match="--workers: got 3, but the Ray cluster has 2 CPUs"):
        door.predict(replace(options(adapters, source, tmp_path / "out"), workers=3))


def test_replicas_answer_and_drain(adapters):
    words = ("--ray", "--replicas", "2", f"mail={adapters[1]['spam']}", "--admin-key", "sesame")
    headers = {"authorization": "Bearer sesame"}
    with started(*words) as (server, line):
        assert line.startswith("serving model in fp32 with 2 replicas at http://127.0.0.1:"), line
        address = line.split()[-1]
        with httpx.Client(base_url=address, headers=headers, timeout=300) as client:
            answers = []

            def ask(*texts):
                found = client.post("/classify", json={"model": "mail", "input": texts})
                answers.append(len(found.json()["data"]))

            def accepted():
                """How many documents the replica has taken that answers this time; replicas take turns."""
                page = httpx.get(f"{address}/metrics", headers=headers, timeout=60).text
                found = re.search(r'foretoken_documents_total{adapter="mail"} (.*)', page)
                return float(found[1]) if found else 0.0

            ask("word1 lunch")
            assert client.delete("/v1/adapters/mail").status_code == 409
            asking = threading.Thread(target=ask, args=["word1 lunch " * 20] * 250)
            asking.start()
            while accepted() < 250:
                assert asking.is_alive() or answers[1:]
            server.send_signal(signal.SIGTERM)
            asking.join()
            assert answers == [1, 250]
        assert server.wait(180) == 0
