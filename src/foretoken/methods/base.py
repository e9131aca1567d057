"""What the configs of all methods share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig, PeftConfig
from peft.utils import CONFIG_NAME
from torch import Tensor, nn

from foretoken.errors import ConfigError, quoted
from foretoken.files import JsonObject, PathLike, write_json
from foretoken.methods.dimensions import ChosenLayers, Dimensions, Layers, check_layers
from foretoken.methods.require import require_token_numbers
from foretoken.methods.sites import Sites
from foretoken.saved_files import read_object, refuse_pickles

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
class PrefixStart:
    """What the prefix of a new adapter is at the start.

    Attributes:
        source: ``random``, ``positions``, ``vocabulary``, ``text``, ``documents`` or ``adapter``.
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
    usual_rate: ClassVar[float | None] = 1e-3  # see `learning_rate`
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
    def learning_rate(self) -> float | None:
        """The peak learning rate where nobody names one; None where nothing but a head is trained: the head's."""
        return self.usual_rate

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
