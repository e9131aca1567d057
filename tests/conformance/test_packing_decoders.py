"""Causal decoders: packed batches give what padded ones do, and what transformers' own do."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import DynamicCache

import foretoken
from foretoken.attention.attend import use_packing
from foretoken.attention.packed import parts
from foretoken.backbones.packing import HEAD_INPUTS, PACKS

from support import tiny
from support.packed import ALIKE, check_same, check_sped_up
from support.table import CHANGING, EMPTY, adapted

FAMILIES = tiny.DECODERS
WHOLE = ("gpt2", "llama", "mistral")  # with every method
QUICK = ("gpt2", "mistral")
CELLS = [
    pytest.param(f, m, marks=() if (m in ALIKE and f in QUICK) or f == "llama" else pytest.mark.slow)
    for f in FAMILIES
    for m in CHANGING
    if (m, f) not in EMPTY and (f in WHOLE or m in ALIKE)
]
N = 13
HEADS = [(f, task) for f in FAMILIES for task in ("SEQ_CLS", "TOKEN_CLS", "CAUSAL_LM") if task in tiny.tasks(f)]


@pytest.fixture(autouse=True)
def _each_by_itself(monkeypatch):
    monkeypatch.setattr(parts, "APART_FROM", -1)  # each document's attention by itself, however little there is of it


@pytest.fixture(autouse=True)
def _in_float64(monkeypatch):
    """Compute the loss of a language model, of float32 in transformers whatever the model is, without rounding."""
    to_float = torch.Tensor.float
    monkeypatch.setattr(
        torch.Tensor, "float", lambda x: x if x.requires_grad and x.dtype == torch.float64 else to_float(x)
    )


def batch(task="CAUSAL_LM", *, side="right", padded=True):
    """Return documents of 13, 8 and 1 tokens, one with a masked token in its midst; no label follows padding."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.ones(3, N, dtype=torch.long)
    if padded:
        mask[0, 5] = mask[1, 8:] = mask[2, 1:] = 0
    if side == "left":
        mask = mask.flip(1)
    inputs = {"input_ids": torch.randint(5, 100, (3, N), generator=generator) * mask, "attention_mask": mask}
    answers = tiny.answers(task, inputs, generator)
    if task == "CAUSAL_LM":
        answers["labels"][:, 1:][mask[:, :-1] == 0] = -100
    return inputs | answers


def decoder(family, method, task="CAUSAL_LM", **changes):
    model = tiny.shaken(adapted(tiny.model(family, task, **changes), method, task_type=task), scale=0.3).double()
    return model.train(task != "TOKEN_CLS")  # that head's dropout is 0.1 whatever the config says


@pytest.mark.covering
@pytest.mark.parametrize(("family", "method"), CELLS)
def test_packed_is_padded(family, method):
    rows, padded_rows = check_same(decoder(family, method), batch(), use_cache=False)
    prefix = padded_rows[: len(padded_rows) - 3]  # the pass of the prefix alone, where there is one
    assert rows == prefix + [22] * 3
    assert padded_rows == prefix + [39] * 3


@pytest.mark.parametrize("family", QUICK)
@pytest.mark.parametrize("method", ALIKE)
def test_attention_with_the_padding(family, method, monkeypatch):
    """As batches have it whose documents are about as long as each other."""
    monkeypatch.setattr(parts, "APART_FROM", 10**9)
    assert check_same(decoder(family, method), batch())[0][-1] == 22


@pytest.mark.covering
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", ["prefix-propagation", "stack, of every site"])
@pytest.mark.parametrize(
    ("family", "task"), [c if c[0] in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in HEADS]
)
def test_every_head_on_both_sides(family, method, task, side):
    rows, padded_rows = check_same(decoder(family, method, task), batch(task, side=side))
    assert rows[-1] == 22
    assert padded_rows[-1] == 39


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", QUICK)
def test_attention_implementations(family, implementation):
    model = tiny.model(family, "CAUSAL_LM")
    model.set_attn_implementation(implementation)
    model = tiny.shaken(adapted(model, "prefix-tuning", task_type="CAUSAL_LM")).double()
    assert check_same(model, batch())[0][-1] == 22


def test_positions_that_are_given():
    inputs = batch(side="left") | {"position_ids": torch.arange(N).repeat(3, 1) * 2}
    for family in QUICK:
        assert check_same(decoder(family, "prefix-propagation"), inputs)[0][-1] == 22


