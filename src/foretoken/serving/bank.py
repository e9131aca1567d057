"""What computes: one pretrained model, and adapters that are named row by row.

Shapes: B rows, N tokens, D model width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from peft import PeftConfig
from torch import Tensor, nn
from transformers import GenerationConfig

from foretoken.data.problems import QUESTION_ANSWERING
from foretoken.errors import AdapterError, BackboneError
from foretoken.inference.predictor import Predictor, load_for_inference
from foretoken.inference.shared_base import SharedBase
from foretoken.serving.generation import Reading, WantedText, fitting, generate
from foretoken.training.problems.question_answering import token_types_passed_on
from foretoken.training.tokens.encode import position_limit
from foretoken.tuner.bank.bank import AdapterBank, task_of
from foretoken.tuner.bank.heads import GLOBAL
from foretoken.tuner.dimensions import body_of, inner_of

log = logging.getLogger(__name__)
Add: TypeAlias = Callable[[str], "AdapterInfo"]
Run: TypeAlias = Callable[[dict[str, Tensor], Sequence[str]], list[Tensor]]

WRITERS = ("CAUSAL_LM", "SEQ_2_SEQ_LM")  # peft's names of what writes texts
HEADS = {"FEATURE_EXTRACTION": "none", "QUESTION_ANS": "questions"} | dict.fromkeys(WRITERS, "language-model")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BASE = "__base__"  # the pretrained model without an adapter, as peft calls it


@dataclass(frozen=True)
class AdapterInfo:
    """What a bank knows of an adapter.

    Attributes:
        labels: the names of its outputs, in order.
        method: peft's name of the method.
        bytes: memory that it takes beside the model.
        dtype: of the parameters, as they are kept.
        writes: whether the model writes texts with it.
        embeds: whether it was trained for vectors of texts, and has no head.
        answers: whether it finds answers in contexts.
        tokens: whose embeddings it has for itself.
    """

    labels: tuple[str, ...]
    method: str
    bytes: int
    dtype: str = "float32"
    writes: bool = False
    embeds: bool = False
    answers: bool = False
    tokens: frozenset[int] = frozenset()


class Bank(Protocol):
    """Adapters of one model; one thread at a time calls it."""

    @property
    def packs(self) -> bool:
        """Whether padding is not computed."""

    def read(self, folder: Path) -> Add:
        """Read an adapter's files, on any thread; return what takes it up under a name, on the bank's own.

        Either may fail with an AdapterError; all others are then as they were.
        """

    def remove(self, name: str) -> None:
        """Give an adapter up."""

    def __call__(self, inputs: dict[str, Tensor], adapter_names: Sequence[str]) -> list[Tensor]:
        """Return each row's logits: (labels,), or (tokens, labels) of an adapter that tags or finds answers."""

    def hidden_states(self, inputs: dict[str, Tensor], adapter_names: Sequence[str]) -> list[Tensor]:
        """Return each row's last hidden states, (tokens, D); :data:`BASE` names the model alone."""

    def generate(self, wanted: Sequence[WantedText]) -> list[Tensor]:
        """Return the tokens that follow each row, as :func:`foretoken.serving.generation.generate`."""


def make_bank(base: SharedBase, dtype: str | None = None) -> Bank:
    """Return an empty bank over a pretrained model, which keeps parameters in a type; None for the model's."""
    return MixedBank(base, dtype)


