"""What the tests of packed encoders do alike: a batch with padding, and a packed pass beside a padded one."""

import re

import torch

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


def batch(family, task, *, cut=holes, size=3):
    """Return a batch of documents with labels; ``cut`` writes padding into its mask."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.ones(size, N, dtype=torch.long)
    cut(mask)
    ids = torch.randint(5, 100, (size, N), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family == "led":
        inputs["global_attention_mask"] = torch.zeros_like(mask)
        inputs["global_attention_mask"][0, [0, 11]] = inputs["global_attention_mask"][1:2, 3] = 1
        inputs["decoder_input_ids"] = torch.randint(5, 100, (size, 6), generator=generator)
    return inputs | tiny.answers(task, inputs, generator)


def outcome(model, inputs, packed, **options):
    """Return output, gradients, and how many tokens entered each layer's feed-forward block."""
    use_packing(packed)
    model.zero_grad(set_to_none=True)
    rows = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[0] * args[0].shape[1]))
        for name, module in model.named_modules()
        if FEED_FORWARD.search(name) and ".decoder." not in name
    ]
    output = model(**inputs, **options)
    loss_of(output, inputs["attention_mask"].bool()).backward()
    for hook in hooks:
        hook.remove()
    use_packing(None)
    return output, {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, rows


def loss_of(output, real):
    """Return the model's loss, or for question answering without labels that of `foretoken train`."""
    if output.loss is not None:
        return output.loss
    rights = torch.zeros_like(real), torch.zeros_like(real)
    rights[0][:2, 2], rights[1][:2, 6] = True, True
    return window_losses(output.start_logits, output.end_logits, *rights, here=real).mean()


def check_same(model, inputs, *, atol=1e-9, **options):
    """Check that a packed pass gives the outputs, the loss and the gradients of a padded one; return their tokens."""
    (ours, our_gradients, rows), (theirs, gradients, padded_rows) = (
        outcome(model, inputs, p, **options) for p in (True, False)
    )
    mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(loss_of(ours, mask), loss_of(theirs, mask), atol=atol, rtol=0)
    for name in [name for name in theirs if name.endswith(("logits", "last_hidden_state"))]:
        real = mask if theirs[name].shape[:2] == mask.shape else slice(None)
        torch.testing.assert_close(ours[name][real], theirs[name][real], atol=atol, rtol=0)
    for name, gradient in gradients.items():
        assert (our_gradients[name] is None) == (gradient is None), name
        if gradient is not None:
            size = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(our_gradients[name], gradient, atol=atol * size, rtol=0)
    return rows, padded_rows
