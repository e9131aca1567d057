"""Reading ahead in a fused table's file, and what the layers of one batch share."""

import errno
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from foretoken.methods.aot import prefetch as aot_prefetch
from foretoken.methods.aot import table as aot_table
from foretoken.methods.aot.modules import FullyConnected, Fused, TokenEntry, TokensOfBatch
from foretoken.methods.aot.prefetch import GAP, LARGEST, Prefetcher
from foretoken.methods.aot.table import FusedTable, write_table

L, V, D = 3, 4000, 64
pytestmark = pytest.mark.skipif(not aot_prefetch.SUPPORTED, reason="this system does not know the calls")


def values(layer, ids):
    return (layer * V + ids)[:, None] + torch.arange(D) / 100


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "table.safetensors"
    write_table(file, values, shape=(L, V, D), dtype=torch.float32)
    return file


@pytest.fixture
def table(path):
    return FusedTable(path, (L, V, D))


@pytest.fixture
def asked(monkeypatch):
    """The ranges that the kernel is asked for."""
    calls = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, offset, size, advice: calls.append((offset, size)))
    return calls


@pytest.fixture
def cold(monkeypatch):
    """Let no page be in memory."""

    def not_now(file, buffers, offset, flags):
        assert flags == os.RWF_NOWAIT
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", not_now)


def layers_of(table, **options):
    batch = TokensOfBatch(V, **options)
    return [TokenEntry(Fused(table, layer), batch, dropout=0.0) for layer in range(L)]


def run(layers, x, ids):
    for layer in layers:
        x = layer.on_text(x, ids)
    return x


def expected(x, ids):
    return x + sum(values(layer, ids.flatten()) for layer in range(L)).view_as(x)


def wait(table):
    if table.prefetcher.worker is not None:
        table.prefetcher.worker.join(10)


def test_rows_are_found_in_the_file(table):
    ahead = table.prefetcher
    for layer, token_id in [(0, 0), (1, 7), (2, V - 1)]:
        stored = os.pread(ahead.file, ahead.row, ahead.place(layer, token_id))
        assert torch.equal(torch.frombuffer(bytearray(stored), dtype=torch.float32), table.values[layer, token_id])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 3000))
def test_runs_hold_every_row_and_little_else(ids, row):
    ahead = object.__new__(Prefetcher)
    ahead.row = row
    runs = list(ahead.runs(torch.tensor(list(ids))))
    covered = [range(offset, offset + size) for offset, size in runs]
    assert all(0 < len(part) <= LARGEST for part in covered)
    assert all(one.stop <= two.start for one, two in pairwise(covered))
    for first, last in ((i * row, (i + 1) * row - 1) for i in ids):
        assert any(first in part for part in covered)
        assert any(last in part for part in covered)
    assert sum(map(len, covered)) <= len(ids) * row + (len(ids) - 1) * GAP


def test_a_cold_table_is_asked_for_all_layers_at_once(table, asked, cold):
    ids = torch.tensor([[5, 3000, 5, 2999]])
    layers = layers_of(table)
    layers[0].on_text(torch.zeros(1, 4, D), ids)
    wait(table)
    row = D * 4
    assert asked == [
        (table.prefetcher.start + (layer * V + first) * row, count * row)
        for layer in range(L)
        for first, count in [(5, 1), (2999, 2)]
    ]
    run(layers, torch.zeros(1, 4, D), ids)
    wait(table)
    assert len(asked) == 2 * L  # the layers after the first ask no more


def test_a_table_in_memory_is_asked_for_nothing(table, asked):
    table.values.sum()  # all pages are read
    run(layers_of(table), torch.zeros(1, 2, D), torch.tensor([[5, 3000]]))
    assert asked == []
    assert table.prefetcher.worker is None


def test_a_file_system_that_cannot_tell_is_asked_for_nothing(table, asked, monkeypatch):
    def unknown(*args):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", unknown)
    x, ids = torch.zeros(1, 2, D), torch.tensor([[5, 3000]])
    assert torch.equal(run(layers_of(table), x, ids), expected(x, ids))
    assert asked == []


def test_a_system_without_the_calls_looks_up_all_the_same(path, monkeypatch):
    monkeypatch.setattr(aot_table, "SUPPORTED", False)
    table, x, ids = FusedTable(path, (L, V, D)), torch.zeros(1, 2, D), torch.tensor([[5, 3000]])
    assert table.prefetcher is None
    assert torch.equal(run(layers_of(table), x, ids), expected(x, ids))


def test_a_refusal_of_the_kernel_changes_nothing(table, cold, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EINVAL, "invalid")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    x, ids = torch.zeros(1, 2, D), torch.tensor([[5, 3000]])
    assert torch.equal(run(layers_of(table), x, ids), expected(x, ids))
    wait(table)


def test_an_empty_text_asks_for_nothing(table, asked, cold):
    assert run(layers_of(table), torch.zeros(1, 0, D), torch.zeros(1, 0, dtype=torch.long)).shape == (1, 0, D)
    assert asked == []


