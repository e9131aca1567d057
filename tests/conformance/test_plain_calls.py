"""Transformers' own calls on a plain model, for every method: exactly what peft's calls give, or a clear refusal."""

import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from foretoken import PrefixTuningConfig
from foretoken.errors import AdapterError

from support import tiny
from support.table import EMPTY, ROWS
from support.tiny import run

# peft says so of every second adapter that transformers attaches
pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute:UserWarning")
FAMILIES = ("bert", "longformer", "llama", "bart")
CELLS = [(method, family) for family in FAMILIES for method in ROWS if (method, family) not in EMPTY]


def frozen(family):
    """Return the model as peft freezes it: PyTorch rounds in another way where a weight needs a gradient."""
    return tiny.model(family).requires_grad_(False)


def trained(model, seed=3):
    """Give adapter and head values that cannot be overlooked."""
    return tiny.shaken(model, seed=seed, heads=True)


def config(method, family="bert"):
    return ROWS[method](task_type=tiny.main_task(family))


def saved(method, family, folder, seed=3):
    """Save an adapter with a trained head, and return what it computes."""
    model = trained(get_peft_model(tiny.model(family), config(method, family)), seed)
    model.save_pretrained(folder)
    return run(model, tiny.batch(family, labels=False))


@pytest.mark.covering
@pytest.mark.parametrize(("method", "family"), CELLS)
def test_load_adapter_gives_what_peft_gives(method, family, tmp_path):
    inputs, expected = tiny.batch(family, labels=False), saved(method, family, tmp_path)
    model = tiny.model(family)
    info = model.load_adapter(tmp_path)
    assert not info.missing_keys
    assert torch.equal(run(model, inputs), run(PeftModel.from_pretrained(tiny.model(family), tmp_path), inputs))
    assert torch.equal(run(model, inputs), expected)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.disable_adapters()
    assert torch.equal(run(model, inputs), run(frozen(family), inputs))
    model.enable_adapters()
    assert torch.equal(run(model, inputs), expected)
    model.delete_adapter("default")
    assert torch.equal(run(model, inputs), run(frozen(family), inputs))
    assert not hasattr(model, "peft_config")
    model.load_adapter(tmp_path, "again")
    assert torch.equal(run(model, inputs), expected)


@pytest.mark.covering
@pytest.mark.parametrize(("method", "family"), CELLS)
def test_add_adapter_and_save_pretrained(method, family, tmp_path):
    inputs = tiny.batch(family, labels=False)
    wrapped = trained(get_peft_model(tiny.model(family), config(method, family)))
    model = tiny.model(family)
    model.add_adapter(config(method, family))
    trained(model)
    assert model.active_adapters() == ["default"]
    expected = run(wrapped, inputs)
    assert torch.equal(run(model, inputs), expected)
    theirs = get_peft_model_state_dict(wrapped)
    ours = {f"base_model.model.{name}": tensor for name, tensor in model.get_adapter_state_dict().items()}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    model.save_pretrained(tmp_path)
    assert torch.equal(run(PeftModel.from_pretrained(tiny.model(family), tmp_path), inputs), expected)
    again = tiny.model(family)
    again.load_adapter(peft_config=config(method, family), adapter_state_dict=model.get_adapter_state_dict())
    assert torch.equal(run(again, inputs), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_adapters_of_different_methods(family, tmp_path):
    inputs, methods = tiny.batch(family, labels=False), ("stack", "prefix-tuning", "bottleneck-adapter, parallel")
    model, expected = tiny.model(family), {}
    for number, method in enumerate(methods):
        expected[f"a{number}"] = saved(method, family, tmp_path / f"a{number}", seed=number)
    for name in expected:
        model.load_adapter(tmp_path / name, name)
    for name, logits in expected.items():
        model.set_adapter(name)
        assert model.active_adapters() == [name]
        assert torch.equal(run(model, inputs), logits), name
    model.delete_adapter("a0")
    for name in ("a1", "a2"):
        model.set_adapter(name)
        assert torch.equal(run(model, inputs), expected[name]), name
    with pytest.raises(AdapterError, match="called 'a1' already"):
        model.load_adapter(tmp_path / "a0", "a1")
    model.load_adapter(tmp_path / "a2", "a0")  # a name that another method's adapter had
    assert torch.equal(run(model, inputs), expected["a2"])
    model.set_adapter("a1")
    assert torch.equal(run(model, inputs), expected["a1"])


def test_two_active_adapters():
    """Their rows stand side by side; two heads cannot act at once, and then nothing changes."""
    inputs = tiny.batch("bert", labels=False)
    body, model = tiny.model("bert", "FEATURE_EXTRACTION"), tiny.model("bert")
    for number, name in enumerate("ab"):
        body.add_adapter(PrefixTuningConfig(num_virtual_tokens=3 + number), name)
        model.add_adapter(PrefixTuningConfig(num_virtual_tokens=3 + number, task_type="SEQ_CLS"), name)
    trained(body).set_adapter(["a", "b"])
    both = run(body, inputs)
    for name in "ab":
        body.set_adapter(name)
        assert not torch.allclose(run(body, inputs), both, atol=1e-2)
    body.set_adapter(["b", "a"])
    torch.testing.assert_close(run(body, inputs), both, atol=2e-5, rtol=2e-5)
    trained(model).set_adapter("a")
    own = run(model, inputs)
    with pytest.raises(ValueError, match="multiple"):
        model.set_adapter(["a", "b"])
    assert model.active_adapters() == ["a"]
    assert torch.equal(run(model, inputs), own)


def test_from_pretrained_of_an_adapters_folder(tmp_path):
    """Transformers loads the backbone that the adapter names, and the adapter."""
    tiny.model("bert").save_pretrained(tmp_path / "base")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    model = trained(get_peft_model(base, config("stack")))
    model.save_pretrained(tmp_path / "adapter")
    again, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "adapter", output_loading_info=True)
    inputs = tiny.batch("bert", labels=False)
    assert torch.equal(run(again, inputs), run(model, inputs))
    assert not info["missing_keys"]


