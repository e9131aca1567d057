"""The defects that users of prefix methods meet elsewhere, each with a test of its name on every family it concerns.

What more there is to say: gradients under checkpointing (S1), mixed batches (S3), disabling (S4), stacks with LoRA and
unloading (S9) for every cell of the table in test_invariants.py; sliding windows and the side of the padding in
decoders (S6, S7) in test_decoders.py; resuming (S9) for every method in test_lifecycle.py. What peft itself does is
in benchmarks/ecosystem_defects.py.
"""

from functools import cache

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn
from torch.nn import functional

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig

from support import tiny
from support.table import adapted, train_with_checkpointing
from support.tiny import run

CONFIGS = (PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig)
WITH_POSITIONS = tuple(f for f in tiny.KINDS if f not in ("t5", "deberta-v2"))  # these know distances only
WINDOWED = ("mistral", "gemma3_text", "modernbert", "longformer", "big_bird", "led")
LANGUAGE_MODELS = ("MASKED_LM", "CAUSAL_LM", "SEQ_2_SEQ_LM")  # their heads come with the backbone


def prefixed(family, config=PrefixTuningConfig, task=None, **options):
    """Return a model with a prefix of three tokens whose values cannot be overlooked."""
    task = task or tiny.main_task(family)
    options = {"num_virtual_tokens": 3, "prefix_dropout": 0.0, "task_type": tiny.peft_task(task)} | options
    return tiny.shaken(get_peft_model(tiny.model(family, task), config(**options)))


def own(model):
    return {name: parameter for name, parameter in model.named_parameters() if ".foretoken." in name}


def assert_close(one, other, atol=2e-5):
    torch.testing.assert_close(one, other, atol=atol, rtol=2e-5)


TRAINED = ("bert", "longformer", "llama", "t5")  # the others: gradients under checkpointing in test_invariants.py


@pytest.mark.parametrize("family", TRAINED)
def test_s1_the_trainer_with_checkpointing_trains_every_prefix(family, tmp_path):
    """peft: an encoder's prefix changes by exactly 0, silently; decoders crash."""
    model = prefixed(family)
    before = {name: parameter.detach().clone() for name, parameter in own(model).items()}
    train_with_checkpointing(model, tiny.batch(family), tmp_path, steps=1)
    for name, parameter in own(model).items():
        assert (parameter - before[name]).abs().max() > 1e-2, name


@pytest.mark.parametrize("family", tiny.SEQ2SEQ)
@pytest.mark.parametrize("config", [PrefixPropagationConfig, PrefixTuningConfig])
def test_s2_encoder_decoder_and_cross_attention_have_their_own_prefixes(config, family):
    """peft: the encoder is left as it is, and half of the prefix never gets a gradient."""
    model = prefixed(family, config, "SEQ_2_SEQ_LM")
    model(**tiny.batch(family, "SEQ_2_SEQ_LM")).loss.backward()
    found = {"encoder": 0, "decoder": 0, "cross": 0}
    for name, parameter in own(model).items():
        assert parameter.grad.abs().max() > 0, name
        is_cross = "EncDecAttention" in name or "encoder_attn" in name
        found["cross" if is_cross else "encoder" if ".encoder." in name else "decoder"] += 1
    layers = {"encoder": 3 if family == "t5" else 2, "decoder": 2}
    assert found == layers | {"cross": 2 if config is PrefixTuningConfig else 0}


@pytest.mark.covering
@pytest.mark.parametrize("family", WITH_POSITIONS)
@pytest.mark.parametrize("config", CONFIGS)
def test_s5_the_longest_document_fits_and_no_position_shifts(config, family):
    """peft: positions move by P, documents of max_position_embeddings tokens crash."""
    offset = tiny.CONFIGS[family]().pad_token_id + 1 if family in tiny.COUNTS_POSITIONS else 0
    length = 64 - offset
    model = prefixed(family, config)
    inputs = tiny.batch(family, size=2, length=length, labels=False)
    real, seen = inputs["attention_mask"].bool(), []
    for module in model.modules():
        if is_position_module(module):
            module.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))

    def positions():
        """Return what the text's positions yielded; Longformer pads the text, decoders run the rows by themselves."""
        seen.clear()
        assert torch.isfinite(run(model, inputs)).all()
        return [x.expand(2, *x.shape[-2:])[:, :length][real] for x in seen if x.shape[-2] >= length]

    with_prefix = positions()
    with model.disable_adapter():
        without = positions()
    assert without
    for one, other in zip(with_prefix, without, strict=True):
        assert torch.equal(one, other)


