"""Longformer's packed encoder: packed batches give what padded ones do, with and without adapters."""

import copy
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers.models.longformer.modeling_longformer import (
    LongformerEncoder,
    LongformerLayer,
    LongformerSelfAttention,
)

import foretoken
from foretoken.attention.attend import use_engine, use_packing
from foretoken.backbones.packing import HEAD_INPUTS
from foretoken.errors import BackboneError

from support import packed, tiny
from support.packed import both_sides, compare_gradients, empty, left, outcome, same, watched, whole
from support.table import ROWS, adapted

N = 27  # longer than the windows of 4 and 8, and no multiple of either
TASKS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "MULTIPLE_CHOICE", "MASKED_LM")


def lengths(mask):
    """Documents of all lengths: all of it, shorter, a single token, with holes."""
    mask[1, 19:] = mask[2, 1:] = mask[3, [1, 4, 11]] = mask[3, 23:] = 0


def batch(task="SEQ_CLS", **options):
    """Return four documents, or two of two choices each."""
    return packed.batch("longformer", task, **{"cut": lengths, "size": 4, "length": N} | options)


def model_for(method, task="SEQ_CLS", *, dtype=torch.float64, **options):
    """Return Longformer in float64, with a shaken adapter or without any."""
    frozen = tiny.model("longformer", task, **options)
    if method is None:
        return frozen.to(dtype)
    made = tiny.shaken(adapted(frozen, method, task_type=tiny.peft_task(task)), scale=0.3)
    return made.to(dtype)


def packing(method, task="SEQ_CLS"):
    """Return Longformer with a shaken adapter, or sped up."""
    return foretoken.speed_up(model_for(None, task)) if method is None else model_for(method, task)


def compare(model, inputs, **options):
    """Check that a packed and a padded pass agree, and that the packed one was packed; return its output."""
    output, shapes, padded_shapes = packed.compare(model, inputs, **options)
    size = inputs["attention_mask"].flatten(0, -2).shape[0]
    reads_padding = "start_logits" in output  # transformers' question answering: never packed
    assert {shape[0] for shape in shapes} == {size if reads_padding else 1}
    assert {shape[0] for shape in padded_shapes} == {size}
    return output


# ---- every method ------------------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", [None, *ROWS])
def test_every_method_and_task(method, task):
    if (method, task) == ("head-only", "MASKED_LM"):
        pytest.skip("there is no new head to train")
    model, inputs = packing(method, task), batch(task)
    compare(model.train(), inputs)  # dropout is 0 in the tiny models
    output = compare(model.eval(), inputs, output_hidden_states=True)
    assert output.hidden_states[0].shape[-2] == N


# ---- every batch -------------------------------------------------------------------------------------------------


def nothing(mask):
    mask[:] = 0


def globals_at(*places):
    def marks():
        found = torch.zeros(4, N, dtype=torch.long)
        for place in places:
            found[place] = 1
        return {"global_attention_mask": found}

    return marks


def everywhere():
    return {"global_attention_mask": torch.ones(4, N, dtype=torch.long)}


def given():
    return {"inputs_embeds": torch.randn(4, N, 32, dtype=torch.float64), "input_ids": None}


BATCHES = {
    "padded on the left": {"cut": left},
    "padded on both sides, holes": {"cut": both_sides},
    "a document without a token": {"cut": empty},
    "nothing but padding": {"cut": nothing},
    "no padding": {"cut": whole},
    "one document": {"cut": whole, "size": 1},
    "one token": {"cut": whole, "size": 2, "length": 1},
    "shorter than the windows": {"cut": whole, "length": 3},
    "global tokens anywhere": {"marks": globals_at((0, 3), (0, 26), (1, 0), (1, 18), (1, 25), (3, 3), (3, 7))},
    "one global token in all": {"marks": globals_at((1, 5))},
    "no global token": {"marks": globals_at()},
    "nothing but global tokens": {"marks": everywhere},
    "embeddings instead of ids": {"marks": given},
}


@pytest.mark.covering
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("method", [None, "prefix-propagation", "stack"])
def test_every_batch(method, kind):
    options = dict(BATCHES[kind])
    more = options.pop("marks", dict)()
    model = packing(method, "TOKEN_CLS")
    inputs = batch("TOKEN_CLS", **options, **more)
    if kind == "nothing but padding":
        inputs.pop("labels")  # whose mean would be that of nothing
        use_packing(True)
        assert model(**inputs).logits.isfinite().all()
    else:
        compare(model, inputs)
        compare(model.train(), inputs, output_hidden_states=True)


