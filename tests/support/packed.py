"""What the tests of packed encoders do alike: a batch with padding, and a packed pass beside a padded one."""

import copy
import pickle
import re
from functools import partial

import torch

from foretoken import speed_up, undo_speed_up
from foretoken.attention.attend import use_packing
from foretoken.training.problems.question_answering import window_losses

from support import tiny

BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert")
# packed by the first layer and unpacked by the last, which computes all tokens whatever the head reads
FIRST_LAYER_PACKS = (*tiny.ROTARY, "mpnet", "deberta-v2", "big_bird", "big_bird, full", "led")
ALIKE = ("prefix-propagation", "prefix-tuning", "inducer-tuning, MAM", "stack, of every site")  # enough for a family
PACKED = (*BERT_LIKE, *FIRST_LAYER_PACKS)
FEED_FORWARD = re.compile(r"(layers?|h)\.\d+\.(intermediate\.dense|ffn\.lin1|mlp\.(Wi|c_fc|gate_proj|fc1)|fc1)$")
ROUNDED = {"deberta-v2": 1e-6}  # transformers' own attention scales by a square root in float32
N = 19  # enough for BigBird's blocks, and no multiple of anything


def whole(mask):
    """Leave out nothing."""


def holes(mask):
    """One document with a hole, a shorter one, one of a single token."""
    mask[0, 5] = mask[1, 8:] = mask[2, 1:] = 0


def left(mask):
    mask[0, :4] = mask[1, :-2] = mask[2, :-1] = 0


def both_sides(mask):
    mask[0, :4] = mask[0, -4:] = mask[1, :3] = mask[1, 9:12] = mask[-1, 1::2] = 0


def empty(mask):
    mask[1] = mask[2, 1:] = 0


def batch(family, task, *, cut=holes, size=3, length=N, **more):
    """Return a batch of documents with labels; ``cut`` writes padding into its (documents, tokens) mask."""
    generator = torch.Generator().manual_seed(3)
    shape = (size // 2, 2, length) if task == "MULTIPLE_CHOICE" else (size, length)
    mask = torch.ones(shape, dtype=torch.long)
    cut(mask.view(-1, length))
    ids = torch.randint(5, 100, shape, generator=generator)
    if family == "longformer" and task in ("QUESTION_ANS", "MULTIPLE_CHOICE"):
        ids[..., [2, 5, 10]] = 2  # it finds the question by three separators
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family == "led":
        inputs["global_attention_mask"] = torch.zeros_like(mask)
        inputs["global_attention_mask"][0, [0, 11]] = inputs["global_attention_mask"][1:2, 3] = 1
        inputs["decoder_input_ids"] = torch.randint(5, 100, (size, 6), generator=generator)
    return inputs | tiny.answers(task, inputs, generator) | more


def watched(model, run):
    """Return what ``run`` does, and the shapes of the hidden states that entered the layers' feed-forward blocks."""
    shapes = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
        for name, module in model.named_modules()
        if FEED_FORWARD.search(name) and ".decoder." not in name
    ]
    result = run()
    for hook in hooks:
        hook.remove()
    return result, shapes


def outcome(model, inputs, packed, **options):
    """Return output, gradients of a backward pass, and the shapes at work, packed or padded."""
    use_packing(packed)
    model.zero_grad(set_to_none=True)
    output, shapes = watched(model, lambda: model(**inputs, **options))
    loss = loss_of(output, inputs["attention_mask"].bool())
    if loss.requires_grad:
        loss.backward()
    use_packing(None)
    return output, {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, shapes


def loss_of(output, real):
    """Return the model's loss, or for question answering without labels that of `foretoken train`."""
    if output.loss is not None:
        return output.loss
    rights = torch.zeros_like(real), torch.zeros_like(real)
    rights[0][:2, 2], rights[1][:2, 6] = True, True
    return window_losses(output.start_logits, output.end_logits, *rights, here=real).mean()


def compare(model, inputs, *, atol=1e-9, **options):
    """Check that a packed pass gives the outputs, the loss and the gradients of a padded one.

    Return its output, and the shapes at work in the packed and in the padded pass.
    """
    (ours, our_gradients, shapes), (theirs, gradients, padded_shapes) = (
        outcome(model, inputs, packed, **options) for packed in (True, False)
    )
    real = inputs["attention_mask"].bool()
    assert set(ours) == set(theirs)
    same(loss_of(ours, real), loss_of(theirs, real), atol)
    for name in [name for name in theirs if name.endswith(("logits", "last_hidden_state"))]:
        same(at_tokens(ours[name], real), at_tokens(theirs[name], real), atol)
    for one, other in zip(ours.get("hidden_states") or (), theirs.get("hidden_states") or (), strict=True):
        same(one[real.flatten(0, -2)], other[real.flatten(0, -2)], atol)
    compare_gradients(our_gradients, gradients, atol)
    return ours, shapes, padded_shapes


def check_same(model, inputs, **options):
    """Compare a packed pass with a padded one; return how many tokens each layer computed in either."""
    _, *both = compare(model, inputs, **options)
    return tuple([shape[0] * shape[1] for shape in shapes] for shapes in both)


def at_tokens(x, real):
    return x[real] if x.shape[: real.dim()] == real.shape else x


def same(one, other, atol):
    assert one.isfinite().all()
    torch.testing.assert_close(one, other, atol=atol * max(1.0, float(other.detach().abs().max())), rtol=0)


def compare_gradients(ours, theirs, atol=1e-9):
    assert {name for name, grad in ours.items() if grad is None} == {n for n, grad in theirs.items() if grad is None}
    for name, grad in theirs.items():
        if grad is not None:
            assert ours[name].isfinite().all(), name
            size = max(1.0, float(grad.abs().max()))
            torch.testing.assert_close(ours[name], grad, atol=atol * size, rtol=0, msg=partial("{}: {}".format, name))


def check_sped_up(plain, inputs, *, at=slice(None), states="hidden_states"):
    """Check that a model that is sped up computes what transformers' own does, copied and pickled too, and goes back.

    ``at``: the places of the logits that are compared.
    """
    classes = [type(module) for module in plain.modules()]
    with torch.no_grad():
        theirs = copy.deepcopy(plain)(**inputs, output_hidden_states=True)
        speed_up(plain)
        ours = plain(**inputs)
        unpickled = pickle.loads(pickle.dumps(plain))(**inputs)
        copied = copy.deepcopy(plain)(**inputs)
        more = plain(**inputs, output_hidden_states=True)
    for found in (ours, unpickled, copied, more):
        torch.testing.assert_close(found.loss, theirs.loss, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.logits[at], theirs.logits[at], atol=1e-5, rtol=1e-5)
    assert [state.shape for state in more[states]] == [state.shape for state in theirs[states]]
    assert [type(module) for module in undo_speed_up(plain).modules()] == classes
    assert plain(**inputs).logits.equal(theirs.logits)