def is_position_module(module):
    """Tell whether a module yields what each position adds to its token, or how it rotates it."""
    learned = isinstance(module, nn.Embedding) and module.num_embeddings in (64, 66)
    return learned or type(module).__name__.endswith("RotaryEmbedding")


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("config", [PrefixPropagationConfig, PrefixTuningConfig])
def test_s6_every_token_of_every_layer_sees_the_prefix(config, family):
    """peft: in layers with a sliding window only the first window's tokens see the prefix."""
    model = prefixed(family, config, "FEATURE_EXTRACTION")
    inputs = tiny.batch(family, "FEATURE_EXTRACTION", length=40) | {"output_hidden_states": True}
    inputs |= {"attention_mask": torch.ones_like(inputs["attention_mask"])}
    layers = [(name, p) for name, p in own(model).items() if "decoder" not in name]
    assert len(layers) == (2 if family == "led" else 3)

    def states():
        with torch.no_grad():
            out = model(**inputs)
        return out.encoder_hidden_states if family == "led" else out.hidden_states

    before = states()
    for number, (name, parameter) in enumerate(layers):
        value = parameter.detach().clone()
        parameter.data = -1.7 * value
        after = states()
        parameter.data = value
        assert torch.equal(after[number], before[number]), name
        assert (after[number + 1] - before[number + 1]).abs().amax(-1).min() > 1e-4, name


@pytest.mark.covering
@pytest.mark.parametrize("family", tiny.KINDS)
@pytest.mark.parametrize("config", [PrefixPropagationConfig, PromptTuningConfig])
def test_s7_heads_read_text_rows_only(config, family):
    """peft: the pooler reads a virtual token. Here heads get the text's rows, in their places."""
    for task in {"TOKEN_CLS", tiny.main_task(family)}.intersection(tiny.tasks(family)):
        model = prefixed(family, config, task)
        inputs = tiny.batch(family, task, labels=False)
        text = inputs["decoder_input_ids" if task == "SEQ_2_SEQ_LM" else "input_ids"].shape[1]
        real = inputs["attention_mask"].bool()
        given = []
        for module in head_modules(model.get_base_model()):
            module.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0]))
        with torch.no_grad():
            out = model(**inputs, output_hidden_states=True)
            with model.disable_adapter():
                frozen = model(**inputs, output_hidden_states=True)
        assert {x.shape[1] for x in given if x.dim() == 3} <= {text}
        assert given
        name = "hidden_states" if "hidden_states" in out else "encoder_hidden_states"
        assert [x.shape for x in out[name]] == [x.shape for x in frozen[name]]
        one, other = (x[name][0][:, : real.shape[1]][real] for x in (out, frozen))
        assert torch.equal(one, other)  # what enters the first layer is the text itself, without any row before it


def head_modules(model):
    """Return what follows the body."""
    if (head := model.get_output_embeddings()) is not None:
        return [head]
    rest = (child for child in model.children() if child is not model.base_model)
    return [child for child in rest if next(child.parameters(), None) is not None]


# families whose own output does not depend on the side of the padding; decoders: test_decoders.py
EITHER_SIDE = ("roberta", "longformer", *tiny.ROTARY, "deberta-v2", "mpnet", "t5")


@pytest.mark.parametrize("family", EITHER_SIDE)
@pytest.mark.parametrize("config", CONFIGS)
def test_s7_the_side_of_the_padding_never_matters(config, family):
    """peft: logits of a left-padded document differ from those of the right-padded one."""
    pad = tiny.CONFIGS[family]().pad_token_id
    ids = torch.randint(5, 100, (1, 12))
    right = {"input_ids": functional.pad(ids, (0, 6), value=pad)}
    left = {"input_ids": functional.pad(ids, (6, 0), value=pad)}
    right["attention_mask"], left["attention_mask"] = ((x["input_ids"] != pad).long() for x in (right, left))
    model = prefixed(family, config, "TOKEN_CLS")
    expected = run(model, {"input_ids": ids})
    assert_close(run(model, right)[:, :12], expected)
    assert_close(run(model, left)[:, 6:], expected)


HEAD_CELLS = [(f, task) for f in tiny.KINDS for task in tiny.tasks(f) if task != "FEATURE_EXTRACTION"]


