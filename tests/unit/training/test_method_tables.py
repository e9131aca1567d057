"""The tables of families and parameters that the documentation and the command show."""

import sys
from pathlib import Path

import torch
from peft import get_peft_model
from peft.utils import get_peft_model_state_dict

from foretoken import InducerTuningConfig, PrefixPropagationConfig
from foretoken.backbones import BACKBONES
from foretoken.methods import METHODS
from foretoken.training.model.support import support, tasks

from support import tiny

sys.path.append(str(Path(__file__).parents[3] / "docs"))
from efficiency import SHAPES, file_size, row


def test_the_file_is_as_large_as_said(tmp_path):
    for config in (PrefixPropagationConfig(num_virtual_tokens=3), InducerTuningConfig()):
        model = get_peft_model(tiny.model("bert", "FEATURE_EXTRACTION"), config)
        model.save_pretrained(tmp_path)
        assert file_size(get_peft_model_state_dict(model)) == (tmp_path / "adapter_model.safetensors").stat().st_size


def test_the_paper_s_share_of_longformer_is_counted():
    """Li et al. 2023: 0.05 % of Longformer base."""
    from transformers import AutoModel

    with torch.device("meta"):
        model = AutoModel.from_config(SHAPES["Longformer-base-4096"]())
        counted = row("longformer", "prefix-propagation", model, 148_659_456)
    assert counted.parameters == 73_728
    assert round(100 * counted.share, 2) == 0.05


def test_only_what_must_be_is_empty():
    cells = support()
    assert set(cells) == set(METHODS) - {"stack"}
    empty = {(method, family) for method, row in cells.items() for family, reason in row.items() if reason}
    assert {method for method, _ in empty} == {"bitfit"}
    assert all(list(row) == list(BACKBONES) for row in cells.values())


def test_tasks_are_those_of_transformers():
    for family in tiny.FAMILIES:
        assert len(list(tasks(family.split(",")[0]))) == len(set(tiny.tasks(family)) - {"FEATURE_EXTRACTION"})
