"""One pass of a model, packed and padded: outputs, gradients, and how many rows the feed-forward blocks computed."""

import torch

from foretoken.attention.choose import use_packing

FEED_FORWARD = ("intermediate.dense", "ffn.lin1", "mlp.Wi", "mlp.c_fc", "mlp.gate_proj")


def outcome(model, inputs, packed, **options):
    """Return output, gradients, and the rows that entered each layer's feed-forward block."""
    use_packing(packed)
    model.zero_grad(set_to_none=True)
    rows = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[0] * args[0].shape[1]))
        for name, module in model.named_modules()
        if name.endswith(FEED_FORWARD)
    ]
    output = model(**inputs, **options)
    output.loss.backward()
    for hook in hooks:
        hook.remove()
    use_packing(None)
    return output, {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, rows


def check_same(model, inputs, **options):
    """Compare loss, logits of real tokens and gradients; return the rows of both passes."""
    (ours, our_gradients, rows), (theirs, gradients, padded_rows) = (
        outcome(model, inputs, p, **options) for p in (True, False)
    )
    mask = inputs["attention_mask"]
    real = mask.bool() if ours.logits.shape[:2] == mask.shape else slice(None)
    torch.testing.assert_close(ours.loss, theirs.loss, atol=1e-9, rtol=0)
    torch.testing.assert_close(ours.logits[real], theirs.logits[real], atol=1e-9, rtol=0)
    for name, gradient in gradients.items():
        assert (our_gradients[name] is None) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(our_gradients[name], gradient, atol=1e-9, rtol=0)
    return rows, padded_rows
