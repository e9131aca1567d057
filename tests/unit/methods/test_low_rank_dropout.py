"""Dropout on what low-rank updates of our own read: inducer-tuning's, and those of queries and values."""

import pytest
import torch

from foretoken import InducerTuningConfig, QueryValueLoraConfig
from foretoken.methods.dimensions import AttentionShape, Dimensions
from foretoken.methods.low_rank import LowRankUpdate

ON = Dimensions("none", 32, 1, 4, 4, 8, 100, attentions=(AttentionShape(4, 4, 8),))
CONFIGS = {
    "inducer": InducerTuningConfig(key_bottleneck_size=2, value_bottleneck_size=2, lora_r=3, lora_dropout=0.25),
    "query-value": QueryValueLoraConfig(r=3, lora_dropout=0.25),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_update_reads_its_input_with_dropout_in_training_alone(name):
    sites = CONFIGS[name].build(ON)
    updates = [part for edit in sites.outputs.values() for part in edit.modules() if isinstance(part, LowRankUpdate)]
    assert updates
    for update in updates:
        torch.nn.init.normal_(update.up.weight)
        given, output = torch.randn(2, 5, update.down.in_features), torch.zeros(2, 5, update.up.out_features)

        def by_hand(states, update=update):
            return update.scale * states @ update.down.weight.T @ update.up.weight.T

        torch.testing.assert_close(update.eval()(output, given), by_hand(given))
        torch.manual_seed(0)
        found = update.train()(output, given)
        torch.manual_seed(0)
        torch.testing.assert_close(found, by_hand(torch.nn.functional.dropout(given, 0.25)))
        assert not torch.allclose(found, by_hand(given))
