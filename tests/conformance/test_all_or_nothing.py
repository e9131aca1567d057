"""Where attaching an adapter fails half way, the model is as it was; the same adapter corrected attaches."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_plain_calls import assert_same, run, state, trained

from foretoken import BitFitConfig, PrefixTuningConfig, StackConfig
from foretoken.errors import AdapterError
from foretoken.tuner.model_hooks import ModelHooks

from support import tiny
from support.table import ROWS

pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute:UserWarning")
FAMILIES = ("bert", "longformer", "led", "t5", "llama", "big_bird", "deberta-v2")
EVERY_SITE = "stack, of every site"


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture
def failing(monkeypatch):
    """Let the n-th module of the next adapter fail when it is attached; None for no failure."""
    attach = ModelHooks.attach
    left = []

    def attach_or_fail(self, *args):
        if left and not left[0]:
            raise OutOfMemoryError("no memory for this module")
        left[:] = [count - 1 for count in left]
        attach(self, *args)

    def fail_at(number):
        left[:] = [] if number is None else [number]

    monkeypatch.setattr(ModelHooks, "attach", attach_or_fail)
    return fail_at


def config(method, family):
    return ROWS[method](task_type=tiny.main_task(family))


@pytest.mark.covering
@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_adapter_fails(family, number, failing):
    model, inputs = tiny.model(family), tiny.batch(family, labels=False)
    before, frozen = state(model), run(model, inputs)
    expected = run(trained(get_peft_model(tiny.model(family), config(EVERY_SITE, family))), inputs)
    for attach in (get_peft_model, lambda plain, given: plain.add_adapter(given)):
        failing(number)
        given = config(EVERY_SITE, family)
        with pytest.raises(OutOfMemoryError):
            attach(model, given)
        failing(None)
        assert_same(state(model), before)
        assert torch.equal(run(model, inputs), frozen)
        made = attach(model, given) or model
        assert torch.equal(run(trained(made), inputs), expected)
        model = tiny.model(family)


@pytest.mark.covering
@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_adapter_fails(family, number, failing):
    inputs = tiny.batch(family, labels=False)
    model = trained(get_peft_model(tiny.model(family), config("stack", family)))
    own = run(model, inputs)
    before = state(model)  # as a pass leaves it: BigBird chooses the kind of its attention in each
    failing(number)
    with pytest.raises(OutOfMemoryError):
        model.add_adapter("other", config(EVERY_SITE, family) if number else config("stack", family))
    failing(None)
    assert_same(state(model), before)
    assert list(model.peft_config) == ["default"]
    assert model.active_adapters == ["default"]
    assert torch.equal(run(model, inputs), own)
    model.add_adapter("other", config(EVERY_SITE, family))
    assert torch.equal(run(model, inputs), own)
    model.delete_adapter("other")
    assert torch.equal(run(model, inputs), own)


@pytest.mark.parametrize("beside", [False, True])
def test_a_stack_whose_lora_cannot_be_attached(beside):
    """By then the other members are."""
    inputs = tiny.batch("bert", labels=False)
    model = trained(get_peft_model(tiny.model("bert"), config("stack", "bert"))) if beside else tiny.model("bert")
    before, own = state(model), run(model, inputs)
    wrong = StackConfig(task_type="SEQ_CLS", configs=[PrefixTuningConfig(), LoraConfig(target_modules=["nobody"])])
    right = StackConfig(task_type="SEQ_CLS", configs=[PrefixTuningConfig(), LoraConfig(target_modules=["query"])])

    def attach(given):
        return model.add_adapter("b", given) if beside else get_peft_model(model, given)

    with pytest.raises(ValueError, match="nobody"):
        attach(wrong)
    assert_same(state(model), before)
    assert torch.equal(run(model, inputs), own)
    attach(right)


def test_a_backbone_that_cannot_carry_it_stays_as_it_is():
    """The error comes from the method itself."""
    model = trained(
        get_peft_model(tiny.model("llama"), StackConfig(task_type="SEQ_CLS", configs=[PrefixTuningConfig()]))
    )
    before = state(model)
    with pytest.raises(ValueError, match="has none"):
        model.add_adapter("biases", StackConfig(task_type="SEQ_CLS", configs=[BitFitConfig()]))
    assert_same(state(model), before)
    assert list(model.peft_config) == ["default"]


def test_a_name_that_is_taken():
    """peft attaches a second adapter of one name with a warning: parts of both would act."""
    plain = tiny.model("bert")
    model = trained(get_peft_model(plain, PrefixTuningConfig(task_type="SEQ_CLS")))
    inputs = tiny.batch("bert", labels=False)
    before, own = state(model), run(model, inputs)
    with (
        pytest.raises(AdapterError, match=r"has an adapter called 'default' already; .*unload\(\)"),
        pytest.warns(UserWarning, match="a second time"),
    ):
        get_peft_model(plain, BitFitConfig(task_type="SEQ_CLS"))
    assert_same(state(model), before)
    assert isinstance(model.peft_config["default"], PrefixTuningConfig)
    assert torch.equal(run(model, inputs), own)
    model.unload()
    get_peft_model(plain, BitFitConfig(task_type="SEQ_CLS"))


def test_an_interrupt_is_a_failure_too(monkeypatch):
    model = tiny.model("bert")
    before = state(model)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ModelHooks, "edit_output", interrupted)
        with pytest.raises(KeyboardInterrupt):
            get_peft_model(model, BitFitConfig(task_type="SEQ_CLS"))
    assert_same(state(model), before)


def test_hooks_of_the_users_own_stay_removable(failing):
    """They are taken off by handles that know the dictionaries they are in."""
    model, seen = tiny.model("bert"), []
    handle = model.bert.encoder.layer[0].register_forward_hook(lambda *_: seen.append(1))
    failing(3)
    with pytest.raises(OutOfMemoryError):
        get_peft_model(model, config(EVERY_SITE, "bert"))
    run(model, tiny.batch("bert", labels=False))
    assert seen == [1]
    handle.remove()
    run(model, tiny.batch("bert", labels=False))
    assert seen == [1]