class MixedBank:
    """A bank that runs all rows of a batch together, whatever their adapters are.

    What :class:`foretoken.AdapterBank` does not take, such as heads that read the prefix, runs one adapter at a time.

    Args:
        base: the pretrained model.
        dtype: in which the adapters' parameters are kept; None for float32, which those that run apart have.
    """

    def __init__(self, base: SharedBase, dtype: str | None = None) -> None:
        self.base, self.making = base, base.making
        kept = None if dtype is None else DTYPES[dtype]
        model = base.language_model() if base.writes else body_of(base.with_new_head(None)[0])
        base.lower(model)
        self.together = AdapterBank(model, dtype=kept, compute_dtype=torch.float32)
        if base.writes:
            self.together.model.generation_config = _starts(self.together.model)  # requests say how texts go on
        self.apart = GroupedBank(base)
        self.reading = Reading.of(base.config, self.together.backbone)
        self.positions = None if self.reading.has_encoder else position_limit(base.config)

    @property
    def packs(self) -> bool:
        """Whether padding is not computed."""
        return self.together.packs

    def read(self, folder: Path) -> Add:
        """Read an adapter's files; of one that runs apart, make the model.

        Raises:
            AdapterError: the folder holds none, or one of another model.
        """
        task_type = task_of(PeftConfig.from_pretrained(str(folder)))
        is_writer = task_type in WRITERS
        try:
            saved = self.together.read(folder)
        except (AdapterError, BackboneError):
            if is_writer:
                raise
            return self.apart.read(folder)

        def add(name: str) -> AdapterInfo:
            try:
                with self.making:
                    self.together.add(name, saved)
            except (AdapterError, BackboneError) as error:
                if is_writer:
                    raise
                log.info("adapter %s runs apart from the others: %s", name, error)
                return self.apart.read(folder)(name)
            found = self.together.info(name)
            expected = HEADS.get(task_type or "")
            is_wrong = found.head in HEADS.values() if expected is None else found.head != expected
            if is_wrong:
                self.together.remove(name)
                raise AdapterError(f"{folder} has no trained head; train one with the adapter")
            return AdapterInfo(
                found.labels,
                found.method,
                found.bytes,
                dtype_name(self.together.dtype),
                writes=is_writer,
                embeds=found.head == "none",
                answers=found.head == "questions",
                tokens=self.together.trained_tokens(name),
            )

        return add

    def remove(self, name: str) -> None:
        """Give an adapter up."""
        if name in self.together:
            self.together.remove(name)
        else:
            self.apart.remove(name)

    @torch.inference_mode()
    def __call__(self, inputs: dict[str, Tensor], adapter_names: Sequence[str]) -> list[Tensor]:
        """Return each row's logits."""
        return self._divided(
            inputs, adapter_names, lambda rows, names: self.together(**rows, adapter_names=names).logits, self.apart
        )

    @torch.inference_mode()
    def hidden_states(self, inputs: dict[str, Tensor], adapter_names: Sequence[str]) -> list[Tensor]:
        """Return each row's last hidden states."""
        return self._divided(
            inputs,
            adapter_names,
            lambda rows, names: self.together.hidden_states(**rows, adapter_names=names),
            self.apart.hidden_states,
        )

    @torch.inference_mode()
    def generate(self, wanted: Sequence[WantedText]) -> list[Tensor]:
        """Return the tokens that follow each row, in one batch where the model has positions for it."""
        lengths = [len(one.row["input_ids"]) for one in wanted]
        new_tokens = [one.continuation.sampling.max_tokens for one in wanted]
        found: dict[int, Tensor] = {}
        for places in fitting(lengths, new_tokens, self.positions):
            with self.base.computing(self.together.device.type):
                results = generate(self.together.generate, [wanted[place] for place in places], self.reading)
            found |= dict(zip(places, results, strict=True))
        return [found[place] for place in range(len(wanted))]

    def _divided(self, inputs: dict[str, Tensor], names: Sequence[str], together: Run, apart: Run) -> list[Tensor]:
        """Run the rows of both kinds, and return their results in order."""
        kinds: dict[Run, list[int]] = {}
        for place, name in enumerate(names):
            kinds.setdefault(together if name == BASE or name in self.together else apart, []).append(place)
        rows: dict[int, Tensor] = {}
        for run, places in kinds.items():
            taken = inputs if len(places) == len(names) else _taken(inputs, places)
            with self.base.computing(self.together.device.type):
                results = run(taken, [names[place] for place in places])
            rows |= dict(zip(places, (result.float().cpu() for result in results), strict=True))
        return [rows[place] for place in range(len(names))]


