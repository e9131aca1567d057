"""DeBERTa and MPNet, whose scores know the tokens' distances, against their layers written out with loops."""

import math

import pytest
import torch
from peft import get_peft_model

from foretoken import BitFitConfig, PrefixPropagationConfig

from support import tiny
from support.naive_functions import gelu, layer_norm, softmax
from support.table import adapted

P, HEADS, WIDTH = 3, 4, 8
VARIANTS = {  # of DeBERTa, changes of the tiny one
    "v3": {},
    "v2-xlarge": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "projections of its own": {"share_att_key": False, "norm_rel_ebd": "none"},
    "c2p alone": {"pos_att_type": ["c2p"]},
    "p2c alone": {"pos_att_type": ["p2c"]},
    "without buckets": {"position_buckets": -1},
    "absolute positions": {"relative_attention": False, "position_biased_input": True},
}
MODELS = [("deberta-v2", variant) for variant in VARIANTS] + [("mpnet", "")]


def bare(family, variant="", task="FEATURE_EXTRACTION"):
    """Return a tiny model whose biases are not zero."""
    model = tiny.model(family, task, **VARIANTS.get(variant, {}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    return model


def weights_of(model):
    """Return every parameter by its name in the frozen model; an adapter's by `encoder.layer.0.prefix.weight`."""
    names = {name.removeprefix("base_model.model."): parameter for name, parameter in model.named_parameters()}
    for inside in ("foretoken.default.", "attention.self.prefix", "attention.attn.prefix"):
        names = {name.replace(inside, inside.partition("prefix")[1]): p for name, p in names.items()}
    return {name.replace("..", "."): parameter for name, parameter in names.items()}


class Naive:
    """What both families share: post-norm layers, one document, rows in front and prefixes beside the keys."""

    def __init__(self, model):
        self.config = model.config
        self.weights = {name: parameter.detach() for name, parameter in weights_of(model).items()}

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.config.layer_norm_eps)

    def __call__(self, ids):
        """(N,) -> (N, D)."""
        embedded = x = self.embed(ids)
        rows = 0
        for number in range(self.config.num_hidden_layers):
            own = self.weights.get(f"encoder.layer.{number}.prefix.weight")
            if own is not None and own.shape[1] == HEADS * WIDTH:
                x = torch.cat([own, x]) if number == 0 else torch.cat([x[:P] + own, x[P:]])
                rows = P
            x = self.layer(f"encoder.layer.{number}.", x, rows)
            if number == 0:
                x = self.after_first(embedded, x, rows)
        return x[rows:]

    def layer(self, name, x, rows):
        x = self.attention_norm(name, x, self.attended(name, x, rows))
        inner = gelu(self.linear(name + "intermediate.dense", x))
        return self.norm(name + "output.LayerNorm", x + self.linear(name + "output.dense", inner))

    def attended(self, name, x, rows):
        """(P + N, D) -> (P + N, D), before the output projection."""
        query, key, value = (y.view(len(x), HEADS, WIDTH) for y in self.projected(name, x))
        keys, values = self.prefix(name)
        out = torch.empty_like(value)
        for head in range(HEADS):
            for i in range(len(x)):
                scores = [
                    self.score(name, head, query[i, head], key[j, head], None if i < rows or j < rows else i - j)
                    for j in range(len(x))
                ]
                scores += [query[i, head] @ k * self.scale for k in keys[:, head]]
                out[i, head] = softmax(torch.stack(scores)) @ torch.cat([value[:, head], values[:, head]])
        return out.flatten(1)

    def prefix(self, name):
        both = self.weights.get(f"{name}prefix.weight")
        if both is None or both.shape[1] != 2 * HEADS * WIDTH:
            return torch.zeros(2, 0, HEADS, WIDTH, dtype=torch.float64)
        return both.view(-1, 2, HEADS, WIDTH).unbind(1)

    def after_first(self, embedded, x, rows):
        return x


class NaiveDeberta(Naive):
    def __init__(self, model):
        super().__init__(model)
        config = self.config
        self.kinds = config.pos_att_type if config.relative_attention else []
        self.scale = 1 / math.sqrt(WIDTH * (1 + len(config.pos_att_type)))
        self.span = config.position_buckets if config.position_buckets > 0 else config.max_position_embeddings
        self.distances = self.weights.get("encoder.rel_embeddings.weight")
        if self.distances is not None and config.norm_rel_ebd == "layer_norm":
            self.distances = self.norm("encoder.LayerNorm", self.distances)

    def embed(self, ids):
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        if self.config.position_biased_input:
            x = x + self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        return self.norm("embeddings.LayerNorm", x)

    def projected(self, name, x):
        return (self.linear(f"{name}attention.self.{kind}_proj", x) for kind in ("query", "key", "value"))

    def score(self, name, head, query, key, distance):
        """Contents with contents; with the distance, unless a row in front takes part."""
        score = query @ key
        if distance is not None and "c2p" in self.kinds:
            score = score + query @ self.distance_vector(name, "key", head, distance)
        if distance is not None and "p2c" in self.kinds:
            score = score + key @ self.distance_vector(name, "query", head, distance)
        return score * self.scale

    def distance_vector(self, name, kind, head, distance):
        own = "" if self.config.share_att_key else "pos_"
        index = min(max(self.bucket(distance) + self.span, 0), 2 * self.span - 1)
        vector = self.linear(f"{name}attention.self.{own}{kind}_proj", self.distances[index])
        return vector.view(HEADS, WIDTH)[head]

    def bucket(self, distance):
        """Exact near by, logarithmic from half of the buckets on."""
        middle, far = self.span // 2, self.config.max_position_embeddings - 1
        if self.config.position_buckets <= 0 or abs(distance) <= middle:
            return distance
        part = math.log(abs(distance) / middle) / math.log(far / middle)
        return int(math.copysign(math.ceil(part * (middle - 1)) + middle, distance))

    def attention_norm(self, name, x, attended):
        projected = self.linear(name + "attention.output.dense", attended)
        return self.norm(name + "attention.output.LayerNorm", x + projected)

    def after_first(self, embedded, x, rows):
        """A convolution over the embeddings of neighbouring tokens; a row in front gets none of it."""
        if not getattr(self.config, "conv_kernel_size", 0):
            return x
        kernel, bias = self.weights["encoder.conv.conv.weight"], self.weights["encoder.conv.conv.bias"]
        mixed = torch.zeros_like(x)
        for i in range(len(embedded)):
            near = [(i + step, kernel[:, :, step + 1]) for step in (-1, 0, 1) if 0 <= i + step < len(embedded)]
            mixed[rows + i] = gelu(sum(weight @ embedded[j] for j, weight in near) + bias)
        return self.norm("encoder.conv.LayerNorm", x + mixed)


class NaiveMpnet(Naive):
    scale = WIDTH**-0.5

    def embed(self, ids):
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][2 : 2 + len(ids)]
        return self.norm("embeddings.LayerNorm", x)

    def projected(self, name, x):
        return (self.linear(f"{name}attention.attn.{kind}", x) for kind in "qkv")

    def score(self, name, head, query, key, distance):
        bias = 0.0
        if distance is not None:
            bias = self.weights["encoder.relative_attention_bias.weight"][self.bucket(-distance), head]
        return query @ key * self.scale + bias

    def bucket(self, distance):
        """16 buckets either way: 8 exact ones, 8 logarithmic ones up to a distance of 128."""
        size = abs(distance)
        if size >= 8:
            size = min(8 + int(math.log(size / 8) / math.log(128 / 8) * 8), 15)
        return size + 16 * (distance > 0)

    def attention_norm(self, name, x, attended):
        return self.norm(name + "attention.LayerNorm", x + self.linear(name + "attention.attn.o", attended))