@pytest.mark.parametrize("method", [None, "prefix-propagation", "prefix-tuning", "inducer-tuning, adaptive"])
@pytest.mark.parametrize("kind", ["global tokens anywhere", "one global token in all", "no global token"])
def test_classification_with_global_tokens_of_the_users(method, kind):
    """The first token, whose state alone is computed in the last layer, may be global or not."""
    compare(packing(method), batch(**BATCHES[kind]["marks"]()))


@pytest.mark.parametrize("windows", [[2, 2, 2], [2, 16, 64], [64, 2, 2]], ids=str)
def test_every_layer_has_its_own_window(windows):
    compare(model_for("prefix-propagation", attention_window=windows), batch())


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS"])
def test_feed_forward_in_chunks(task):
    """transformers wants the length to be a multiple of the chunk, and a run of documents has any length."""
    whole_, chunked = (foretoken.speed_up(model_for(None, task, chunk_size_feed_forward=size)) for size in (0, 4))
    inputs = batch(task)
    with torch.no_grad():
        expected = whole_(**inputs).logits
        use_packing(True)
        found, shapes = watched(chunked, lambda: chunked(**inputs).logits)
    assert max(shape[1] for shape in shapes) <= 4
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("engine", ["gather-sdpa", "flex", "reference"])
@pytest.mark.parametrize("method", ["prefix-tuning", "stack, of every site"])
def test_every_engine_serves_a_packed_encoder(method, engine):
    model, inputs = model_for(method).train(), batch()
    expected, expected_grads, _ = outcome(model, inputs, True)
    use_engine(engine)
    got, grads, shapes = outcome(model, inputs, True)
    assert {shape[0] for shape in shapes} == {1}
    same(got.logits, expected.logits, 1e-9)
    compare_gradients(grads, expected_grads)


@pytest.mark.parametrize("method", [None, "prefix-propagation"])
def test_without_a_mask_all_tokens_are_real(method):
    model, inputs = packing(method), batch(cut=whole)
    expected = compare(model, inputs).logits
    same(model(input_ids=inputs["input_ids"]).logits, expected, 1e-12)
    same(model(input_ids=inputs["input_ids"], return_dict=False)[0], expected, 1e-12)


# ---- training ----------------------------------------------------------------------------------------------------


def test_training_after_inference_mode():
    """What inference mode has made, and what is kept from it, must not stand in the way of gradients."""
    model, inputs = model_for("stack, of every site", attention_window=[6, 6, 6]), batch()
    with torch.inference_mode():
        model(**inputs)
    compare(model.train(), inputs)


def test_training_of_the_whole_model():
    """Nothing is frozen: every weight of the last layer has its gradient."""
    model = foretoken.speed_up(model_for(None)).train()
    compare(model, batch())
    output, grads, _ = outcome(model, batch(), True)
    assert output.logits.shape == (4, tiny.LABELS)
    assert all(grad is not None for name, grad in grads.items() if "encoder.layer.2" in name)


@pytest.mark.parametrize("method", ["prefix-propagation", "stack, of every site"])
def test_bfloat16_autocast_is_as_near_to_float32_packed_as_padded(method):
    model, inputs = model_for(method, dtype=torch.float32).train(), batch()
    exact, exact_grads, _ = outcome(model, inputs, False)
    found = {}
    for is_packed in (True, False):
        with torch.autocast("cpu", torch.bfloat16):
            output, grads, shapes = outcome(model, inputs, is_packed)
        assert (shapes[0][0] == 1) is is_packed
        far = [(grad - exact_grads[name]).norm() / exact_grads[name].norm() for name, grad in grads.items()
               if grad is not None and exact_grads[name].norm() > 1e-4]  # fmt: skip
        found[is_packed] = float((output.logits - exact.logits).detach().norm()), float(torch.stack(far).mean())
    assert found[True][0] <= 2 * found[False][0] + 0.05
    assert found[True][1] <= 1.5 * found[False][1] + 0.01


def test_dropout_of_attention_weights_takes_the_padded_attention():
    """No packed engine drops weights; the layers around the attention stay packed."""
    frozen = tiny.model("longformer", attention_probs_dropout_prob=0.5)
    model = tiny.shaken(adapted(frozen, "stack"), scale=0.3).double().train()
    output, grads, shapes = outcome(model, batch(), True)
    assert {shape[0] for shape in shapes} == {1}
    assert output.logits.isfinite().all()
    assert all(grad is None or grad.isfinite().all() for grad in grads.values())
    compare(model.eval(), batch())


# ---- adapters on top and side by side ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["speed_up", "lora"])
def test_lora_on_the_projections(first):
    """With other numbers of global tokens by document, of which transformers' own gradients are not finite."""
    torch.manual_seed(3)
    model = model_for(None)
    if first == "speed_up":
        foretoken.speed_up(model)
    targets = ["query", "value", "query_global", "value_global"]
    model = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).double()
    model = foretoken.speed_up(model)
    inputs = batch(**globals_at((0, 0), (0, 9), (1, 0), (2, 0), (3, 5))())
    compare(model.train(), inputs)
    compare(model.eval().merge_and_unload(), inputs)