def test_adapters_of_other_methods_stay_transformers_own(tmp_path):
    lora = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = trained(get_peft_model(tiny.model("bert"), lora))
    model.save_pretrained(tmp_path)
    again = tiny.model("bert")
    again.load_adapter(tmp_path)
    inputs = tiny.batch("bert", labels=False)
    torch.testing.assert_close(run(again, inputs), run(model, inputs))


def test_loading_to_go_on_training(tmp_path):
    saved("stack", "bert", tmp_path)
    model = tiny.model("bert")
    model.load_adapter(tmp_path, is_trainable=True)
    other = PeftModel.from_pretrained(tiny.model("bert"), tmp_path, is_trainable=True)
    wanted = {name.removeprefix("base_model.model.") for name, p in other.named_parameters() if p.requires_grad}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wanted
    model(**tiny.batch("bert")).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_swapping_in_place_is_refused(tmp_path):
    saved("prefix-tuning", "bert", tmp_path)
    model = tiny.model("bert")
    model.load_adapter(tmp_path)
    with pytest.raises(AdapterError, match=r"cannot be swapped in place; delete_adapter\(\)"):
        model.load_adapter(tmp_path, hotswap=True)


def state(model):
    """Return all that can be told of a model: names, values, gradient flags, classes, hooks, configs."""
    parameters = {name: (p.detach().clone(), p.requires_grad) for name, p in model.named_parameters()}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    kinds = [type(m) for m in model.modules()]
    attributes = [sorted(vars(m)) for m in model.modules()]
    return parameters, hooks, kinds, attributes, model.config._attn_implementation


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, (tensor, is_trained) in one[0].items():
        assert torch.equal(tensor, other[0][name][0]), name
        assert is_trained == other[0][name][1], name
    assert one[1:] == other[1:]


def cut_off(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def without(part):
    """Return how to take a tensor out of a file."""

    def damage(folder):
        file = folder / "adapter_model.safetensors"
        tensors = load_file(file)
        del tensors[next(name for name in tensors if part in name)]
        save_file(tensors, file)

    return damage


def one_too_many(folder):
    file = folder / "adapter_model.safetensors"
    name = "base_model.model.bert.encoder.layer.9.foretoken.prefix.weight"
    save_file(load_file(file) | {name: torch.zeros(3, 32)}, file)


def other_shape(part):
    """Return how to give a tensor of a file another shape."""

    def damage(folder):
        file = folder / "adapter_model.safetensors"
        tensors = load_file(file)
        tensors[next(name for name in tensors if part in name)] = torch.zeros(5, 7)
        save_file(tensors, file)

    return damage


DAMAGES = {
    "cut off": (cut_off, "cannot be read"),
    "no file": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "no prefix": (without(".foretoken."), "lacks 1 of"),
    "no head": (without("classifier.weight"), "lacks 'base_model.model.classifier.weight'|lacks 'classifier.weight'"),
    "one more tensor": (one_too_many, r"1 tensors that this adapter does not have.*layer\.9"),
    "another prefix": (other_shape(".foretoken."), r"is \(5, 7\) in the adapter file but"),
    "another head": (other_shape("classifier.weight"), r"is \(5, 7\) in the adapter file but \(3, 32\)"),
}


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The folder of an undamaged adapter, and what it computes."""
    folder = tmp_path_factory.mktemp("right")
    return folder, saved("stack", "bert", folder)


@pytest.fixture
def wrong(right, damage, tmp_path):
    """A damaged copy, and what is said of it."""
    change, message = DAMAGES[damage]
    change(shutil.copytree(right[0], tmp_path / "wrong"))
    return tmp_path / "wrong", message


@pytest.mark.parametrize("damage", DAMAGES)
class TestDamagedFiles:
    """What fails leaves the model, and the adapters that it has, as they were; the name is free for the right file."""

    @pytest.mark.parametrize("with_peft", [True, False])
    def test_beside_other_adapters(self, with_peft, right, wrong):
        expected, message = right[1], wrong[1]
        inputs, model = tiny.batch("bert", labels=False), tiny.model("bert")
        if with_peft:
            model = get_peft_model(model, config("stack, of every site"))
        else:
            model.add_adapter(PrefixTuningConfig(task_type="SEQ_CLS"), "default")
        trained(model, seed=9)
        own, before = run(model, inputs), state(model)
        with pytest.raises(ValueError, match=message):
            model.load_adapter(wrong[0], "other")
        assert_same(state(model), before)
        assert list(model.peft_config) == ["default"]
        assert (model.active_adapters if with_peft else model.active_adapters()) == ["default"]
        assert torch.equal(run(model, inputs), own)
        model.load_adapter(right[0], "other")
        if with_peft:  # transformers makes what it loads the active one
            assert torch.equal(run(model, inputs), own)
            model.set_adapter("other")
        assert torch.equal(run(model, inputs), expected)

    def test_on_a_plain_model(self, right, wrong):
        expected, message = right[1], wrong[1]
        inputs = tiny.batch("bert", labels=False)
        for load in (lambda model, at: model.load_adapter(at), PeftModel.from_pretrained):
            model = tiny.model("bert")
            before = state(model)
            with pytest.raises(ValueError, match=message):
                load(model, wrong[0])
            assert_same(state(model), before)
            assert not hasattr(model, "peft_config")
            loaded = load(model, right[0])
            assert torch.equal(run(loaded if isinstance(loaded, PeftModel) else model, inputs), expected)
