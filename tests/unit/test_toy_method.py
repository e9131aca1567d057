"""A method from outside the package: a config, modules for two sites, one row in the table. Nothing is patched."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from peft import PeftModel, get_peft_model, mapping
from torch import nn

from foretoken import METHODS, PrefixTuningConfig, StackConfig, make_config
from foretoken.errors import ConfigError
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.members import Method
from foretoken.methods.require import require_positive
from foretoken.methods.sites import LayerEntry, ScoreColumns, Sites
from foretoken.tuner import register_method, unregister_method

from support import naive_edits, tiny
from support.adapted import adapted, assert_equals_oracle
from support.families import batch, transformer
from support.naive_functions import softmax
from support.naive_models import Edits

FAMILIES = ("bert", "longformer")
TABLES = (
    METHODS,
    mapping.PEFT_TYPE_TO_CONFIG_MAPPING,
    mapping.PEFT_TYPE_TO_TUNER_MAPPING,
    mapping.PEFT_TYPE_TO_PREFIX_MAPPING,
)


@dataclass
class SinkConfig(ForetokenConfig):
    """Every head may attend to one trained vector, and a trained vector is added to the text before each layer."""

    strength: float = field(default=1.0, metadata={"help": "factor on the vector that is added"})

    method_type: ClassVar[str] = "TOY_SINK"

    def validate(self):
        require_positive("strength", self.strength)

    def build(self, dimensions):
        return Sites(
            layers={layer: Shift(dimensions.hidden_size, self.strength) for layer in range(dimensions.num_layers)},
            attention={i: Sink(shape.num_heads, shape.head_dim) for i, shape in enumerate(dimensions.attentions)},
        )


class Shift(LayerEntry):
    def __init__(self, width, strength):
        super().__init__()
        self.strength = strength
        self.vector = nn.Parameter(torch.zeros(width))

    def on_text(self, text, token_ids):
        return text + self.strength * self.vector.to(text.dtype)


class Sink(ScoreColumns):
    num_columns = 1

    def __init__(self, heads, head_dim):
        super().__init__()
        self.key = nn.Parameter(torch.randn(heads, 1, head_dim))
        self.value = nn.Parameter(torch.zeros(heads, 1, head_dim))

    def scores(self, query, scale):
        return query @ self.key.to(query.dtype).transpose(-1, -2) * scale

    def combine(self, out, probabilities, query):
        return out + probabilities.to(out.dtype) @ self.value.to(out.dtype)


def sink_edits(places, *, strength):
    """Return the naive edits: loops over layers, heads and queries, in float64."""

    def attend_in(layer):
        key, value = (places[layer, "attention"][name] for name in ("key", "value"))

        def attend(seen):
            keys, values = torch.cat([seen.keys, key], dim=1), torch.cat([seen.values, value], dim=1)
            weights = torch.stack([softmax(k @ q[0] / len(q[0]) ** 0.5) for q, k in zip(seen.query, keys, strict=True)])
            return seen.project(weights[:, None] @ values)

        return attend

    return Edits(
        on_text=naive_edits.layers(lambda layer: lambda x: x + strength * places[layer, "layer"]["vector"]),
        attend=naive_edits.layers(attend_in),
    )


@pytest.fixture
def toy():
    before = [dict(table) for table in TABLES]
    register_method(Method("toy-sink", "one more vector to attend to", SinkConfig, "nobody"))
    yield "toy-sink"
    unregister_method("toy-sink")
    assert [dict(table) for table in TABLES] == before


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_those_of_the_loop(toy, family):
    config = make_config(toy, strength=0.5)
    assert_equals_oracle(family, config, lambda places, ids: sink_edits(places, strength=0.5))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_saved_and_loaded(toy, family, tmp_path):
    model = adapted(family, make_config(toy, strength=0.5))
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(transformer(family), tmp_path).double().eval()
    assert loaded.peft_config["default"].strength == 0.5
    with torch.no_grad():
        states, expected = (m(**batch()).last_hidden_state for m in (loaded, model))
    assert torch.equal(states, expected)


def test_it_is_a_member_of_a_stack(toy):
    stack = StackConfig(configs=[{"name": toy, "strength": 2.0}, PrefixTuningConfig(num_virtual_tokens=3)])
    assert [type(member) for member in stack.members()] == [SinkConfig, PrefixTuningConfig]
    model = tiny.shaken(get_peft_model(tiny.model("bert", "FEATURE_EXTRACTION"), stack)).eval()
    ids = torch.randint(5, 100, (2, 7))
    with torch.no_grad():
        changed = model(ids).last_hidden_state
        with model.disable_adapter():
            plain = model(ids).last_hidden_state
    assert not torch.allclose(changed, plain, atol=1e-3)


def test_names_are_taken_once(toy):
    for name, config in (("toy-sink", None), ("another", SinkConfig), ("another", PrefixTuningConfig)):
        with pytest.raises(ConfigError, match="is there already; choose another name"):
            register_method(Method(name, "", config, ""))
    assert "another" not in METHODS


def test_without_it_nothing_is_left():
    with pytest.raises(ConfigError, match="method 'toy-sink' is not known"):
        make_config("toy-sink")
    assert "TOY_SINK" not in mapping.PEFT_TYPE_TO_CONFIG_MAPPING
