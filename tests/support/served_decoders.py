"""Tiny decoders with adapters of several methods, as peft saves them."""

import copy

import torch
from peft import get_peft_model

from foretoken import LoraConfig, PrefixPropagationConfig, PrefixTuningConfig

from support import tiny
from support.tiny_generation import model_of, save_model

MAPS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}


def configs(family):
    return {
        "short": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        "long": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
        "wide": PrefixPropagationConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "lora": LoraConfig(task_type="CAUSAL_LM", target_modules=MAPS[family], r=2, fan_in_fan_out=family == "gpt2"),
    }


def save_decoder_adapters(root, family):
    """Return the folder of a tiny decoder, those of adapters by name, and the models with them."""
    model, folders, models = save_model(root / "model", family), {}, {}
    for seed, (name, config) in enumerate(configs(family).items()):
        models[name] = get_peft_model(copy.deepcopy(model_of(family)), config).eval()
        tiny.shaken(models[name], seed=seed)
        folders[name] = root / name
        models[name].peft_config["default"].base_model_name_or_path = str(model)
        models[name].save_pretrained(folders[name])
    models["model"] = model_of(family)
    return model, folders, models


def alone(model, ids, **options):
    """What transformers generates from one prompt by itself."""
    ids = torch.tensor([ids])
    given = {"do_sample": False, "pad_token_id": 0, "output_logits": True, "return_dict_in_generate": True} | options
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **given)
