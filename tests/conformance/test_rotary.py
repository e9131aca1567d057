"""EuroBERT, Nomic BERT, Jina embeddings v3: their layers with rows, written out with loops in float64; their heads."""

import math
from functools import partial

import pytest
import torch
from transformers.models.eurobert.modeling_eurobert import EuroBertRMSNorm

from support import tiny
from support.families import rms_norm, rotary_embedding
from support.naive_functions import gelu, layer_norm, rotated, softmax
from support.table import adapted

HEADS, WIDTH = 4, 8
FAMILIES = [family for family in tiny.ROTARY if family != "modernbert"]


def exact(family, method):
    """Return an adapted bare model in float64, transformers' part of it exact in that type; no norm is neutral."""
    plain = tiny.model(family, "FEATURE_EXTRACTION").double()
    for parameter in (p for p in plain.parameters() if p.dim() == 1):
        torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    for module in (m for m in plain.modules() if isinstance(m, EuroBertRMSNorm)):
        module.forward = partial(rms_norm, module)
    plain.rotary_emb.forward = partial(rotary_embedding, plain.rotary_emb)
    return tiny.shaken(adapted(plain, method).double())


class Naive:
    """The model of one document."""

    def __init__(self, model):
        self.config = model.config
        named = ((n.removeprefix("base_model.model."), p) for n, p in model.named_parameters())
        self.weights = {name.replace("foretoken.default.", ""): parameter for name, parameter in named}
        self.kind = self.config.model_type

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, x, name):
        weight = self.weights[f"{name}.weight"]
        if self.kind == "eurobert":
            return x / (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * weight
        return layer_norm(x, weight, self.weights[f"{name}.bias"], self.config.layer_norm_eps)

    def feed_forward(self, x, at):
        if self.kind == "jina_embeddings_v3":
            return self.linear(gelu(self.linear(x, f"{at}.fc1")), f"{at}.fc2")
        gate = self.linear(x, f"{at}.gate_proj")
        return self.linear(gate / (1 + torch.exp(-gate)) * self.linear(x, f"{at}.up_proj"), f"{at}.down_proj")

    def attention(self, x, at, rows):
        theta = self.config.rope_parameters["rope_theta"]
        query, key, value = (self.linear(x, f"{at}.{name}_proj").unflatten(1, (-1, WIDTH)) for name in "qkv")
        shared, own = HEADS // key.shape[1], self.weights.get(f"{at}.prefix.weight", x[:0])
        keys, values = own.view(len(own), 2, *key.shape[1:]).unbind(1) if len(own) else (key[:0], value[:0])
        out = torch.empty(len(x), HEADS, WIDTH, dtype=torch.float64)
        for head in range(HEADS):
            seen = [rotated(k, max(j - rows, 0), theta) for j, k in enumerate(key[:, head // shared])]
            for i in range(len(x)):
                turned, plain = rotated(query[i, head], max(i - rows, 0), theta), [*keys[:, head // shared]]
                scores = torch.stack([turned @ k for k in (*seen, *plain)]) / math.sqrt(WIDTH)
                out[i, head] = softmax(scores) @ torch.cat([value[:, head // shared], values[:, head // shared]])
        return self.linear(out.flatten(1), f"{at}.o_proj")

    def __call__(self, ids):
        """(N,) -> (N, D)."""
        is_first_normed, rows = self.kind == "eurobert", 0
        if is_first_normed:
            x = self.weights["embed_tokens.weight"][ids]
        else:
            table, kinds = (self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
            x = self.norm(table[ids] + kinds[0], "embeddings.LayerNorm")
        for at in (f"layers.{number}" for number in range(self.config.num_hidden_layers)):
            if (own := self.weights.get(f"{at}.prefix.weight")) is not None:
                x = torch.cat([x[:rows] + own, x[rows:]]) if rows else torch.cat([own, x])
                rows = len(own)
            if is_first_normed:
                x = x + self.attention(self.norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", rows)
                x = x + self.feed_forward(self.norm(x, f"{at}.post_attention_layernorm"), f"{at}.mlp")
            else:
                x = self.norm(x + self.attention(x, f"{at}.self_attn", rows), f"{at}.post_attention_layernorm")
                x = self.norm(x + self.feed_forward(x, f"{at}.mlp"), f"{at}.post_mlp_layernorm")
        return self.norm(x[rows:], "norm") if is_first_normed else x[rows:]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_the_model_is_what_the_loops_compute(method, family):
    model, inputs = exact(family, method), tiny.batch(family, "FEATURE_EXTRACTION")
    naive = Naive(model)
    with torch.no_grad():
        output = model(**inputs)
        for row, length in enumerate((20, 14, 20)):
            expected = naive(inputs["input_ids"][row, :length])
            torch.testing.assert_close(output.last_hidden_state[row, :length], expected, atol=1e-10, rtol=0)
            if output.get("pooler_output") is not None:  # of the first token, not of the row before it
                pooled = naive.linear(expected[0], "pooler.dense").tanh()
                torch.testing.assert_close(output.pooler_output[row], pooled, atol=1e-10, rtol=0)


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_the_head_of_eurobert_reads_the_text_alone(pooling):
    plain, inputs = tiny.model("eurobert", classifier_pooling=pooling), tiny.batch("eurobert", labels=False)
    model = tiny.shaken(adapted(plain, "prefix-propagation", task_type="SEQ_CLS"))
    logits, inner = tiny.run(model, inputs), model.get_base_model()
    with torch.no_grad():
        for ids, mask, found in zip(*inputs.values(), logits, strict=True):
            states = inner.model(input_ids=ids[None, : mask.sum()])[0][0]
            read = {"bos": states[:1], "mean": states.mean(0, keepdim=True), "late": states}[pooling]
            expected = inner.classifier(gelu(inner.dense(read))).mean(0)
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