def classes(model):
    body = model.get_submodule("longformer")
    layer = body.encoder.layer[0]
    return type(body.encoder), type(layer), type(layer.attention.self)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("method", [None, "stack, of every site"])
def test_a_copy_is_packed_too_and_independent(method, again):
    model = packing(method)
    inputs = batch()
    expected = compare(model, inputs).logits
    twin = again(model)
    same(compare(twin, inputs).logits, expected, 1e-12)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    compare(twin, inputs)
    same(model(**inputs).logits, expected, 1e-12)


def test_a_copy_taken_before_the_first_pass_watches_its_own_encoder():
    model = model_for("prefix-propagation")
    twin = copy.deepcopy(model)
    _, shapes = watched(twin, lambda: twin(**batch()))
    assert shapes[-1] == (1, 4, 32)
    assert HEAD_INPUTS.get(model.get_base_model().longformer.encoder) is None


# ---- a plain model -----------------------------------------------------------------------------------------------


def test_gradients_of_a_plain_model_are_transformers_own():
    theirs, inputs = model_for(None, "TOKEN_CLS", dtype=torch.float32), batch("TOKEN_CLS")
    ours = foretoken.speed_up(copy.deepcopy(theirs))
    compare_gradients(outcome(ours, inputs, True)[1], outcome(theirs, inputs, True)[1], 1e-5)


def test_attention_maps_are_refused_with_a_way_out():
    model, inputs = foretoken.speed_up(model_for(None)), batch()
    with pytest.raises(BackboneError, match="does not return attention maps; leave out output_attentions"):
        model(**inputs, output_attentions=True)
    assert HEAD_INPUTS.get(model.longformer.encoder) is None
    assert foretoken.undo_speed_up(model)(**inputs, output_attentions=True).attentions[0] is not None


def test_speed_up_stays_when_an_adapter_comes_and_goes():
    model, inputs = foretoken.speed_up(model_for(None)), batch()
    expected = compare(model, inputs).logits
    wrapped = tiny.shaken(adapted(model, "prefix-propagation", task_type="SEQ_CLS")).double()
    compare(wrapped, inputs)
    same(compare(wrapped.unload(), inputs).logits, expected, 1e-12)
    foretoken.undo_speed_up(model)
    assert classes(model) == (LongformerEncoder, LongformerLayer, LongformerSelfAttention)


def test_hooks_of_the_users_see_the_run():
    """They stay in place and may change what passes; a layer sees one long document (1, S, D)."""
    model, inputs = model_for("prefix-propagation", "TOKEN_CLS"), batch("TOKEN_CLS")
    layer = model.get_base_model().longformer.encoder.layer[1]
    seen, plain = [], compare(model, inputs).logits
    handle = layer.register_forward_hook(lambda _, args, out: seen.append(out[0].shape) or (2 * out[0], *out[1:]))
    use_packing(True)
    changed = model(**inputs).logits
    tokens = int(inputs["attention_mask"][:3].sum()) + 23  # of the fourth, holes and all
    assert seen == [(1, 4 * 3 + tokens, 32)]
    assert float((changed - plain).detach().abs().max()) > 1e-3
    compare(model, inputs)
    handle.remove()
    same(compare(model, inputs).logits, plain, 1e-12)


@pytest.mark.parametrize("path", ["", "attention", "attention.self", "attention.output", "intermediate", "output"])
def test_hooks_of_the_users_on_the_last_layer_are_called(path):
    model, inputs = foretoken.speed_up(model_for(None)), batch()
    called = []
    module = model.longformer.encoder.layer[2].get_submodule(path)
    module.register_forward_hook(lambda *_: called.append(path))
    with torch.no_grad():
        _, shapes = watched(model, lambda: model(**inputs))
    assert called == [path]
    assert (shapes[-1] == shapes[0]) is (path in ("", "attention"))  # whose states would not be what they seem


# ---- the last layer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["SEQ_CLS", "MULTIPLE_CHOICE"])
@pytest.mark.parametrize("method", [None, "prefix-propagation", "inducer-tuning", "bottleneck-adapter, houlsby"])
def test_the_last_layer_computes_what_the_head_reads(method, task):
    model, inputs = model_for(method, task), batch(task)
    if method is None:
        model = foretoken.speed_up(model)
        model.longformer.requires_grad_(False)
    _, shapes = watched(model, lambda: model(**inputs))
    rows = 3 if method == "prefix-propagation" else 0
    run = 4 * rows + N + 19 + 1 + 23
    assert shapes == [(1, run, 32), (1, run, 32), (1, 4, 32)]
    compare(model, inputs)