@pytest.mark.covering
@pytest.mark.parametrize(("family", "task"), HEADS)
def test_sped_up_is_transformers_own(family, task):
    inputs = batch(task)
    at = slice(None) if task == "SEQ_CLS" else inputs["attention_mask"].bool()
    check_sped_up(tiny.model(family, task), inputs, at=at)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_that_is_begun_packed_goes_on(family):
    """Its keys have the padding where a padded pass has it, and the next token is the padded one's."""
    model, inputs = decoder(family, "prefix-propagation").eval(), batch(side="left")
    steps, caches = [], []
    with torch.no_grad():
        for flag in (True, False):
            use_packing(flag)
            held = model(inputs["input_ids"], attention_mask=inputs["attention_mask"]).past_key_values
            assert type(held) is DynamicCache
            mask = functional.pad(inputs["attention_mask"], (0, 1), value=1)
            steps.append(model(torch.tensor([[7]] * 3), attention_mask=mask, past_key_values=held).logits)
            caches.append([(layer.keys, layer.values) for layer in held.layers])
    torch.testing.assert_close(*steps, atol=1e-9, rtol=0)
    for ours, theirs in zip(*caches, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            real = mask[:, -x.shape[2] :].bool()
            torch.testing.assert_close(x.transpose(1, 2)[real], y.transpose(1, 2)[real], atol=1e-9, rtol=0)


class TestHeadsThatReadPadding:
    """Where the states of padding are read, they are computed."""

    def check(self, inputs, task="CAUSAL_LM", **options):
        model = decoder("llama", "prefix-propagation", task)
        rows, _ = check_same(model, inputs, **options)
        assert rows[-1] == 39

    def test_labels_that_are_padding(self):
        inputs = batch()
        self.check(inputs | {"labels": inputs["input_ids"].clone()})

    def test_the_first_token_behind_padding_is_predicted(self):
        inputs = batch(side="left")
        self.check(inputs | {"labels": inputs["input_ids"].where(inputs["attention_mask"].bool(), -100)})

    def test_tags_of_padding(self):
        inputs = batch("TOKEN_CLS")
        self.check(inputs | {"labels": torch.ones_like(inputs["labels"])}, "TOKEN_CLS")

    def test_a_last_token_that_is_masked(self):
        inputs = batch("SEQ_CLS")
        self.check(inputs | {"input_ids": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 9)}, "SEQ_CLS")

    def test_embeddings_have_no_padding_that_a_classifier_knows(self):
        inputs = batch("SEQ_CLS")
        model = decoder("llama", "prefix-propagation", "SEQ_CLS")
        inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids")).detach()
        rows, _ = check_same(model, inputs)
        assert rows[-1] == 39

    def test_the_last_logits_alone(self):
        model, inputs = decoder("gpt2", "prefix-propagation"), batch()
        inputs.pop("labels")
        found = []
        for flag in (True, False):
            use_packing(flag)
            found.append(model(**inputs, logits_to_keep=2).logits)
        assert found[0].shape[1] == 2
        torch.testing.assert_close(*found, atol=1e-9, rtol=0)


def test_without_padding_nothing_is_packed():
    rows, padded_rows = check_same(decoder("mistral", "prefix-tuning"), batch(padded=False))
    assert rows == padded_rows


