"""Let a server answer at a constant rate of arrivals for a while, and see whether its memory grows.

    python -m benchmarks.serving.soak RUN_OR_ADAPTER... --seconds 600 --rate 20

Requests have 1 to 4 documents of 8 to 400 words; one in twenty is broken or oversized, and some hang up. What the
server's process holds is written down by watched.py. Straight lines through the last third of it say what an hour would
add: an extrapolation.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
from benchmarks.suite.machine import hardware, versions

from foretoken.files import write_json

HERE = Path(__file__).parent
WORDS = ["the", "of", "prize", "lunch", "meeting", "winner", "report", "court", "music", "season", "letter", "water"]


def document(chance):
    length = int(min(400, max(8, chance.lognormvariate(4, 1))))
    return " ".join(chance.choices(WORDS, k=length))


async def send(client, chance, adapters, seen, seconds):
    start = time.perf_counter()
    try:
        if chance.random() < 0.05:
            bad = chance.choice([b"{", b"[" * 50_000, b'{"model": "nobody", "input": "a"}', b"a" * 9_000_000])
            answer = await client.post("/classify", content=bad, headers={"content-type": "application/json"})
        else:
            body = {"model": chance.choice(adapters), "input": [document(chance) for _ in range(chance.randint(1, 4))]}
            answer = await client.post("/classify", json=body, timeout=0.01 if chance.random() < 0.02 else 120)
        seen[answer.status_code] += 1
        if answer.status_code == 200:
            seconds.append(time.perf_counter() - start)
    except (httpx.TimeoutException, httpx.WriteError, httpx.ReadError):
        seen["hung up"] += 1


async def soak(address, options):
    chance, seen, seconds, tasks, sent = random.Random(0), Counter(), [], set(), 0
    limits = httpx.Limits(max_connections=500)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        adapters = [item["id"] for item in listed if item["task"] in ("classification", "regression")]
        start = time.perf_counter()
        while (now := time.perf_counter() - start) < options.seconds:
            task = asyncio.create_task(send(client, chance, adapters, seen, seconds))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
            await asyncio.sleep(max(0, sent / options.rate - now))
        await asyncio.gather(*tasks)
        alive = (await client.get("/health/ready")).status_code == 200
    return {
        "seconds": options.seconds,
        "rate": options.rate,
        "statuses": {str(status): count for status, count in sorted(seen.items(), key=str)},
        "p50_seconds": float(np.quantile(seconds, 0.5)) if seconds else None,
        "p95_seconds": float(np.quantile(seconds, 0.95)) if seconds else None,
        "ready_at_the_end": alive,
    }


def grown(samples, seconds):
    """Return what the last third of the load would add in an hour, by straight lines."""
    later = [one for one in samples if 2 * seconds / 3 <= one["seconds"] <= seconds]
    names = ("resident_mb", "malloc_used_mb", "malloc_held_mb", "objects", "blocks")
    times = [one["seconds"] for one in later]
    known = [name for name in names if len(later) > 2 and later[0][name] is not None]
    return {name: float(np.polyfit(times, [one[name] for one in later], 1)[0]) * 3600 for name in known}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=20, help="requests a second, whether or not they are answered")
    parser.add_argument("--every", type=float, default=15, help="seconds between two samples")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/serve-soak.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.jsonl"
        watched = [sys.executable, HERE / "watched.py", file, str(options.every), *options.folders]
        command = [*watched, "--port", "0", "--client-seconds", "10"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                address = server.stdout.readline().split()[-1]
                before = len(file.read_text().splitlines()) if file.exists() else 0
                found = asyncio.run(soak(address, options))
                samples = [json.loads(line) for line in file.read_text().splitlines()][before:]
                shift = samples[0]["seconds"]
                samples = [one | {"seconds": round(one["seconds"] - shift, 1)} for one in samples]
                found |= {"extrapolated_an_hour": grown(samples, options.seconds), "samples": samples}
                found |= {"hardware": hardware(), "versions": versions(), "load": os.getloadavg()}
                write_json(options.output, found)
                print(json.dumps({name: value for name, value in found.items() if name != "samples"}, indent=2))
            finally:
                server.terminate()
                print("exit code", server.wait(120), file=sys.stderr)


if __name__ == "__main__":
    main()
