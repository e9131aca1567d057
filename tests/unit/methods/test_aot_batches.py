"""What the layers of one batch share: its distinct tokens, and the file of a fused table."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from foretoken.methods.aot.modules import FullyConnected, Fused, TokenEntry, TokensOfBatch
from foretoken.methods.aot.table import FusedTable, write_table

L, V, D = 3, 4000, 64


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


def layers_of(table, **options):
    batch = TokensOfBatch(V, **options)
    return [TokenEntry(Fused(table, layer), batch, dropout=0.0) for layer in range(L)]


def run(layers, x, ids):
    for layer in layers:
        x = layer.on_text(x, ids)
    return x


def expected(x, ids):
    return x + sum(values(layer, ids.flatten()) for layer in range(L)).view_as(x)


def test_threads_share_a_model(table):
    layers = layers_of(table, device="cpu")
    batches = [torch.randint(0, V, (2, 9)) for _ in range(6)]
    x = torch.randn(2, 9, D)

    def serve(number):
        return [torch.equal(run(layers, x, ids), run(layers_of(table), x, ids)) for ids in batches[number:] * 5]

    with ThreadPoolExecutor(3) as pool:
        for answers in pool.map(serve, range(3)):
            assert all(answers)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_tokens_changed_in_place_are_looked_up_anew(table, mode):
    layers, x = layers_of(table), torch.zeros(1, 3, D)
    with mode():
        ids = torch.tensor([[1, 2, 3]])
        assert torch.equal(run(layers, x, ids), expected(x, ids))
        ids[0, 1] = 3999
        assert torch.equal(run(layers, x, ids), expected(x, ids))


def test_a_batch_seen_in_inference_mode_can_be_trained_on():
    layer = TokenEntry(FullyConnected(nn.Embedding(V, 8), D, rank=2, activation="gelu"), TokensOfBatch(V), dropout=0.0)
    ids, x = torch.tensor([[1, 2, 1]]), torch.randn(1, 3, D)
    with torch.inference_mode():
        layer.on_text(x, ids)
    layer.on_text(x, ids).sum().backward()
    assert layer.shift.second.bias.grad.eq(3).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_come_to_a_gpu_through_pinned_memory(table):
    ids, x = torch.randint(0, V, (4, 50)), torch.randn(4, 50, D)
    got = run(layers_of(table, device="cpu"), x.cuda(), ids.cuda())
    torch.testing.assert_close(got.cpu(), expected(x, ids))
