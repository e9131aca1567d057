"""What the authors' released programs compute where they differ from their papers, and how to get it here.

The programs are rebuilt from the facts that the methods' pages list ("Against the authors' code"), as edits of the
naive float64 models; nothing of their code is used, and every number is computed in the test. What they do in training
alone (their dropouts, how they start) is random and not compared; nor is a classifier that reads the first row.
"""

import pytest
import torch

from foretoken import InducerTuningConfig, PrefixPropagationConfig, SelectivePrefixTuningConfig
from foretoken.methods import reference
from foretoken.tuner.auxiliary import auxiliary_loss_of

from support import naive_edits
from support.adapted import adapted, by_place, run, trained
from support.families import LENGTHS, NUM_LAYERS, documents, oracle
from support.naive_models import Bert, Edits, Longformer

P = 3


def leaves_of(model):
    return by_place({key: parameter.detach().clone() for key, parameter in trained(model).items()})


def close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-9, rtol=0)


# Li et al. 2023: rows of layer 0 are LayerNorm(pos_i + type) + P^(0), and the text's positions are shifted by P.


class ShiftedBert(Bert):
    """The text starts at position P."""

    def first_position(self):
        return super().first_position() + P

    def rows(self, prefix):
        """LayerNorm(pos_i + type) + P^(0)_i, pos_i from the positions that the text has left."""
        first = super().first_position()
        states = []
        for i in range(P):
            position = self.weights["embeddings.position_embeddings.weight"][first + i]
            both = position + self.weights["embeddings.token_type_embeddings.weight"][0]
            states.append(self.layer_norm("embeddings.LayerNorm", both, self.config.layer_norm_eps) + prefix[i])
        return torch.stack(states)


class ShiftedLongformer(ShiftedBert, Longformer):
    """The same, of Longformer, whose positions start behind that of the padding."""


def released_propagation(family):
    plain = oracle(family)
    return {"bert": ShiftedBert, "longformer": ShiftedLongformer}[family](plain.config, plain.weights)


@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_prefix_propagation_with_positions_is_ours_from_another_start(family):
    """Their rows are ours with LayerNorm(pos_i + type) added to P^(0); position_ids shift the text."""
    model = adapted(family, PrefixPropagationConfig(num_virtual_tokens=P, prefix_dropout=0.0))
    program = released_propagation(family)
    rows = [leaves_of(model)[layer, "layer"]["prefix.weight"] for layer in range(NUM_LAYERS)]
    first = program.rows(rows[0])
    with torch.no_grad():
        trained(model)[0, "layer", "prefix.weight"].copy_(first)
    edits = naive_edits.prefix_propagation([first, *rows[1:]])
    for ids in documents():
        positions = torch.arange(len(ids)) + program.first_position()
        ours = model(input_ids=ids[None], position_ids=positions[None]).last_hidden_state[0]
        close(ours, program(ids, edits))
        own = oracle(family)(ids, edits)
        assert (own - program(ids, edits)).abs().max() > 1e-3, "the shift has no effect"


# Zhang et al. 2024: the second loss is divided by the number of layers.


@pytest.mark.parametrize("length", [1, 2, 5])
def test_their_lambda_is_ours_times_the_number_of_layers(length):
    """lambda / L · 1/2 sum over layers of the mean |cos| of keys, and of values, over pairs."""
    theirs = 7e-4
    config = SelectivePrefixTuningConfig(
        num_virtual_tokens=length, prefix_dropout=0.0, selective_loss_weight=theirs / NUM_LAYERS
    )
    model = adapted("bert", config)
    both = torch.stack([named["prefix.weight"] for named in leaves_of(model).values()])
    total = reference.selective_loss(*both.chunk(2, dim=-1)).item()
    assert auxiliary_loss_of(model).item() == pytest.approx(theirs * total / NUM_LAYERS, abs=1e-12)
    assert (total > 0) == (length > 1)


# Chen et al. 2022 on RoBERTa: lambda is taken before the padding mask, and LoRA has a bias and the scale 32 / r.


def lambda_before_the_mask(p, length):
    """lambda_i over all keys, those of the padding too; f over the first ``length`` keys alone."""

    def attend(layer, seen):
        own, q, keys = p[layer, "attention"], seen.query, seen.keys
        share = reference.inducer_share(q, keys, q + naive_edits.network(own, "key_network", q))
        *first, b_2 = naive_edits.extended(own)
        f = reference.attention(q, keys[:, :length], seen.values[:, :length])
        return seen.project(f) + (share * reference.network(q, *first)).sum(0) + b_2

    return Edits(attend=naive_edits.layers(lambda layer: lambda seen: attend(layer, seen)))


def inducer(**options):
    return InducerTuningConfig(key_bottleneck_size=3, value_bottleneck_size=2, **options)


def test_lambda_before_the_padding_mask_is_ours_where_nothing_is_padded():
    model = adapted("bert", inducer())
    for ours, ids in zip(run(model, "bert"), documents(), strict=True):
        missing = max(LENGTHS) - len(ids)
        padded = torch.cat([ids, torch.ones(missing, dtype=ids.dtype)])
        edits = lambda_before_the_mask(leaves_of(model), len(ids))
        close(ours, oracle("bert")(ids, edits))
        theirs = oracle("bert")(padded, edits)[: len(ids)]
        assert ((theirs - ours).abs().max() > 1e-4) == bool(missing), "their outputs depend on padding, ours do not"


def test_their_low_rank_update_is_ours_with_a_scale_and_a_bias_in_the_frozen_map():
    rank, alpha = 2, 32.0
    model = adapted("bert", inducer(lora_r=rank, lora_alpha=alpha), scale=0.1)
    leaves = leaves_of(model)
    edits = naive_edits.inducer_tuning(leaves, variant="inducer")
    biases = [torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]

    class Released(Bert):
        def query_key_value(self, layer, part, x):
            query, key, value = super().query_key_value(layer, part, x)
            own = leaves[layer, "query"]
            update = torch.stack([own["up.weight"] @ (own["down.weight"] @ row) for row in x])
            return query + update * (alpha / rank) + biases[layer], key, value

    plain = oracle("bert")
    for layer, bias in enumerate(biases):
        model.get_base_model().encoder.layer[layer].attention.self.query.bias.data.add_(bias)
    for ours, ids in zip(run(model, "bert"), documents(), strict=True):
        close(ours, Released(plain.config, plain.weights)(ids, edits))
