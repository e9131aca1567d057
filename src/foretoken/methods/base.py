"""What a method may define: a config, and modules for the sites where it meets a backbone.

A method knows no backbone: it gets :class:`~foretoken.methods.dimensions.Dimensions` (numbers) and returns
:class:`Sites` (modules). It may act

- at a **layer entry**: a prefix put before the text at the first layer of a stack, an edit of that prefix or of the
  text before any layer (:class:`LayerEntry`);
- in **attention**: extra score columns beside the backbone's own keys, a vector after its output projection
  (:class:`ScoreColumns`), or an attention to the prefix alone (:class:`SeparatePrefix`);
- at the **output of a module**: an edit that also sees the module's input (:class:`OutputEdit`): biases, bottleneck
  adapters, low-rank updates.

Shapes: B batch, N text tokens, P length of this adapter's prefix, D model width, H heads, K head width, X extra
columns, L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig, PeftConfig
from peft.utils import CONFIG_NAME
from torch import Tensor, nn

from foretoken.attention import LinearMap
from foretoken.errors import AdapterError, ConfigError, quoted
from foretoken.files import JsonObject, PathLike, read_object, refuse_pickles, write_json
from foretoken.methods.dimensions import ChosenLayers, Dimensions, Layers, Place, check_layers
from foretoken.methods.require import require_token_numbers

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}

REQUIRES = "pip install foretoken"
LABELLED = ("SEQ_CLS", "TOKEN_CLS")  # peft's names of the problems whose outputs have names
FILLED_IN = ("backbone", "head", "requires", "id2label", "problem_type")  # fields that a model fills in


@dataclass(frozen=True)
class FrozenStates:
    """What the frozen model computes for a text of P tokens.

    Attributes:
        entering: by layer, the (P, D) hidden states that enter it.
        attentions: for every attention, (P, 2 W): the keys as its queries see them, and the values.
        free: the same, the keys without the rotation of their positions.
    """

    entering: Mapping[int, Tensor]
    attentions: Sequence[Tensor]
    free: Sequence[Tensor]


@dataclass(frozen=True)
class PrefixStart:
    """What the prefix of a new adapter is at the start.

    Attributes:
        source: ``random``, ``positions``, ``vocabulary``, ``text`` or ``adapter``.
        length: P.
        is_projected: the prefix is the output of a network.
        std: standard deviation of random numbers.
        text: what the prefix starts from.
        tokenizer: folder or hub name of the text's tokenizer; None for the model's own.
        adapter: folder or hub name of the adapter that the prefix starts from.
    """

    source: str
    length: int
    is_projected: bool
    std: float = 0.02
    text: str | None = None
    tokenizer: str | None = None
    adapter: str | None = None


class LayerEntry(nn.Module):
    """What a method does to the hidden states that enter one layer. The defaults change nothing.

    Attributes:
        prefix_length: P from this layer on; it enters before the first layer that has one.
        position_free: in models with rotary positions, queries are not rotated when they are scored with the prefix.
        one_document: the text is one document's, in a call for many of them at once (``torch.func.vmap``): what is
            computed must not depend on the values of the token ids.
    """

    prefix_length: int = 0
    position_free: bool = False
    one_document: bool = False

    def new_prefix(self, batch_size: int) -> Tensor:
        """Return the (B, P, D) prefix, or what of it enters here; called where ``prefix_length`` grows."""
        raise AdapterError(f"{type(self).__name__} has no prefix of its own")

    def on_prefix(self, prefix: Tensor) -> Tensor:
        """Edit this adapter's (B, P, D) prefix."""
        return prefix

    def on_text(self, text: Tensor, token_ids: Tensor | None) -> Tensor:
        """Edit the (B, N, D) text; ``token_ids`` is (B, N), or None when the model was given embeddings."""
        return text

    def initialise_from(self, states: FrozenStates, layer: int) -> None:
        """Start from what the frozen model computes for a text, if this entry has a prefix."""


class IdleEntry(LayerEntry):
    """A layer entry that changes nothing, of a method whose prefix has ``prefix_length`` vectors."""

    def __init__(self, prefix_length: int = 0) -> None:
        super().__init__()
        self.prefix_length = prefix_length