@pytest.mark.covering
@pytest.mark.parametrize(("family", "task"), HEAD_CELLS)
def test_s8_the_whole_new_head_is_trained_and_saved(family, task, pretrained, tmp_path):
    """peft: DeBERTa's pooler, ModernBERT's head and BART's classification_head stay frozen and are not saved.

    New is what a pretrained checkpoint lacks; transformers says so itself when it loads one for another task.
    """
    fresh, new = from_checkpoint(family, task, pretrained)
    model = adapted(fresh, "prefix-tuning", task_type=tiny.peft_task(task))
    tiny.shaken(model)
    saved = {name for name, parameter in model.named_parameters() if ".modules_to_save.default." in name}
    inputs = tiny.batch(family, task)
    model(**inputs).loss.backward()
    with_gradient = {n for n, p in model.named_parameters() if p.requires_grad and p.grad is not None}
    assert {n for n, p in model.named_parameters() if p.requires_grad} == with_gradient == saved | set(own(model))
    assert {name.replace("base_model.model.", "").replace(".modules_to_save.default", "") for name in saved} == new
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(from_checkpoint(family, task, pretrained, seed=9)[0], tmp_path)
    assert_close(run(again, inputs), run(model, inputs), atol=1e-6)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Language models by family, with the folders that their bodies, and they themselves, are saved in."""

    @cache
    def saved(family):
        plain = tiny.model(family, next(t for t in LANGUAGE_MODELS if t in tiny.tasks(family)))
        folders = [tmp_path_factory.mktemp("pretrained") for _ in range(2)]
        for source, folder in zip((plain.base_model, plain), folders, strict=True):
            source.save_pretrained(folder)
        return plain, folders

    return saved


def from_checkpoint(family, task, pretrained, seed=5):
    """Return a task's model from a pretrained language model, and the new parameters that its loss depends on."""
    plain, folders = pretrained(family)
    body, new = set(plain.base_model.state_dict()), set()
    torch.manual_seed(seed)
    options = {"num_labels": 2 if task == "QUESTION_ANS" else tiny.LABELS, "output_loading_info": True}
    # a checkpoint of the bare body too: ModernBERT's language model has a head of the same name as its classifier
    for folder in folders:
        made, info = tiny.TASKS[task].from_pretrained(folder, **options)
        new |= {name for name in info["missing_keys"] if name.removeprefix(f"{made.base_model_prefix}.") not in body}
    # Llama's class for questions gives its body another name, and transformers loads nothing into it
    made.base_model.load_state_dict(plain.base_model.state_dict(), strict=False)
    if task in LANGUAGE_MODELS:
        return made.eval(), set()
    made.eval()(**tiny.batch(family, task)).loss.backward()
    read = {name for name, parameter in made.named_parameters() if parameter.grad is not None}
    made.zero_grad(set_to_none=True)
    poolers = {name for name in read if ".pooler." in name}  # most language models have none
    return made, (new | poolers) & read


@pytest.mark.covering
@pytest.mark.parametrize("family", TRAINED)
@pytest.mark.parametrize("config", [PrefixTuningConfig, PromptTuningConfig])
def test_s9_prefixes_resume_report_and_unload(config, family, tmp_path):
    """peft: no training of a loaded prefix, no get_model_status, no unload."""
    model = prefixed(family, config)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.model(family), tmp_path, is_trainable=True)
    assert {name for name, parameter in again.named_parameters() if parameter.requires_grad} == trained
    again(**tiny.batch(family)).loss.backward()
    assert all(again.get_parameter(name).grad.abs().max() > 0 for name in own(again))
    status = again.get_model_status()
    assert status.active_adapters == ["default"]
    assert status.trainable_params == sum(model.get_parameter(name).numel() for name in trained)
    assert not any("foretoken" in name for name, _ in again.unload().named_modules())


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_a_decoders_prefix_has_its_gradient_under_every_attention(family):
    """adapters: with sdpa and boolean masks the mask is inverted, and the prefix has no gradient."""
    gradients = {}
    for implementation in ("sdpa", "eager"):
        plain = tiny.model(family, "CAUSAL_LM")
        plain.set_attn_implementation(implementation)
        model = tiny.shaken(adapted(plain, "prefix-tuning", task_type="CAUSAL_LM"))
        model(**tiny.batch(family, "CAUSAL_LM")).loss.backward()
        gradients[implementation] = {name: parameter.grad for name, parameter in own(model).items()}
    for name, gradient in gradients["sdpa"].items():
        assert gradient.abs().max() > 1e-5, name
        torch.testing.assert_close(gradient, gradients["eager"][name], atol=1e-5, rtol=1e-4)