NAIVE = {"deberta-v2": NaiveDeberta, "mpnet": NaiveMpnet}


@pytest.mark.covering
@pytest.mark.parametrize(("family", "variant"), MODELS)
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_the_model_is_what_the_loops_compute(method, family, variant):
    """Rows have no distance from anything; documents are padded, and longer than the buckets."""
    model = tiny.shaken(adapted(bare(family, variant).double(), method).double())
    inputs = tiny.batch(family, "FEATURE_EXTRACTION")
    naive = NAIVE[family](model)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
        with model.disable_adapter():
            change = (states - model(**inputs).last_hidden_state).abs().amax(-1)
    assert change[inputs["attention_mask"].bool()].min() > 1e-2
    for row, length in enumerate((20, 14)):
        expected = naive(inputs["input_ids"][row, :length])
        torch.testing.assert_close(states[row, :length], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("family", "variant"), MODELS)
@pytest.mark.parametrize("names", [None, ["default"] * 3])
def test_bitfit_is_a_change_of_the_biases(names, family, variant):
    """Also where one projection is used for tokens and for distances, and in a convolution."""
    inputs = tiny.batch(family, "FEATURE_EXTRACTION")
    model = tiny.shaken(get_peft_model(bare(family, variant), BitFitConfig())).eval()
    moved = bare(family, variant)
    with torch.no_grad():
        shifts = {n: p for n, p in model.get_base_model().named_parameters() if n.endswith(".shift")}
        for name, shift in shifts.items():
            moved.get_submodule(name.removesuffix(".foretoken.default.shift")).bias.add_(shift)
        assert len(shifts) == sum(name.endswith("bias") for name, _ in moved.named_parameters())
        given = {} if names is None else {"adapter_names": names}
        states = model(**inputs, **given).last_hidden_state
        expected = moved(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()  # states of padding are zeros where a batch is packed
    torch.testing.assert_close(states[real], expected[real], atol=2e-5, rtol=2e-5)


def test_a_convolution_survives_an_adapter():
    """Its classes come back, and it computes what it computed before."""
    plain, inputs = bare("deberta-v2", "v2-xlarge"), tiny.batch("deberta-v2", "FEATURE_EXTRACTION")
    classes = [type(module) for module in plain.modules()]
    with torch.no_grad():
        expected = plain(**inputs).last_hidden_state
        model = tiny.shaken(get_peft_model(plain, PrefixPropagationConfig(num_virtual_tokens=P))).eval()
        with model.disable_adapter():
            torch.testing.assert_close(model(**inputs).last_hidden_state, expected, atol=1e-6, rtol=1e-6)
        assert (model(**inputs).last_hidden_state - expected).abs().max() > 1e-2
        unloaded = model.unload().eval()
        assert [type(module) for module in unloaded.modules()] == classes
        assert torch.equal(unloaded(**inputs).last_hidden_state, expected)
