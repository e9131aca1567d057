"""Embeddings of new tokens trained beside any adapter: these rows alone are trained, saved and loaded."""

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file

from foretoken import AoTPTuningConfig, HeadOnlyConfig, LoraConfig, PrefixPropagationConfig, StackConfig, fuse, to_peft
from foretoken.errors import AdapterError, BackboneError, ConfigError
from foretoken.tuner.trained_tokens import FastTokensLayer

from support import tiny
from support.table import EMPTY, ROWS, train_with_checkpointing

NEW = [100, 101, 102, 103]
TASKS = dict.fromkeys(tiny.DECODERS, "CAUSAL_LM") | dict.fromkeys(tiny.SEQ2SEQ, "SEQ_2_SEQ_LM")
QUICK = ("bert", "longformer", "gpt2", "llama", "bart", "led")
FAMILIES = [family if family in QUICK else pytest.param(family, marks=pytest.mark.slow) for family in tiny.FAMILIES]
CELLS = [
    (method, family)
    for family in ("longformer", "gpt2", "t5")
    for method in ROWS
    if (method, family) not in EMPTY and method != "head-only"
]


def task_of(family):
    return TASKS.get(family, tiny.main_task(family))


def resized(family, *, seed=0, **changes):
    """Return a tiny model with four more embeddings; their values depend on the seed."""
    model = tiny.model(family, task_of(family), **changes)
    model.resize_token_embeddings(104, mean_resizing=False)
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in (model.get_output_embeddings(), model.get_input_embeddings()):
            if module is not None:
                module.weight[100:] = torch.randn(4, module.weight.shape[1])
    return model


def adapted(family, method="prefix-propagation", *, model=None, rows=NEW, **options):
    given = {"task_type": tiny.peft_task(task_of(family)), "trainable_token_indices": rows} | options
    return get_peft_model(model or resized(family), ROWS[method](**given)).eval()


def batch(family):
    """Return a batch whose texts and labels hold the new tokens."""
    inputs = tiny.batch(family, task_of(family))
    inputs["input_ids"][0, 3:7] = torch.tensor(NEW)
    inputs["input_ids"][1, 2] = 101
    if task_of(family) in TASKS.values():
        inputs["labels"][:, 2] = 102
        inputs.pop("decoder_input_ids", None)
    return inputs


def rows_of(model):
    return next(p for name, p in model.named_parameters() if "trainable_tokens_delta" in name)


def logits(model, inputs):
    with torch.no_grad():
        return tiny.first(model(**{name: x for name, x in inputs.items() if name != "labels"} | _decoder(inputs)))


def _decoder(inputs):
    """Return what an encoder-decoder's decoder reads where it is given no labels."""
    labels = inputs.get("labels")
    return {"decoder_input_ids": labels} if labels is not None and labels.dim() == 2 and labels.shape[1] == 6 else {}


def shaken(model):
    """Give the adapter and the rows values of their own."""
    tiny.shaken(model)
    with torch.no_grad():
        rows_of(model).normal_(generator=torch.Generator().manual_seed(5))
    return model


@pytest.mark.parametrize("family", FAMILIES)
class TestEveryFamily:
    def test_the_gradient_is_that_of_the_whole_table_at_these_rows(self, family):
        model = adapted(family).train()
        whole = get_peft_model(
            resized(family), ROWS["prefix-propagation"](task_type=tiny.peft_task(task_of(family)))
        ).train()
        whole.load_state_dict(model.state_dict(), strict=False)
        table = whole.get_input_embeddings().weight.requires_grad_(True)
        inputs = batch(family)
        losses = [one(**inputs).loss for one in (model, whole)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[0], losses[1])
        assert rows_of(model).grad.abs().max() > 1e-6
        torch.testing.assert_close(rows_of(model).grad, table.grad[100:], atol=1e-6, rtol=1e-4)
        assert model.get_input_embeddings().original_module.weight.grad is None

    def test_checkpointing_trains_the_rows_alone(self, family, tmp_path):
        if family in tiny.NO_CHECKPOINTING:
            pytest.skip("transformers has no checkpointing for this family")
        model = adapted(family)
        table, before = model.get_input_embeddings().original_module.weight.clone(), rows_of(model).clone()
        train_with_checkpointing(model, batch(family), tmp_path, steps=2)
        assert not torch.equal(rows_of(model), before)
        assert torch.equal(model.get_input_embeddings().original_module.weight, table)

    def test_without_the_adapter_the_model_is_as_it_was(self, family):
        inputs = batch(family)
        plain = resized(family)
        expected, state = logits(plain, inputs), {name: x.clone() for name, x in plain.state_dict().items()}
        model = shaken(adapted(family, model=plain))
        assert not torch.allclose(logits(model, inputs), expected, atol=1e-3)
        with model.disable_adapter():
            torch.testing.assert_close(logits(model, inputs), expected, atol=1e-5, rtol=1e-5)
        back = model.unload()
        torch.testing.assert_close(logits(back, inputs), expected, atol=1e-5, rtol=1e-5)
        assert {name: x.tolist() for name, x in back.state_dict().items()} == {n: x.tolist() for n, x in state.items()}

    def test_each_document_gets_the_rows_of_its_own_adapter(self, family):
        inputs = batch(family)
        given = {"task_type": tiny.peft_task(task_of(family)), "trainable_token_indices": NEW}
        model = shaken(adapted(family))
        model.add_adapter("other", ROWS["prefix-propagation"](**given))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "trainable_tokens_delta.other" in name:
                    parameter.normal_(generator=torch.Generator().manual_seed(9))
        model.eval()
        alone = []
        for name in ("default", "other"):
            model.set_adapter(name)
            alone.append(logits(model, inputs))
        with torch.no_grad():
            given = {name: x for name, x in inputs.items() if name != "labels"} | _decoder(inputs)
            mixed = tiny.first(model(**given, adapter_names=["default", "other", "__base__"]))
        with model.disable_adapter():
            alone.append(logits(model, inputs))
        for row, whole in enumerate(alone):
            torch.testing.assert_close(mixed[row][: whole.shape[1]], whole[row], atol=2e-5, rtol=1e-4)