class GroupedBank:
    """A bank that runs the rows of a batch one adapter at a time, over one copy of the pretrained tensors.

    Args:
        base: the pretrained model.
    """

    def __init__(self, base: SharedBase) -> None:
        self.base = base
        self.packs = False  # some models do it; batches are as small as if none did
        self._loaded: dict[str, Predictor] = {}

    def read(self, folder: Path) -> Add:
        """Load an adapter, and return what puts it beside the others."""
        with self.base.making:
            predictor = load_for_inference(folder, base=self.base)
        method = PeftConfig.from_pretrained(str(folder)).peft_type
        own = _own_tensors(predictor.model)
        kept = dtype_name(own[0].dtype if own else torch.float32)
        method = str(getattr(method, "value", method))
        answers = predictor.problem.name == QUESTION_ANSWERING
        size = sum(tensor.numel() * tensor.element_size() for tensor in own)
        info = AdapterInfo(tuple(predictor.labels), method, size, kept, answers=answers)

        def add(name: str) -> AdapterInfo:
            self._loaded[name] = predictor
            return info

        return add

    def remove(self, name: str) -> None:
        """Give an adapter up."""
        self._loaded.pop(name, None)

    @torch.inference_mode()
    def __call__(self, inputs: dict[str, Tensor], adapter_names: Sequence[str]) -> list[Tensor]:
        """Return each row's logits."""
        rows: dict[int, Tensor] = {}
        for name, places in _places(adapter_names).items():
            group = _taken(inputs, places)
            if GLOBAL in group and bool((group[GLOBAL] < 0).any()):  # the model knows which tokens these are
                del group[GLOBAL]
            logits = self._logits(self._loaded[name], group).float().cpu()
            rows |= dict(zip(places, _without_padding(logits, group["attention_mask"]), strict=True))
        return [rows[place] for place in range(len(adapter_names))]

    @torch.inference_mode()
    def hidden_states(self, inputs: dict[str, Tensor], adapter_names: Sequence[str]) -> list[Tensor]:
        """Return each row's last hidden states."""
        rows: dict[int, Tensor] = {}
        for name, places in _places(adapter_names).items():
            group = _taken(inputs, places)
            states = body_of(self._model(name))(**group).last_hidden_state.float().cpu()
            rows |= dict(zip(places, _without_padding(states, group["attention_mask"]), strict=True))
        return [rows[place] for place in range(len(adapter_names))]

    def _logits(self, predictor: Predictor, group: dict[str, Tensor]) -> Tensor:
        if predictor.problem.name != QUESTION_ANSWERING:
            logits: Tensor = predictor.model(**group).logits
            return logits
        with token_types_passed_on(predictor.model, group.get("token_type_ids")):
            found = predictor.model(**group)
        return torch.stack([found.start_logits, found.end_logits], dim=-1)

    def _model(self, name: str) -> nn.Module:
        if name == BASE:
            return self.base.with_new_head(None)[0].eval()
        model = self._loaded[name].model
        return inner_of(model)


def _starts(model: Any) -> GenerationConfig:
    """Return what a model says of how its texts begin, and nothing of how they go on."""
    own, names = model.generation_config, ("decoder_start_token_id", "forced_bos_token_id")
    given = {name: getattr(own, name, None) for name in names}
    return GenerationConfig(**{name: value for name, value in given.items() if value is not None})


def dtype_name(dtype: torch.dtype) -> str:
    """Return what a type is called in answers.

    >>> dtype_name(torch.float16)
    'float16'
    """
    return str(dtype).removeprefix("torch.")


def _places(names: Sequence[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def _taken(inputs: dict[str, Tensor], places: list[int]) -> dict[str, Tensor]:
    """Return some rows of a batch, cut to the longest of them."""
    longest = int(inputs["attention_mask"][places].sum(dim=1).max())
    return {name: values[places, :longest] for name, values in inputs.items()}


def _without_padding(values: Tensor, mask: Tensor) -> list[Tensor]:
    if values.dim() < 3:
        return list(values)
    return [row[:length] for row, length in zip(values, mask.sum(dim=1).tolist(), strict=True)]


def _own_tensors(model: nn.Module) -> list[Tensor]:
    """Return what was trained: the pretrained tensors are frozen and shared."""
    names = ("modules_to_save", "foretoken", "lora_")
    return [tensor for name, tensor in model.named_parameters() if any(part in name for part in names)]