class AttentionEdit(nn.Module, ABC):
    """What one adapter does in one attention module."""

    @abstractmethod
    def members(self) -> Iterable[ScoreColumns | SeparatePrefix]:
        """Return this edit, or the edits that a stack puts together."""

    def initialise_from(self, states: FrozenStates, index: int) -> None:
        """Start from what the frozen model computes for a text, if this part has a prefix."""


class ScoreColumns(AttentionEdit):
    """Extra score columns of one attention, and what their probabilities do.

    Attributes:
        num_columns: X.
        are_keys: ``keys`` yields something.
        position_free: in models with rotary positions, ``scores`` gets queries that are not rotated.
        outside_softmax: whether the columns stay outside the softmax of the others. If not, ``combine`` is given the
            sum over the softmax's other terms, ``(1 - sum_x p_x) f``; if so, ``f`` itself, the attention without
            these columns.
        own_softmax: whether the columns have a softmax of their own, apart from everything else that is attended to:
            their probabilities sum to 1, and ``combine`` is given the attention without these columns.
    """

    num_columns: int = 0
    are_keys: bool = False
    position_free: bool = False
    outside_softmax: ClassVar[bool] = False
    own_softmax: ClassVar[bool] = False

    @abstractmethod
    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) queries -> (B, H, N, X) scores, scaled."""

    @abstractmethod
    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Attention output (B, H, N, K) and the columns' probabilities (B, H, N, X) -> new output."""

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return a (B, N, D) vector to add after the output projection, or None."""
        return None

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values, where that is all there is to ``scores`` and ``combine``: (B, H or H_kv, X, K) each.

        Keys are cheaper than score columns. ``query`` is (1, H, N, K) where the B ``documents`` are packed.
        """
        return None

    def members(self) -> Iterable[ScoreColumns | SeparatePrefix]:
        """Return these columns."""
        return (self,)


class SeparatePrefix(AttentionEdit):
    """Takes the prefix out of the attention to the text, and adds an attention to the prefix alone.

    ``out = Kern_text(q) + alpha Kern_prefix(q)``, each normalised over its own keys.

    Attributes:
        kernel: of the attention to the prefix (see :mod:`foretoken.attention.kernels`).
        text_kernel: of the attention to the text.
        global_alpha: weight of a separate attention to the text's global keys; None for no such attention.
        projection: (R, K) of the performer kernel's random features; None for other kernels.
    """

    kernel: str
    text_kernel: str
    global_alpha: float | None
    projection: Tensor | None = None

    @abstractmethod
    def weight(self, query: Tensor) -> Tensor | None:
        """(B, H, N, K) -> alpha, broadcastable to (B, H, N, 1); None for the softmax's own lambda."""

    def document_weight(self, query: Tensor) -> Tensor:
        """(B, H, N, K) -> alpha of each query: (B, H, N, 1)."""
        weight = self.weight(query)
        assert weight is not None
        return weight.expand(*query.shape[:-1], 1)

    def members(self) -> Iterable[ScoreColumns | SeparatePrefix]:
        """Return this separate prefix."""
        return (self,)


class OutputEdit(nn.Module, ABC):
    """An edit of a module's output that may look at the module's input."""

    @abstractmethod
    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """Output (B, ..., D_out) and input (B, ..., D_in) of the module -> new output, in the output's type."""

    def folded(self, module: LinearMap) -> LinearMap | None:
        """Return the linear map that a linear module and this edit are together; None where they are none."""
        return None


class OutputShift(OutputEdit):
    """A vector added to the output of a linear map or a norm: a change of its bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(size))

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """(..., size) -> (..., size)."""
        return output + self.shift.to(output.dtype)

    def folded(self, module: LinearMap) -> LinearMap:
        """Return the map with the vector as one more bias."""
        return module.shifted(self.shift)


class StackedEdit(OutputEdit):
    """Several edits of the output of one module, in turn."""

    def __init__(self, parts: list[OutputEdit]) -> None:
        super().__init__()
        self.parts: Iterable[OutputEdit] = nn.ModuleList(parts)  # type: ignore[assignment]

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """Edit the output in turn; each edit sees the module's own input."""
        for part in self.parts:
            output = part(output, given)
        return output

    def folded(self, module: LinearMap) -> LinearMap | None:
        """Fold the edits in turn."""
        found: LinearMap | None = module
        for part in self.parts:
            found = None if found is None else part.folded(found)
        return found


