"""Tiny random models of every family, with a tokenizer that reads any text byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretoken.errors import BackboneError
from foretoken.quiet import quiet_transformers

POSITIONS = 1024
SMALL: dict[str, object] = {  # by the names that the families' configs have for them
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 16),
    **dict.fromkeys(("intermediate_size", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), POSITIONS),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), POSITIONS),
    "attention_window": 32,
}
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def save_tiny_model(name: str, folder: Path) -> Path:
    """Write a tiny random model of the family of a model, and its tokenizer; return the folder.

    Raises:
        BackboneError: nothing says which family the model is of.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    model_type = model_type_of(name)
    tokenizer = _tokenizer(is_decoder=_is_decoder(model_type))
    usual: Any = AutoConfig.for_model(model_type)
    small = {key: value for key, value in SMALL.items() if hasattr(usual, key)}
    numbers = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **small, **numbers)
    torch.manual_seed(0)
    with quiet_transformers():
        AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def model_type_of(name: str) -> str:
    """Return the family of a model, by its config where it is a folder, else by its name.

    >>> model_type_of("allenai/longformer-base-4096"), model_type_of("openai-community/gpt2"), model_type_of("minilm")
    ('longformer', 'gpt2', 'bert')
    """
    from transformers import AutoConfig

    from foretoken.backbones import BACKBONES

    if (Path(name) / "config.json").is_file():
        return str(AutoConfig.from_pretrained(name).model_type)
    if name == "minilm":
        return "bert"
    plain = _plain(name.rpartition("/")[2])
    named = [model_type for model_type in BACKBONES if _plain(model_type) in plain]
    if not named:
        raise BackboneError(
            f"model {name!r}: its name says no family, and it is no folder with a config.json; give a folder: "
            "--model FOLDER"
        )
    return max(named, key=len)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _is_decoder(model_type: str) -> bool:
    from foretoken.backbones import BACKBONES

    return BACKBONES[model_type].stacks[0].is_causal


def _tokenizer(*, is_decoder: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ends = {} if is_decoder else {"cls_token": "<s>", "sep_token": "</s>"}
    if not is_decoder:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS // 2, **SPECIAL, **ends)
