"""The one table of methods: name -> what a recipe, the command line and peft know it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from peft import LoraConfig, PeftConfig, TaskType

from foretoken.errors import ConfigError, did_you_mean
from foretoken.files import JsonObject
from foretoken.methods.aot.config import AoTPTuningConfig
from foretoken.methods.base import ForetokenConfig, plain
from foretoken.methods.bitfit import BitFitConfig
from foretoken.methods.bottleneck_adapter import BottleneckAdapterConfig
from foretoken.methods.decoupled_prefix import DecoupledPrefixConfig
from foretoken.methods.head_only import HeadOnlyConfig
from foretoken.methods.inducer_tuning import InducerTuningConfig
from foretoken.methods.kernel_propagation import KernelPropagationConfig
from foretoken.methods.low_rank.config import QueryValueLoraConfig
from foretoken.methods.mam_adapter import MAMAdapterConfig
from foretoken.methods.prefix_propagation import PrefixPropagationConfig
from foretoken.methods.prefix_tuning import PrefixTuningConfig
from foretoken.methods.prompt_tuning import PromptTuningConfig
from foretoken.methods.selective_prefix_tuning import SelectivePrefixTuningConfig
from foretoken.methods.stack import StackConfig


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes:
        name: what recipes and the command line call it.
        title: what tables and figures call it.
        summary: what it trains, in one line.
        config: its peft config; None for full fine-tuning, which needs no adapter.
        paper: where it comes from.
        learning_rate: peak rate where a recipe names none; None: the smallest of its members' (stack), or the head's
            (head-only).
    """

    name: str
    title: str
    summary: str
    config: type[PeftConfig] | None
    paper: str
    learning_rate: float | None = 1e-3


# peak rates of a new head, whatever the method beside it: of texts, and where words are tagged (docs/guide/learning.md)
HEAD_RATE, TAGGING_HEAD_RATE = 1e-3, 1e-2
# where a network yields the prefix, whatever the method (the same page): it does not learn at the rates of a plain one
NETWORK_RATE = 3e-4


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method(
            "prefix-propagation",
            "prefix-propagation",
            "a prefix of the hidden states that flows through the stack; a trained matrix is added before each layer",
            PrefixPropagationConfig,
            "Li et al. 2023",
            0.03,
        ),
        Method(
            "kernel-propagation",
            "kernel propagation",
            "prefix-propagation with text and prefix attended to separately, and a weight between them",
            KernelPropagationConfig,
            "Li et al. 2023",
            0.03,
        ),
        Method(
            "prefix-tuning",
            "prefix-tuning",
            "keys and values in every attention layer (P-tuning v2)",
            PrefixTuningConfig,
            "Li & Liang 2021, Liu et al. 2022",
            0.03,
        ),
        Method(
            "decoupled-prefix",
            "decoupled prefix",
            "keys and values in every attention layer, with a softmax of their own beside the text's",
            DecoupledPrefixConfig,
            "Wang et al. 2025, Zhang et al. 2023",
            0.01,
        ),
        Method(
            "prompt-tuning",
            "prompt tuning",
            "trained embeddings before the text",
            PromptTuningConfig,
            "Lester et al. 2021",
            0.03,
        ),
        Method(
            "selective-prefix-tuning",
            "selective prefix tuning",
            "a prefix whose weights are masked by their own scores, and a loss that keeps its tokens apart",
            SelectivePrefixTuningConfig,
            "Zhang et al. 2024",
            0.03,
        ),
        Method(
            "inducer-tuning",
            "inducer-tuning",
            "a virtual key and value per query, made from the query in every attention",
            InducerTuningConfig,
            "Chen et al. 2022",
            3e-3,
        ),
        Method(
            "aot-p-tuning",
            "AoT P-tuning",
            "a vector per token of the vocabulary, added before every layer",
            AoTPTuningConfig,
            "Gavrilov & Balagansky 2023",
            1e-3,
        ),
        Method(
            "bottleneck-adapter",
            "bottleneck adapter",
            "small networks after or beside the sub-layers of each layer",
            BottleneckAdapterConfig,
            "Houlsby et al. 2019, Pfeiffer et al. 2021, He et al. 2022",
            1e-3,
        ),
        Method(
            "mam-adapter",
            "MAM adapter",
            "prefix-tuning, and a parallel adapter at each feed-forward block",
            MAMAdapterConfig,
            "He et al. 2022",
            3e-3,
        ),
        Method("bitfit", "BitFit", "every bias of the body", BitFitConfig, "Ben Zaken et al. 2022", 3e-3),
        Method(
            "lora",
            "LoRA",
            "low-rank updates of linear maps, through peft",
            LoraConfig,
            "Hu et al. 2021",
            3e-3,
        ),
        Method(
            "query-value-lora",
            "LoRA (query, value)",
            "low-rank updates of queries and values, also where one map yields queries, keys and values",
            QueryValueLoraConfig,
            "Hu et al. 2021",
            3e-3,
        ),
        Method("head-only", "head only", "the head alone (linear probe)", HeadOnlyConfig, "", None),
        Method("stack", "stack", "several methods as one adapter", StackConfig, "", None),
        Method("full", "full fine-tuning", "every parameter of the model", None, "", 3e-5),
    )
}


