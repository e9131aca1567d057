"""Inducer-tuning, its four variants, LoRA on the query and the MAM form, against the naive models."""

import pytest
import torch

from foretoken import InducerTuningConfig, PrefixPropagationConfig, StackConfig
from foretoken.methods import reference
from foretoken.methods.low_rank import LowRankUpdate, QueryValueUpdate

from support import naive_edits
from support.adapted import assert_equals_oracle
from support.families import FAMILIES

QUERIES = dict.fromkeys(FAMILIES, ("query",)) | {"longformer": ("query", "query_global")}
VARIANTS = ("inducer", "extension", "adaptive", "gating")


def config(variant="inducer", **options):
    keyed = {"key_bottleneck_size": 3} if variant in ("inducer", "gating") else {}
    return InducerTuningConfig(variant=variant, value_bottleneck_size=2, **keyed, **options)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_inducer_tuning(family, variant):
    assert_equals_oracle(family, config(variant), lambda p, ids: naive_edits.inducer_tuning(p, variant=variant))


@pytest.mark.parametrize("family", FAMILIES)
def test_low_rank_update_of_the_query(family):
    """Eq. 10 comes first: the inducers are made of the updated query."""

    def edits_of(p, ids):
        edits = naive_edits.inducer_tuning(p, variant="inducer")
        edits.on_query = naive_edits.on_query(p, parts=QUERIES[family])
        return edits

    assert_equals_oracle(family, config(lora_r=2), edits_of)


def test_a_low_rank_update_of_queries_and_values_leaves_the_keys_of_a_fused_map_alone():
    """Hu et al. 2021: W_q and W_v get matrices of their own, here within GPT-2's map to [q | k | v]."""
    torch.manual_seed(0)
    query, value = (LowRankUpdate(6, 6, rank=2, scale=0.5) for _ in range(2))
    for update in (query, value):
        torch.nn.init.normal_(update.up.weight)
    output, given = torch.randn(2, 3, 18), torch.randn(2, 3, 6)
    found = QueryValueUpdate(query, value)(output, given)
    maps = (part.weight for update in (query, value) for part in (update.down, update.up))
    wanted = reference.query_value_lora(*output.chunk(3, dim=-1), given, *maps, 0.5)
    assert torch.equal(found[..., 6:12], output[..., 6:12])
    torch.testing.assert_close(found, torch.cat(wanted, dim=-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_mam_inducer_tuning(family):
    """All at once: a scaled update, and a parallel adapter at the feed-forward block."""

    def edits_of(p, ids):
        edits = naive_edits.inducer_tuning(p, variant="inducer")
        edits.on_query = naive_edits.on_query(p, scale=0.5, parts=QUERIES[family])
        edits.on_feed_forward = naive_edits.bottleneck_adapter(p, variant="parallel", scale=4.0).on_feed_forward
        return edits

    assert_equals_oracle(family, config(lora_r=2, lora_alpha=1, parallel_bottleneck_size=3), edits_of)


@pytest.mark.parametrize("family", FAMILIES)
def test_inducers_of_rows_in_front(family):
    """Beside prefix-propagation the rows' queries have inducers too, and lambda counts the rows' keys."""
    stack = StackConfig(configs=[PrefixPropagationConfig(num_virtual_tokens=2), config()])

    def edits_of(p, ids):
        own = {
            place: {name.removeprefix("parts.0."): tensor for name, tensor in named.items()}
            for place, named in p.items()
        }
        edits = naive_edits.prefix_propagation([own[i, "layer"]["prefix.weight"] for i in range(3)])
        edits.attend = naive_edits.inducer_tuning(own, variant="inducer").attend
        return edits

    assert_equals_oracle(family, stack, edits_of)
