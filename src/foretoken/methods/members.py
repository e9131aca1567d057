"""The methods that can be members of a stack, by their names in recipes and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from peft import LoraConfig, PeftConfig

from foretoken.errors import ConfigError, did_you_mean
from foretoken.files import JsonObject
from foretoken.methods.aot.config import AoTPTuningConfig
from foretoken.methods.base import plain
from foretoken.methods.bitfit import BitFitConfig
from foretoken.methods.bottleneck_adapter import BottleneckAdapterConfig
from foretoken.methods.head_only import HeadOnlyConfig
from foretoken.methods.inducer_tuning import InducerTuningConfig
from foretoken.methods.low_rank import QueryValueLoraConfig
from foretoken.methods.mam_adapter import MAMAdapterConfig
from foretoken.methods.prefixes.decoupled_prefix import DecoupledPrefixConfig
from foretoken.methods.prefixes.kernel_propagation import KernelPropagationConfig
from foretoken.methods.prefixes.prefix_propagation import PrefixPropagationConfig
from foretoken.methods.prefixes.prefix_tuning import PrefixTuningConfig
from foretoken.methods.prefixes.prompt_tuning import PromptTuningConfig
from foretoken.methods.prefixes.selective_prefix_tuning import SelectivePrefixTuningConfig


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes:
        name: its name in recipes and on the command line.
        summary: the trained parameters, in one line.
        config: its peft config; None for full fine-tuning, which needs no adapter.
        paper: the paper that introduced it.
    """

    name: str
    summary: str
    config: type[PeftConfig] | None
    paper: str


_ROWS = (
    Method(
        "prefix-propagation",
        "a prefix of the hidden states that flows through the stack; a trained matrix is added before each layer",
        PrefixPropagationConfig,
        "Li et al. 2023",
    ),
    Method(
        "kernel-propagation",
        "prefix-propagation with text and prefix attended to separately, and a weight between them",
        KernelPropagationConfig,
        "Li et al. 2023",
    ),
    Method(
        "prefix-tuning",
        "keys and values in every attention layer (P-tuning v2)",
        PrefixTuningConfig,
        "Li & Liang 2021, Liu et al. 2022",
    ),
    Method(
        "decoupled-prefix",
        "keys and values in every attention layer, with a softmax of their own beside the text's",
        DecoupledPrefixConfig,
        "Wang et al. 2025, Zhang et al. 2023",
    ),
    Method("prompt-tuning", "trained embeddings before the text", PromptTuningConfig, "Lester et al. 2021"),
    Method(
        "selective-prefix-tuning",
        "a prefix whose weights are masked by their own scores, and a loss that keeps its tokens apart",
        SelectivePrefixTuningConfig,
        "Zhang et al. 2024",
    ),
    Method(
        "inducer-tuning",
        "a virtual key and value per query, made from the query in every attention",
        InducerTuningConfig,
        "Chen et al. 2022",
    ),
    Method(
        "aot-p-tuning",
        "a vector per token of the vocabulary, added before every layer",
        AoTPTuningConfig,
        "Gavrilov & Balagansky 2023",
    ),
    Method(
        "bottleneck-adapter",
        "small networks after or beside the sub-layers of each layer",
        BottleneckAdapterConfig,
        "Houlsby et al. 2019, Pfeiffer et al. 2021, He et al. 2022",
    ),
    Method(
        "mam-adapter",
        "prefix-tuning, and a parallel adapter at each feed-forward block",
        MAMAdapterConfig,
        "He et al. 2022",
    ),
    Method("bitfit", "every bias of the body", BitFitConfig, "Ben Zaken et al. 2022"),
    Method("lora", "low-rank updates of linear maps, through peft", LoraConfig, "Hu et al. 2021"),
    Method(
        "query-value-lora",
        "low-rank updates of queries and values, also where one map yields queries, keys and values",
        QueryValueLoraConfig,
        "Hu et al. 2021",
    ),
    Method("head-only", "the head alone (linear probe)", HeadOnlyConfig, ""),
)
MEMBERS: dict[str, Method] = {row.name: row for row in _ROWS}


def configured(methods: Mapping[str, Method], name: str, options: Mapping[str, Any]) -> PeftConfig:
    """Return the config of one of these methods.

    Raises:
        ConfigError: an unknown name or option (with the nearest known one), or a value that cannot work.
    """
    row = methods.get(name)
    if row is None:
        known = ", ".join(methods)
        raise ConfigError(f"method {name!r} is not known{did_you_mean(name, methods)}; the methods are {known}")
    if row.config is None:
        raise ConfigError(f"method {name!r} trains the model itself and has no adapter config")
    known_options = option_names(row.config)
    for option in options:
        if option not in (*known_options, "task_type", "inference_mode"):
            hint = did_you_mean(option, known_options)
            raise ConfigError(f"method {name!r} has no option {option!r}{hint}; it has {', '.join(known_options)}")
    return row.config(**options)


def option_names(config: type[PeftConfig]) -> list[str]:
    """Return the options of a method: its config's fields, without those that peft fills in itself."""
    inherited = {item.name for item in fields(PeftConfig)} | {"runtime_config"}
    return [
        item.name
        for item in fields(config)
        if item.init and not item.metadata.get("internal") and item.name not in inherited
    ]


def make_member(values: JsonObject) -> PeftConfig:
    """Return a member of a stack from its fields: ``name`` as in a recipe, or ``peft_type`` as saved."""
    if "name" in values:
        return configured(MEMBERS, values.pop("name"), values)
    wanted = plain(values.pop("peft_type", None))
    for config in (row.config for row in MEMBERS.values()):
        if config is not None and wanted == getattr(config, "method_type", "LORA"):
            return config(**values)
    known = "foretoken's methods and LoRA, by `name` or saved peft_type"
    raise ConfigError(f"a stack's members are {known}; got {wanted!r}")