class TestTheLossOfALanguageModel:
    """It is computed of the real tokens' logits, wherever they are those that left the map to the vocabulary."""

    @pytest.fixture(autouse=True)
    def _shapes(self, monkeypatch):
        self.shapes = []
        cross_entropy = functional.cross_entropy

        def noted(logits, *args, **kwargs):
            self.shapes.append(len(logits))
            return cross_entropy(logits, *args, **kwargs)

        monkeypatch.setattr(functional, "cross_entropy", noted)

    def check(self, model, inputs, tokens=22):
        check_same(model, inputs)
        assert self.shapes == [tokens, 39]
        assert "_loss_function" not in vars(model.get_base_model())

    @pytest.mark.parametrize("family", QUICK)
    def test_without_padding(self, family):
        self.check(decoder(family, "prefix-propagation"), batch())

    def test_of_shifted_labels_and_a_number_of_tokens(self):
        inputs = batch()
        shifted = functional.pad(inputs["labels"], (0, 1), value=-100)[:, 1:].contiguous()
        self.check(decoder("llama", "prefix-propagation"), inputs | {"shift_labels": shifted, "num_items_in_batch": 5})

    def test_capped_logits(self):
        self.check(decoder("gemma3_text", "prefix-propagation", final_logit_softcapping=2.0), batch())

    @pytest.mark.parametrize("in_place", [False, True])
    def test_logits_that_a_hook_changes(self, in_place):
        model = decoder("llama", "prefix-propagation")
        change = torch.Tensor.mul_ if in_place else torch.Tensor.mul
        model.get_output_embeddings().register_forward_hook(lambda *given: change(given[-1], 2.0))
        self.check(model, batch())

    def test_a_loss_of_the_users_gets_padded_logits(self):
        model, given = decoder("llama", "prefix-propagation"), []
        model.get_base_model().loss_function = lambda logits, *_, **__: given.append(logits.shape[:2]) or logits.sum()
        model(**batch())
        assert given == [(3, N)]
        assert "_loss_function" in vars(model.get_base_model())


def test_a_trained_map_to_the_vocabulary():
    config = foretoken.PrefixPropagationConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_dropout=0.0, modules_to_save=["lm_head"]
    )
    model = tiny.shaken(get_peft_model(tiny.model("llama", "CAUSAL_LM", tie_word_embeddings=False), config)).double()
    rows, _ = check_same(model, batch())
    assert rows[-1] == 22


@pytest.mark.parametrize("position_free", [False, True])
@pytest.mark.parametrize("family", ["llama", "modernbert"])
def test_an_adapter_on_a_model_that_was_sped_up(family, position_free):
    """The rotations of the padded queries are noted, whatever was attached first."""
    config = foretoken.PrefixTuningConfig(
        task_type="SEQ_CLS", num_virtual_tokens=3, prefix_dropout=0.0, position_free=position_free
    )
    model = tiny.shaken(get_peft_model(foretoken.speed_up(tiny.model(family, "SEQ_CLS")), config)).double()
    assert check_same(model, batch("SEQ_CLS"))[0][-1] == 22


def test_lora_of_peft_alone():
    model = get_peft_model(tiny.model("llama", "CAUSAL_LM"), LoraConfig(task_type="CAUSAL_LM", r=2)).double()
    assert check_same(tiny.shaken(foretoken.speed_up(model)), batch())[0][-1] == 22


@pytest.mark.parametrize(("family", "projections"), [("bert", ["query", "value"]), ("llama", ["q_proj", "v_proj"])])
def test_documents_that_name_lora_of_peft_are_padded(family, projections):
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=projections, init_lora_weights=False)
    model = get_peft_model(tiny.model(family, "SEQ_CLS"), config).eval()
    model.add_adapter("other", copy.deepcopy(config))
    inputs = batch("SEQ_CLS") | {"adapter_names": ["other", "__base__", "default"]}
    with torch.no_grad():
        expected = model(**inputs).logits
        assert foretoken.speed_up(model)(**inputs).logits.equal(expected)
        assert not model(**batch("SEQ_CLS")).logits.allclose(expected, atol=1e-3)


def test_a_failed_pass_leaves_no_mark():
    model, inputs = foretoken.speed_up(tiny.model("gpt2", "CAUSAL_LM")), batch()
    body, expected = model.transformer, model(**inputs).logits

    def fail(*_):
        raise ZeroDivisionError

    for place in (body.h[1].mlp, model.lm_head):
        handle = place.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            model(**inputs)
        handle.remove()
        assert HEAD_INPUTS.get(body) is None
        assert PACKS.get(body).batch is None
        assert HEAD_INPUTS.get(body) is None
        assert not model.lm_head._forward_hooks
        assert model(**inputs).logits.equal(expected)


def test_a_mask_in_four_dimensions_is_padded():
    model, inputs = decoder("llama", "prefix-tuning"), batch()
    own = inputs["attention_mask"].bool()[:, None, None] & torch.ones(N, N, dtype=torch.bool).tril()
    found = []
    for flag in (True, False):
        use_packing(flag)
        found.append(model(inputs["input_ids"], attention_mask=own).logits)
    assert found[0].equal(found[1])