@dataclass(frozen=True)
class Sites:
    """The modules of one adapter: by layer, by attention, and by the path of a module in the body or its place."""

    layers: Mapping[int, LayerEntry] = field(default_factory=dict)
    attention: Mapping[int, AttentionEdit] = field(default_factory=dict)
    outputs: Mapping[str | Place, OutputEdit] = field(default_factory=dict)
    members: tuple[tuple[ForetokenConfig, Sites], ...] = ()  # of a stack: each config with what it built

    def items(self) -> Iterator[tuple[int | str | Place, nn.Module]]:
        """Yield every module with its key: by layer, then by attention, then the edits of outputs."""
        yield from self.layers.items()
        yield from self.attention.items()
        yield from self.outputs.items()

    def modules(self) -> Iterator[nn.Module]:
        """Yield every module, in the order of :meth:`items`."""
        return (module for _, module in self.items())

    def renumbered(self, layers: Mapping[int, int], attentions: Mapping[int, int]) -> Sites:
        """Return the same modules at layers and attentions of other numbers."""

        def moved(key: str | Place) -> str | Place:
            if isinstance(key, str):
                return key
            return replace(key, index=(layers if key.kind == "feed_forward" else attentions)[key.index])

        return Sites(
            layers={layers[number]: entry for number, entry in self.layers.items()},
            attention={attentions[number]: edit for number, edit in self.attention.items()},
            outputs={moved(key): edit for key, edit in self.outputs.items()},
            members=tuple((config, sites.renumbered(layers, attentions)) for config, sites in self.members),
        )


class MethodName(str):
    """A peft type from outside peft's own enumeration: a string that also answers ``.value`` and ``.name``."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The plain string, as for a member of ``peft.PeftType``."""
        return str.__str__(self)

    name = value

    def __str__(self) -> str:
        return f"PeftType.{self.value}"  # what peft takes apart in get_model_status


