"""Runs a sweep in small: one step of every variant and every searched value on a tiny model, and the report."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import find_raw, get_task
from foretoken.errors import ForetokenError, MissingDataError
from foretoken.quiet import quiet_transformers
from foretoken.sweeps.plan import SweepPlan, Variant
from foretoken.sweeps.space import Params
from foretoken.training.options import Recipe
from foretoken.training.recipe.reading import apply_overrides
from foretoken.training.recipe.recipe import build_recipe

log = logging.getLogger(__name__)
FOLDER = "smoke"  # below the sweep's own
DOCUMENTS = 8  # per split of a task, or one of each class
OWN_DOCUMENTS = 64  # of data whose classes are not known beforehand
LONGEST = 128  # tokens per document
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


@dataclass(frozen=True)
class Tried:
    """One candidate, and what went wrong with it."""

    variant: str
    run: str
    error: str | None = None


def smoke(plan: SweepPlan, told: Callable[[Tried], object] = lambda _: None) -> list[Tried]:
    """Train and measure each candidate of :func:`covering` for one step, write the report, and return what was tried.

    The runs lie in ``smoke/runs`` of the sweep's folder, the report in ``smoke/report``; what an earlier one left
    is replaced. A candidate that fails does not keep the others from running.
    """
    from foretoken.report.write import write_report
    from foretoken.training.run.train import train

    folder = plan.config.folder / FOLDER
    for part in ("runs", "models"):
        shutil.rmtree(folder / part, ignore_errors=True)

    @cache
    def tiny(model: str) -> str:
        return str(save_tiny_model(model, folder / "models" / model.replace("/", "-")))

    has_data = cache(raw_data_are_there)
    tried = []
    for variant in plan.variants:
        for number, params in enumerate(covering(variant)):
            name = f"{variant.name}-{number}"
            error = None
            try:
                train(
                    small_recipe(plan, variant, params, name=name, folder=folder / "runs", tiny=tiny, has_data=has_data)
                )
            except ForetokenError as found:
                error = f"{type(found).__name__}: {found}"
            tried.append(Tried(variant.name, name, error))
            told(tried[-1])
    if any(item.error is None for item in tried):
        write_report([folder / "runs"], folder / "report", average=plan.config.average)
    return tried


def raw_data_are_there(task: str, path: str | None, split: str) -> bool:
    """Tell whether all raw data of a task are in its folder; the log says what is missing."""
    found = get_task(task)
    try:
        found.read_raw(find_raw(found, path), DataOptions(task=task, path=path, split=split))
    except MissingDataError as error:
        log.warning("documents are made up: %s", error)
        return False
    return True


def covering(variant: Variant) -> Iterator[Params]:
    """Yield the fewest candidates that together have every value of every searched field; of ranges, their ends."""
    most = max((len(values.ends) for values in variant.space.values()), default=1)
    for number in range(most):
        yield {field: values.ends[min(number, len(values.ends) - 1)] for field, values in variant.space.items()}


def small_recipe(
    plan: SweepPlan,
    variant: Variant,
    params: Params,
    *,
    name: str,
    folder: Path,
    tiny: Callable[[str], str],
    has_data: Callable[[str, str | None, str], bool],
) -> Recipe:
    """Return the recipe of a candidate with another model and sizes; the method and what is measured stay."""
    recipe = plan.recipe(variant, params, *variant.repeats[0])
    task = None if recipe.data.task is None else get_task(recipe.data.task)
    most = OWN_DOCUMENTS if task is None else max(DOCUMENTS, len(task.labels))
    documents: Params = {f"data.max_{split}": most for split in ("train", "validation", "test")}
    if recipe.data.folds is not None:  # every document is in the test of one fold
        del documents["data.max_test"]
    if task is not None and task.needs_raw and not has_data(task.name, recipe.data.path, recipe.data.split):
        documents = {"data.made_up": DOCUMENTS}
    if recipe.data.folds is not None:
        documents["data.fold"] = recipe.data.fold
    changes = {
        **documents,
        "model": tiny(recipe.model),
        "max_length": min(recipe.max_length or LONGEST, LONGEST),
        "training.max_steps": 1,
        "training.gradient_accumulation_steps": 1,
        "training.early_stopping_patience": None,
        "training.eval_every": "epoch",
        "training.num_threads": 1,
        "output": str(folder),
        "name": name,
    }
    if recipe.lengthen is not None:
        changes |= {"lengthen.max_length": LONGEST, "lengthen.attention_window": 32}
    if recipe.generation is not None:
        changes |= {"generation.max_new_tokens": 8, "generation.max_target_tokens": 32}
    values = apply_overrides(dict(variant.values), params | {"training.seed": variant.seeds[0]})
    return build_recipe(apply_overrides(values, changes), source=name)


def save_tiny_model(name: str, folder: Path) -> Path:
    """Write a tiny random model of the family of a model, and its tokenizer; return the folder."""
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


def model_type_of(name):
    """Return the family of a model by its name."""
    from foretoken.backbones import BACKBONES

    plain = _plain(name.rpartition("/")[2])
    return max((model_type for model_type in BACKBONES if _plain(model_type) in plain), key=len, default="bert")


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
