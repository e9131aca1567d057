"""Adapters that are not in memory when they are asked for, and the types that they are kept in."""

import json
import shutil
import threading
from functools import partial

import numpy as np
import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file, save_file

from foretoken import AoTPTuningConfig, fuse
from foretoken.errors import AdapterError
from foretoken.files import write_json
from foretoken.inference.shared_base import SharedBase
from foretoken.serving.compute import MixedBank
from foretoken.serving.engine import Request, ServingEngine
from foretoken.serving.tasks import Classify, TextInput

from support.served import make_store

TEXTS = [f"word{number} " * (number % 5 + 1) + "prize" for number in range(6)]


def logits(engine, name):
    future = engine.submit(Request(name, [TextInput(text) for text in TEXTS], Classify()))
    return np.stack([answer.logits for answer in future.result(60)])


class SlowDisk(MixedBank):
    """A bank that reads when it is told to, and notes on which threads."""

    def __init__(self, base):
        super().__init__(base)
        self.go, self.asked, self.threads = threading.Event(), threading.Event(), []
        self.go.set()

    def read(self, folder):
        self.threads.append(threading.current_thread().name)
        self.asked.set()
        assert self.go.wait(60)
        return super().read(folder)


def test_while_a_cold_adapter_is_read_the_others_are_answered(adapters):
    store, now = make_store(*adapters, memory=1, bank=SlowDisk), [0.0]
    with ServingEngine(store, clock=lambda: now[0]) as engine:
        expected = logits(engine, "spam")
        loaded = len(store.loaded)
        store.bank.go.clear()
        store.bank.asked.clear()
        late = engine.submit(Request("stars", [TextInput("word1")], Classify()))
        now[0] = 20.0
        cold = engine.submit(Request("topic", [TextInput("word1")], Classify()))
        assert store.bank.asked.wait(60)
        now[0] = 31.0
        np.testing.assert_allclose(logits(engine, "spam"), expected, atol=1e-6)
        assert "waited" in str(late.exception(60))  # the time is looked at meanwhile
        assert not cold.done()
        store.bank.go.set()
        assert cold.result(60)
    assert loaded == 1
    assert "foretoken-engine" not in store.bank.threads


def test_an_adapter_is_added_while_others_are_answered(adapters):
    store = make_store(adapters[0], {"spam": adapters[1]["spam"]}, bank=SlowDisk)
    with ServingEngine(store) as engine:
        store.bank.go.clear()
        store.bank.asked.clear()
        adding = threading.Thread(target=engine.add, args=("topic", adapters[1]["topic"]))
        adding.start()
        assert store.bank.asked.wait(60)
        logits(engine, "spam")
        assert store.names == ["spam"]
        store.bank.go.set()
        adding.join(60)
        assert logits(engine, "topic").shape == (len(TEXTS), 3)


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_the_memory_answers_within_its_precision(adapters, dtype, error):
    names = ("spam", "topic", "stars")
    folders = {name: adapters[1][name] for name in names}
    whole, half = (
        make_store(adapters[0], folders),
        make_store(adapters[0], folders, bank=partial(MixedBank, dtype=dtype)),
    )
    with ServingEngine(whole) as engine, ServingEngine(half) as other:
        for name in names:
            expected = logits(engine, name)
            np.testing.assert_allclose(logits(other, name), expected, atol=error * max(1, np.abs(expected).max()))
    assert [half.get(name).info.dtype for name in names] == [getattr(torch, dtype)] * len(names)
    assert all(2 * half.get(name).info.bytes == whole.get(name).info.bytes for name in names)


def test_an_adapter_that_float16_cannot_hold_runs_apart_in_float32(adapters, tmp_path):
    folder = shutil.copytree(adapters[1]["spam"], tmp_path / "spam")
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values()))[0] = 1e6
    save_file(tensors, file)
    store = make_store(adapters[0], {}, bank=partial(MixedBank, dtype="float16"))
    with pytest.raises(AdapterError, match="float16 cannot hold"):
        store.bank.together.add("a", folder)
    assert store.add("spam", folder).info.dtype == torch.float32
    assert store.bank.together.names == []


def test_fused_tables_stay_in_their_files(adapters, tmp_path):
    base, _ = SharedBase(str(adapters[0])).with_new_head(None)
    adapted = get_peft_model(base, AoTPTuningConfig(task_type="SEQ_CLS", rank=2))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.3)
    card = {"problem": "classification", "labels": ["a", "b"], "max_length": 64, "base_model": str(adapters[0])}
    folders = {name: tmp_path / name for name in ("plain", "fused")}
    adapted.save_pretrained(folders["plain"])
    fuse(adapted, folders["fused"]).save_pretrained(folders["fused"])
    for folder in folders.values():
        write_json(folder / "foretoken.json", card)
    assert json.loads((folders["fused"] / "adapter_config.json").read_text())["fused_table"]
    store = make_store(adapters[0], folders)
    with ServingEngine(store) as engine:
        expected = logits(engine, "plain")
        np.testing.assert_allclose(logits(engine, "fused"), expected, atol=5e-3)  # tables are float16
    table = (folders["fused"] / "aot_table.safetensors").stat().st_size
    head = sum(tensor.numel() for name, tensor in adapted.state_dict().items() if "modules_to_save" in name) * 4
    assert store.get("fused").info.bytes == head < store.get("plain").info.bytes < table + head
