"""Ahead-of-time P-tuning in peft's life cycle: trained, fused, served from a folder, beside other adapters."""

import copy
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from foretoken import PromptTuningConfig, StackConfig, fuse
from foretoken.errors import AdapterError
from foretoken.methods.aot.config import AoTPTuningConfig
from foretoken.methods.aot.table import FILE_NAME

from support import tiny
from support.tiny import run


def adapted(family, *, seed=3, **options):
    """Return a model with an unfused adapter whose parameters are all random."""
    config = AoTPTuningConfig(task_type=tiny.main_task(family), rank=4, **options)
    return tiny.shaken(get_peft_model(tiny.model(family), config), seed=seed).eval()


def saved_fused(model, folder, *, dtype=torch.float32):
    """Save a fused copy of an adapter and return its folder."""
    fuse(copy.deepcopy(model), folder, dtype=dtype).save_pretrained(folder)
    return folder


@pytest.mark.covering
@pytest.mark.parametrize("family", ["bert", "electra", "longformer", "llama"])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.float16, 1e-2), (torch.bfloat16, 1e-1)])
def test_a_fused_adapter_is_served_from_its_folder(family, dtype, rounding, tmp_path):
    model, inputs = adapted(family), tiny.batch(family, labels=False)
    folder = saved_fused(model, tmp_path / "served", dtype=dtype)
    served = PeftModel.from_pretrained(tiny.model(family), folder, is_trainable=True).eval()
    trained = [name for name, parameter in served.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(".modules_to_save." in name for name in trained)
    torch.testing.assert_close(run(served, inputs), run(model, inputs), atol=rounding, rtol=0)
    with served.disable_adapter():
        assert (run(served, inputs) - run(model, inputs)).abs().max() > 3 * rounding


def test_a_batch_of_two_fused_tasks_equals_them_one_by_one(tmp_path):
    models = [adapted("bert", seed=seed) for seed in (3, 4)]
    folders = [saved_fused(model, tmp_path / str(i)) for i, model in enumerate(models)]
    served = PeftModel.from_pretrained(tiny.model("bert"), folders[0], adapter_name="one")
    served.load_adapter(folders[1], "two")
    inputs = tiny.batch("bert", labels=False)
    mixed = run(served.eval(), inputs, adapter_names=["two", "one", "two"])
    for row, model in enumerate([models[1], models[0], models[1]]):
        torch.testing.assert_close(mixed[row], run(model, inputs)[row], atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["fc", "kronecker"])
@pytest.mark.parametrize("fused", [False, True])
def test_generation_is_the_same_with_and_without_a_cache(variant, fused, tmp_path):
    config = AoTPTuningConfig(task_type="CAUSAL_LM", rank=4, variant=variant)
    model = tiny.shaken(get_peft_model(tiny.model("llama", "CAUSAL_LM"), config)).eval()
    ids = torch.randint(5, 100, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    ids[1, :2] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(input_ids=ids, use_cache=False, **options)
    if fused:
        model = PeftModel.from_pretrained(tiny.model("llama", "CAUSAL_LM"), saved_fused(model, tmp_path)).eval()
    assert torch.equal(model.generate(input_ids=ids, use_cache=True, **options), expected)
    with model.disable_adapter():
        assert not torch.equal(model.generate(input_ids=ids, **options), expected)


@pytest.mark.parametrize("variant", ["fc", "kronecker"])
@pytest.mark.parametrize("stacked", [False, True])
def test_fuse_and_save_and_serve(variant, stacked, tmp_path):
    """The public call: in place with the same outputs, saved with its table, loaded from another folder's copy."""
    member = AoTPTuningConfig(variant=variant, rank=3)
    config = (
        StackConfig(configs=[PromptTuningConfig(num_virtual_tokens=2), member, LoraConfig(r=2)]) if stacked else member
    )
    config.task_type = "SEQ_CLS"
    model = tiny.shaken(get_peft_model(tiny.model("bert"), config)).eval()
    inputs = tiny.batch("bert", labels=False)

    def run(model):
        with torch.no_grad():
            return tiny.first(model(**inputs))

    expected = run(model)
    fuse(model, tmp_path / "fused", dtype=torch.float32)
    torch.testing.assert_close(run(model), expected, atol=1e-5, rtol=1e-5)
    assert not any(".a" in n or ".first" in n for n, _ in model.named_parameters() if ".foretoken." in n)
    model.save_pretrained(tmp_path / "fused")
    moved = shutil.copytree(tmp_path / "fused", tmp_path / "moved")
    shutil.rmtree(tmp_path / "fused")
    again = PeftModel.from_pretrained(tiny.model("bert"), moved).eval()
    torch.testing.assert_close(run(again), expected, atol=1e-5, rtol=1e-5)
    again.save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / FILE_NAME).exists()
    assert str(tmp_path) not in (tmp_path / "copy" / "adapter_config.json").read_text()
    with pytest.raises(AdapterError, match="nothing to fuse"):
        fuse(again, tmp_path / "fused")


def test_fusing_needs_a_folder():
    model = get_peft_model(tiny.model("bert"), AoTPTuningConfig(task_type="SEQ_CLS"))
    with pytest.raises(AdapterError, match="give the adapter's folder"):
        fuse(model)