def test_a_table_that_is_not_in_memory_is_read_ahead(tmp_path):
    """With the real calls, where the file system lets go of its pages; the kernel itself reads on from the header."""
    path, shape = tmp_path / "table.safetensors", (L, V, 32 * D)
    write_table(path, lambda layer, ids: ids[:, None].expand(-1, 32 * D), shape=shape, dtype=torch.float16)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    table = FusedTable(path, shape)
    ids = torch.tensor([[17, 1800, 3999]])
    if table.prefetcher.is_cached(1, 1800):
        pytest.skip("this file system keeps its pages")
    layers_of(table)[0].on_text(torch.zeros(1, 3, 32 * D), ids)
    end = time.monotonic() + 10
    while not all(table.prefetcher.is_cached(layer, i) for layer in range(L) for i in ids[0].tolist()):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_file_is_closed_with_its_table(path):
    table = FusedTable(path, (L, V, D))
    file = table.prefetcher.file
    os.fstat(file)
    del table
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_copies_read_ahead_on_their_own(table, asked, cold):
    layers = nn.ModuleList(layers_of(table))
    x, ids = torch.zeros(1, 2, D), torch.tensor([[5, 3000]])
    run(layers, x, ids)
    for twin in (deepcopy(layers), pickle.loads(pickle.dumps(layers))):
        assert twin[0].batch is twin[1].batch
        assert twin[0].shift.table.prefetcher.file != table.prefetcher.file
        assert torch.equal(run(twin, x, ids), expected(x, ids))


SCRIPT = """
import os, sys, time, torch
from foretoken.methods.aot import prefetch
from foretoken.methods.aot.modules import Fused, TokenEntry, TokensOfBatch
from foretoken.methods.aot.table import FusedTable

def slow(self, layers, runs):
    time.sleep(60 if len(layers) > 1 else 0)

prefetch.Prefetcher.ask = slow
prefetch.Prefetcher.in_memory = lambda self, layer, ids: False
table = FusedTable(sys.argv[1], (3, 4000, 64))
entry = TokenEntry(Fused(table, 0), TokensOfBatch(4000), dropout=0.0)
entry.on_text(torch.zeros(1, 1, 64), torch.tensor([[7]]))
busy = table.prefetcher.worker
assert busy.is_alive()
child = os.fork()
if child == 0:
    assert not busy.is_alive()
    assert entry.on_text(torch.zeros(1, 1, 64), torch.tensor([[9]]))[0, 0, 0] == 9
    assert table.prefetcher.worker is not busy and table.prefetcher.worker.is_alive()
    os._exit(5)
sys.exit(0 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5 else 1)
"""


@pytest.mark.slow
def test_forks_and_the_interpreters_end_wait_for_nobody(path):
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 55


def test_threads_share_a_model(table, cold):
    layers = layers_of(table, device="cpu")
    batches = [torch.randint(0, V, (2, 9)) for _ in range(6)]
    x = torch.randn(2, 9, D)

    def serve(number):
        return [torch.equal(run(layers, x, ids), run(layers_of(table), x, ids)) for ids in batches[number:] * 5]

    with ThreadPoolExecutor(3) as pool:
        for answers in pool.map(serve, range(3)):
            assert all(answers)
    wait(table)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_tokens_changed_in_place_are_looked_up_anew(table, mode):
    layers, x = layers_of(table), torch.zeros(1, 3, D)
    with mode():
        ids = torch.tensor([[1, 2, 3]])
        assert torch.equal(run(layers, x, ids), expected(x, ids))
        ids[0, 1] = 3999
        assert torch.equal(run(layers, x, ids), expected(x, ids))


def test_batches_in_flight_keep_their_own_tokens(table):
    layers, x = layers_of(table), torch.zeros(1, 3, D)
    batches = [torch.tensor([[i, i + 1, i]]) for i in range(6)]
    states = [x] * 6
    for layer in layers:
        states = [layer.on_text(state, ids) for state, ids in zip(states, batches, strict=True)]
    for state, ids in zip(states, batches, strict=True):
        assert torch.equal(state, expected(x, ids))


@pytest.mark.parametrize("inference", [False, True])
def test_tokens_are_sorted_once_for_all_layers_and_equal_batches(table, monkeypatch, inference):
    layers, splits = layers_of(table), []
    split = TokensOfBatch.split
    monkeypatch.setattr(TokensOfBatch, "split", lambda batch, ids: splits.append(1) or split(batch, ids))
    with torch.inference_mode(inference):
        ids = torch.tensor([[1, 2, 3]])
        run(layers, torch.zeros(1, 3, D), ids)
        run(layers, torch.zeros(1, 3, D), ids.clone())
    assert splits == [1]


def test_a_batch_seen_in_inference_mode_can_be_trained_on():
    layer = TokenEntry(FullyConnected(nn.Embedding(V, 8), D, rank=2, activation="gelu"), TokensOfBatch(V), dropout=0.0)
    ids, x = torch.tensor([[1, 2, 1]]), torch.randn(1, 3, D)
    with torch.inference_mode():
        layer.on_text(x, ids)
    layer.on_text(x, ids).sum().backward()
    assert layer.shift.second.bias.grad.eq(3).all()


def test_what_enters_is_not_written_to(table):
    ids, x = torch.tensor([[1, 2, 1]]), torch.randn(1, 3, D, requires_grad=True)
    before = x.detach().clone()
    run(layers_of(table), x, ids).sum().backward()
    assert torch.equal(x, before)
    assert torch.equal(x.grad, torch.ones_like(x))


def test_recomputation_gives_the_same(table):
    layers, ids = layers_of(table), torch.tensor([[4, 4, 9]])
    gradients = []
    for through in (run, lambda *args: checkpoint(run, *args, use_reentrant=False)):
        x = torch.ones(1, 3, D, requires_grad=True)
        through(layers, x, ids).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_come_to_a_gpu_through_pinned_memory(table):
    ids, x = torch.randint(0, V, (4, 50)), torch.randn(4, 50, D)
    got = run(layers_of(table, device="cpu"), x.cuda(), ids.cuda())
    torch.testing.assert_close(got.cpu(), expected(x, ids))