@pytest.mark.covering
@pytest.mark.parametrize(("method", "family"), CELLS)
def test_the_file_has_the_rows_and_gives_the_same_on_any_resized_model(method, family, tmp_path):
    inputs = batch(family)
    model = shaken(adapted(family, method))
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    of_tokens = {name: x for name, x in saved.items() if "token_adapter" in name}
    assert [x.shape for x in of_tokens.values()] == [(4, 32)]
    assert not any(x.shape[0] == 104 for x in saved.values())
    again = PeftModel.from_pretrained(resized(family, seed=77), tmp_path).eval()
    torch.testing.assert_close(logits(again, inputs), logits(model, inputs), atol=2e-5, rtol=1e-4)


class TestParts:
    def test_our_layer_does_what_pefts_does(self):
        for family in ("bart", "gpt2", "gemma3_text"):
            model, inputs = shaken(adapted(family)), batch(family)
            layers = [module for module in model.modules() if type(module) is FastTokensLayer]
            assert layers
            ours = logits(model, inputs)
            for layer in layers:
                layer.__class__ = FastTokensLayer.__mro__[1]
            torch.testing.assert_close(logits(model, inputs), ours, atol=1e-6, rtol=1e-5)

    def test_an_output_with_a_table_of_its_own_has_rows_of_its_own(self):
        model = adapted("llama", rows={"embed_tokens": NEW, "lm_head": NEW}).train()
        whole = resized("llama")
        inputs = batch("llama")
        whole = get_peft_model(whole, ROWS["prefix-propagation"](task_type="CAUSAL_LM")).train()
        whole.load_state_dict(model.state_dict(), strict=False)
        table = whole.get_output_embeddings().weight.requires_grad_(True)
        for one in (model, whole):
            one(**inputs).loss.backward()
        own = model.get_output_embeddings().token_adapter.trainable_tokens_delta["default"]
        torch.testing.assert_close(own.grad, table.grad[100:], atol=1e-6, rtol=1e-4)

    def test_rows_are_all_that_a_language_model_without_a_head_trains(self):
        model = get_peft_model(resized("gpt2"), HeadOnlyConfig(task_type="CAUSAL_LM", trainable_token_indices=NEW))
        assert [tuple(p.shape) for p in model.parameters() if p.requires_grad] == [(4, 32)]

    def test_a_fused_table_has_the_new_tokens(self, tmp_path):
        config = AoTPTuningConfig(task_type="CAUSAL_LM", rank=4, trainable_token_indices=NEW)
        model, inputs = shaken(get_peft_model(resized("gpt2"), config).eval()), batch("gpt2")
        expected = logits(model, inputs)
        fuse(model, tmp_path, dtype=torch.float32)
        torch.testing.assert_close(logits(model, inputs), expected, atol=1e-5, rtol=1e-4)
        model.save_pretrained(tmp_path, save_embedding_layers=False)
        again = PeftModel.from_pretrained(resized("gpt2", seed=3), tmp_path).eval()
        torch.testing.assert_close(logits(again, inputs), expected, atol=1e-5, rtol=1e-4)


class TestRefused:
    def test_a_model_that_was_not_resized(self, tmp_path):
        adapted("gpt2").save_pretrained(tmp_path, save_embedding_layers=False)
        with pytest.raises(BackboneError, match=r"vocab_size 104 \(this model: 100\).*resize_token_embeddings\(104\)"):
            PeftModel.from_pretrained(tiny.model("gpt2", "CAUSAL_LM"), tmp_path)

    def test_tokens_beyond_the_embeddings(self):
        with pytest.raises(BackboneError, match=r"has 104, and the model has 104 embeddings.*\(106\) first"):
            adapted("gpt2", rows=[104, 105])

    def test_what_is_no_number_of_a_token(self):
        with pytest.raises(ConfigError, match="trainable_token_indices has '<new>'"):
            PrefixPropagationConfig(trainable_token_indices=["<new>"])
        with pytest.raises(ConfigError, match="trainable_token_indices is 5"):
            PrefixPropagationConfig(trainable_token_indices=5)

    def test_pefts_own_prompt_learning(self, tmp_path):
        with pytest.raises(AdapterError, match="cannot hold trained token embeddings"):
            to_peft(adapted("bert", "prefix-tuning"), tmp_path)

    def test_a_table_that_is_not_there(self):
        with pytest.raises(ConfigError, match="names 'tokens'"):
            adapted("bert", rows={"tokens": NEW})

    def test_rows_of_a_member_of_a_stack(self):
        with pytest.raises(ConfigError, match="give them to the stack itself"):
            StackConfig(configs=[LoraConfig(r=2, trainable_token_indices=NEW)])