def make_config(name: str, **options: Any) -> PeftConfig:
    """Return the peft config of the method of this name.

    Raises:
        ConfigError: an unknown name or option (with the nearest known one), or a value that cannot work.

    >>> make_config("prefix-propagation", num_virtual_tokens=4).num_virtual_tokens
    4
    >>> make_config("prefix-propagaton")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: method 'prefix-propagaton' is not known (did you mean 'prefix-propagation'?); ...
    """
    row = METHODS.get(name)
    if row is None:
        known = ", ".join(METHODS)
        raise ConfigError(f"method {name!r} is not known{did_you_mean(name, METHODS)}; the methods are {known}")
    if row.config is None:
        raise ConfigError(f"method {name!r} trains the model itself and has no adapter config")
    known_options = option_names(row.config)
    for option in options:
        if option not in (*known_options, "task_type", "inference_mode"):
            hint = did_you_mean(option, known_options)
            raise ConfigError(f"method {name!r} has no option {option!r}{hint}; it has {', '.join(known_options)}")
    return row.config(**options)


def learning_rate(config: PeftConfig) -> float:
    """Return the learning rate with which a config's method is trained where nobody names one.

    Raises:
        ConfigError: the config is of none of the methods.

    >>> learning_rate(make_config("lora")), learning_rate(make_config("prefix-tuning"))
    (0.003, 0.03)
    >>> learning_rate(make_config("stack", configs=[{"name": "lora"}]))
    0.003
    >>> learning_rate(make_config("prefix-tuning", prefix_projection=True))
    0.0003
    """
    members = config.members() if isinstance(config, StackConfig) else [config]
    tagging = plain(config.task_type) == TaskType.TOKEN_CLS.value
    network = any(getattr(member, "prefix_projection", False) for member in members)
    return default_rates([_name_of(member) for member in members], tagging=tagging, network=network)[0]


def default_rates(names: Sequence[str], *, tagging: bool = False, network: bool = False) -> tuple[float, float | None]:
    """Return the learning rate of methods that are trained together, and that of their head; None: the same.

    Args:
        names: the methods.
        tagging: whether words are tagged.
        network: whether a network yields one of their prefixes (``prefix_projection``).

    >>> default_rates(["prefix-tuning", "lora"]), default_rates(["lora"], tagging=True), default_rates(["head-only"])
    ((0.003, 0.001), (0.003, 0.01), (0.001, None))
    """
    head = TAGGING_HEAD_RATE if tagging else HEAD_RATE
    rates = [rate for name in names if (rate := METHODS[name].learning_rate) is not None]
    return (min([*rates, NETWORK_RATE] if network else rates), head) if rates else (head, None)


def _name_of(config: PeftConfig) -> str:
    name = next((row.name for row in METHODS.values() if type(config) is row.config), None)
    if name is None:
        raise ConfigError(f"{type(config).__name__} is no config of a method with a learning rate of its own")
    return name


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
    member = make_config(values.pop("name"), **values) if "name" in values else from_peft_type(values)
    if isinstance(member, StackConfig) or not isinstance(member, ForetokenConfig | LoraConfig):
        raise ConfigError(f"a stack's members are foretoken's methods and LoRA; got {type(member).__name__}")
    return member


def from_peft_type(values: JsonObject) -> PeftConfig:
    """Return the config whose saved fields these are."""
    wanted = plain(values.pop("peft_type", None))
    configs = [row.config for row in METHODS.values() if row.config is not None]
    for config in configs:
        name = config.method_type if issubclass(config, ForetokenConfig) else "LORA"
        if name == wanted:
            return config(**values)
    raise ConfigError(f"a stack's member needs `name: <method>` or a saved peft_type; got {wanted!r}")


StackConfig.make_member = staticmethod(make_member)