@dataclass
class ForetokenConfig(PeftConfig, ABC):
    """What the configs of all methods share.

    The metadata of a field has its ``help``; ``needs`` names options and the values without one of which it changes
    nothing, ``rotary`` says that it does only on models that rotate by positions: a recipe that has it in vain is
    told so.

    Args:
        modules_to_save: modules trained in full and saved with the adapter; default: the model's new head.
        trainable_token_indices: tokens whose embeddings are trained and saved beside the adapter, these alone;
            in the table that the model reads, and in its output where the two are tied. A mapping names the
            modules: ``{"embed_tokens": [...], "lm_head": [...]}``.
        layers: the layers that the method acts at: ``all`` (the default), ``last-4`` (of each stack), or a list of
            numbers from 0, counted through all stacks. To the method they are the whole model: a prefix enters before
            the first of them. The layers below stay those of the frozen model.
        backbone: filled in when the adapter meets its model; loading on another one is an error.
        head: the same of a head that took the place of transformers' own (``foretoken.replace_head``).
        id2label: the names of the model's outputs, by their numbers; filled in when the adapter is saved.
        problem_type: what transformers' config says of the loss; filled in with them.
        requires: what to install, for those who read the file where peft does not know the method.
    """

    modules_to_save: list[str] | None = field(
        default=None,
        metadata={"help": "modules trained in full and saved with the adapter (default: the head)"},
    )
    trainable_token_indices: list[int] | dict[str, list[int]] | None = field(
        default=None,
        metadata={"help": "numbers of tokens whose embeddings are trained and saved, these rows alone"},
    )
    layers: Layers = field(
        default=None,
        metadata={"help": "layers that the method acts at: all (default), last-<k>, or a list of numbers"},
    )
    backbone: dict[str, str | int] | None = field(
        default=None,
        metadata={"help": "the backbone that the adapter was made for (filled in)", "internal": True},
    )

    head: dict[str, str | bool] | None = field(
        default=None,
        metadata={"help": "the head that took the place of transformers' own (filled in)", "internal": True},
    )

    id2label: dict[str, str] | None = field(
        default=None, metadata={"help": "the names of the outputs, by their numbers (filled in)", "internal": True}
    )
    problem_type: str | None = field(
        default=None, metadata={"help": "the problem, as transformers calls it (filled in)", "internal": True}
    )

    requires: str = field(
        default=REQUIRES,
        metadata={"help": "what to install before peft knows the method (filled in)", "internal": True},
    )

    method_type: ClassVar[str] = ""
    has_prefix: ClassVar[bool] = False
    peft_types: ClassVar[tuple[str, ...]] = ()  # of peft's prompt learning that can hold such an adapter
    target_modules: ClassVar[None] = None  # peft's tuner base looks it up; foretoken's sites do not use it

    def __post_init__(self) -> None:
        super().__post_init__()
        self.added_heads: frozenset[str] | None = None  # filled in by a model; no field, so that no file has it
        self.model_config: Any = None  # the same
        self.peft_type = MethodName(self.method_type)  # type: ignore[assignment]
        self.requires = REQUIRES
        require_token_numbers(self.trainable_token_indices)
        check_layers(self.layers)
        if not isinstance(self.backbone, dict | None):
            raise ConfigError(f"backbone is {quoted(self.backbone)}; expected what a saved adapter says, or null")
        if not isinstance(self.head, dict | None):
            raise ConfigError(f"head is {quoted(self.head)}; expected what a saved adapter says, or null")
        check_label_names(self.id2label)
        self.validate()

    @property
    def trained_tokens(self) -> tuple[int, ...]:
        """The tokens whose embeddings are trained, each once."""
        given = self.trainable_token_indices or []
        lists = given.values() if isinstance(given, dict) else [given]
        return tuple(dict.fromkeys(token for tokens in lists for token in tokens))

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        """Read a saved config.

        Raises:
            AdapterError: the folder holds a pickle instead of safetensors.
        """
        refuse_pickles(Path(pretrained_model_name_or_path) / (kwargs.get("subfolder") or ""))
        config = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        subfolder = args[0] if args else kwargs.pop("subfolder", None)
        return config.with_files_of(pretrained_model_name_or_path, subfolder=subfolder, **kwargs)

    def save_pretrained(self, save_directory: str, **kwargs: object) -> None:
        """Write the config into a folder, what it requires first, and beside it the files that it names.

        Raises:
            SaveError: a file cannot be written.
        """
        super(ForetokenConfig, self.with_files_in(save_directory)).save_pretrained(save_directory, **kwargs)
        file = Path(save_directory) / CONFIG_NAME
        write_json(file, {"requires": self.requires, **read_object(file), **self.label_names()})

    def label_names(self) -> JsonObject:
        """Return names and kind of the outputs: the model's; where it has placeholders alone, those that were saved."""
        model = self.model_config
        if model is None or self.task_type not in LABELLED:
            return {"id2label": self.id2label, "problem_type": self.problem_type}
        names = {str(number): str(model.id2label[number]) for number in range(model.num_labels)}
        placeholders = {number: f"LABEL_{number}" for number in names}
        is_named = names != placeholders or self.id2label is None or names.keys() != self.id2label.keys()
        kind = model.problem_type or self.problem_type
        return {"id2label": names if is_named else self.id2label, "problem_type": kind}

    def with_files_in(self, folder: PathLike) -> ForetokenConfig:
        """Return the config as it is saved, with the files that it names copied into ``folder``: it names none."""
        return self

    def with_files_of(self, source: PathLike, *, subfolder: str | None, **options: object) -> ForetokenConfig:
        """Return the config with the files that it names found in ``source``, a folder or a hub name: it names none."""
        return self

    def chosen(self, dimensions: Dimensions) -> ChosenLayers:
        """Return the layers that ``layers`` names.

        Raises:
            ConfigError: the backbone does not have them.
        """
        return ChosenLayers.of(self.layers, dimensions)

    def acts_everywhere(self, dimensions: Dimensions) -> bool:
        """Tell whether the method acts at every layer."""
        return len(self.chosen(dimensions).layers) == dimensions.num_layers

    def sites(self, dimensions: Dimensions) -> Sites:
        """Return new modules for a backbone of these dimensions, at the layers that ``layers`` names.

        Raises:
            ConfigError: the backbone does not have them.
        """
        chosen = self.chosen(dimensions)
        return self.build(chosen.dimensions).renumbered(*chosen.numbers)

    @abstractmethod
    def build(self, dimensions: Dimensions) -> Sites:
        """Return new modules for a backbone of these dimensions."""

    def auxiliary_loss(self, sites: Sites) -> Tensor | None:
        """Return what the method adds to the task's loss, given the modules that it built; None for nothing."""
        return None

    def folded(
        self, sites: Sites, dimensions: Dimensions, *, folder: Path | None, dtype: torch.dtype
    ) -> tuple[ForetokenConfig, Sites] | None:
        """Do :meth:`fused` for modules that :meth:`sites` has made."""
        chosen = self.chosen(dimensions)
        back = ({place: number for number, place in there.items()} for there in chosen.numbers)
        result = self.fused(sites.renumbered(*back), chosen.dimensions, folder=folder, dtype=dtype)
        return None if result is None else (result[0], result[1].renumbered(*chosen.numbers))

    def fused(
        self, sites: Sites, dimensions: Dimensions, *, folder: Path | None, dtype: torch.dtype
    ) -> tuple[ForetokenConfig, Sites] | None:
        """Fold away what only training needs: in the modules, in place. None where there is nothing to fold.

        Args:
            sites: the trained modules.
            dimensions: of the backbone that carries them.
            folder: where the adapter will be saved, for what is too large for memory.
            dtype: of what is written there.

        Returns:
            The config of what is left, and its modules.
        """
        return None

    training_options: ClassVar[tuple[str, ...]] = ("modules_to_save", "trainable_token_indices")

    def differs_in_parameters_alone(self) -> bool:
        """Tell whether adapters whose configs say the same compute the same from the same parameters."""
        return True

    def form_options(self) -> JsonObject:
        """Return the options that decide what is computed from the parameters, and where."""
        left_out = {item.name for item in fields(PeftConfig)} | {*FILLED_IN, *self.training_options}
        left_out |= {"trainable_token_indices"}  # a bank has their embeddings beside the method
        names = (item.name for item in fields(self) if item.name not in left_out)
        return {"method": self.method_type} | {name: getattr(self, name) for name in names}

    def with_plain_modules(self, sites: Sites) -> ForetokenConfig:
        """Put modules with parameters of their own in the place of those that read another module's, in place.

        Returns:
            The config of what is left.
        """
        return self

    def is_cache(self) -> bool:
        """Tell whether in a causal model the adapter is nothing but keys and values in front of the text."""
        return False

    def lora_member(self) -> LoraConfig | None:
        """Return the LoRA that belongs to the adapter and goes through peft's own layers."""
        return None

    def prefix_start(self) -> PrefixStart | None:
        """Return what the prefix is at the start; None for a method without a prefix of its own."""
        return None

    @property
    def is_new(self) -> bool:
        """Whether the config is a user's, and not a saved adapter's that belongs to one backbone."""
        return self.backbone is None or self.added_heads is not None

    def fill_in(self, dimensions: Dimensions) -> None:
        """Note the backbone, and the head among the modules that are trained in full."""
        own, trained = self.own_modules(), self.modules_with(dimensions.heads)
        if self.is_new:
            self.added_heads = frozenset(dimensions.heads) - frozenset(own)
        self.backbone = dimensions.fingerprint()
        self.modules_to_save = trained

    def modules_with(self, heads: Iterable[str]) -> list[str] | None:
        """Return the modules to train in full: the user's, and the model's new head."""
        return list(dict.fromkeys([*self.own_modules(), *heads])) or None

    def own_modules(self) -> list[str]:
        """Return the user's modules to train in full, without the head of another model that the config has served."""
        return [name for name in self.modules_to_save or [] if name not in (self.added_heads or ())]


def check_label_names(names: object) -> None:
    """Raise ConfigError for names of outputs that are no texts, or not numbered from 0."""
    if names is None:
        return
    given: dict[object, object] = names if isinstance(names, dict) else {}
    is_numbered = given.keys() == {*map(str, range(len(given)))} and bool(given)
    if not is_numbered or not all(isinstance(name, str) for name in given.values()):
        raise ConfigError(f"id2label is {quoted(names)}; expected a name for each output, by its number, or null")


def plain(value: Any) -> Any:
    """Turn sets into sorted lists, enumeration members into their values."""
    if isinstance(value, set):
        return sorted(value)
    return getattr(value, "value", value)
