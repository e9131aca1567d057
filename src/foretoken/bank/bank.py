"""A bank of adapters: one frozen model, any number of adapters, and batches in which every document has its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from foretoken.backbones.fast_maps import FastMaps
from foretoken.backbones.pooling import of_documents
from foretoken.bank.body import NOWHERE, FrozenBody, Place, Wanted
from foretoken.bank.forms import (
    AdapterForm,
    LoraMaps,
    check_new_form,
    check_tensors,
    form_key,
    lora_maps,
    parts_of,
    plain_adapter,
)
from foretoken.bank.head_forms import HeadForms, body_inputs, task_of
from foretoken.bank.heads import CLASSES, PREFIX, HeadForm
from foretoken.bank.info import AdapterInfo, describe
from foretoken.bank.rows import check_holds
from foretoken.bank.saved import SavedAdapter, given_adapter, read_adapter
from foretoken.errors import AdapterError
from foretoken.files import PathLike
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.tuner.checks import check_same_backbone
from foretoken.tuner.forward.dimensions import dimensions_of
from foretoken.tuner.forward.plan import BASE, check_names
from foretoken.tuner.forward.rows import RowParameters
from foretoken.tuner.forward.sites import NAME, check_adapter_name
from foretoken.tuner.model_hooks import find_model_hooks


@dataclass(frozen=True)
class Entry:
    """Where an adapter is in the bank."""

    place: Place
    head: HeadForm | None
    head_slot: int
    info: AdapterInfo


@dataclass(frozen=True)
class BankOutput:
    """What a batch comes to.

    Attributes:
        logits: of each document: (C,), or (N, C) of its tokens without padding; N, C and the kind of head may differ.
    """

    logits: list[Tensor]


class AdapterBank:
    """Many adapters of any methods and heads on one frozen model, each document of a batch with its own.

    Adapters of one form (the same method and options, the same shapes) are rows of one tensor: a batch costs what its
    forms cost, not its adapters. Prefixes of different lengths are different forms, and share a batch as well.

    Args:
        model: of transformers: an encoder, with or without a head, or a decoder. It is frozen, and what acts in it
            acts in calls of the bank alone.
        dtype: in which parameters are kept; default: the model's. In half of it they take half of the memory.
        compute_dtype: in which adapters and heads of their own compute; default: the model's.

    Raises:
        AdapterError: the model has adapters already.
        BackboneError: the family is not supported.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    >>> AdapterBank(model).names
    []
    """

    def __init__(
        self, model: nn.Module, *, dtype: torch.dtype | None = None, compute_dtype: torch.dtype | None = None
    ) -> None:
        if isinstance(model, PeftModel) or find_model_hooks(model) is not None:
            raise AdapterError("the model has adapters already; give the bank a freshly loaded model")
        if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
            raise AdapterError("the model has adapters of peft's; give the bank a freshly loaded model")
        self.model: Any = model.requires_grad_(False).eval()
        self.frozen = FrozenBody(model, compute_dtype)
        self.body, self.hooks = self.frozen.body, self.frozen.hooks
        self.dimensions: dict[tuple[str, ...], Dimensions] = {(): self.hooks.dimensions}
        config = copy.deepcopy(self.model.config)
        self.hooks.handles.append(FastMaps(model))
        self.compute_dtype = self.frozen.compute_dtype
        self.dtype = dtype or self.compute_dtype
        self.lock = RLock()
        self.entries: dict[str, Entry] = {}
        self.forms: dict[str, AdapterForm] = {}
        has_head = self.body is not self.model
        self.heads = HeadForms(model, config, self.frozen.backbone, has_head=has_head, dtype=self.dtype)
        self.is_plain: dict[str, bool] = {}

    @property
    def names(self) -> list[str]:
        """The adapters in the bank."""
        return list(self.entries)

    @property
    def packs(self) -> bool:
        """Whether the model computes the texts of a batch without their padding."""
        return self.frozen.packs

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    def info(self, name: str) -> AdapterInfo:
        """Return what is known of an adapter.

        Raises:
            AdapterError: there is none of this name.
        """
        check_names([name], self.entries)
        return self.entries[name].info

    def add(
        self,
        name: str,
        adapter: PathLike | PeftConfig | SavedAdapter,
        state: Mapping[str, Tensor] | None = None,
        *,
        labels: Sequence[str] | None = None,
        without_words: bool = False,
    ) -> None:
        """Add an adapter; a batch that is being computed is not disturbed.

        Args:
            name: what calls will name it by.
            adapter: the folder that ``save_pretrained`` wrote, or what :meth:`read` returned, or a config.
            state: with a config, the tensors that ``peft.get_peft_model_state_dict`` returns.
            labels: what its outputs are called; default: what the card beside it says.
            without_words: take also one that was trained with ``words: true``. Its logits are then the model's alone:
                a bank is given tokens, and what TF-IDF adds is of the text.

        Raises:
            AdapterError: the name is taken, or the adapter is damaged, or of a kind that a bank does not take.
            BackboneError: it was made for another backbone.
        """
        check_adapter_name(name)
        if name in self.entries or name == BASE:
            raise AdapterError(f"the bank has an adapter called {name!r} already; remove() it first")
        own = None if labels is None else tuple(labels)
        if isinstance(adapter, SavedAdapter):
            saved = adapter
        elif isinstance(adapter, PeftConfig):
            saved = given_adapter(adapter, state or {}, self.heads.prefix, own)
        else:
            saved = read_adapter(adapter, self.heads.prefix)
        if saved.has_words and not without_words:
            raise AdapterError(
                f"{name!r} was trained with words beside it, and a bank is given tokens and cannot add what they say; "
                "`foretoken serve` does, or add(..., without_words=True) takes the logits of the model alone"
            )
        with self.lock, torch.inference_mode(False):
            self.entries[name] = self.make_entry(saved, own or saved.labels)

    def read(self, folder: PathLike) -> SavedAdapter:
        """Look at an adapter's files for :meth:`add`, which then finds them in memory; batches go on meanwhile.

        Raises:
            AdapterError: there is none, or it is damaged, or of a kind that is seen to be none for a bank.
        """
        saved = read_adapter(folder, self.heads.prefix)
        for name in saved.state:  # mapped one after the other: they are not held, but need not come from the disk again
            check_holds(saved.state[name], self.dtype)
        return saved

    def make_entry(self, saved: SavedAdapter, labels: tuple[str, ...] | None) -> Entry:
        """Put an adapter's parameters into the rows of its form and of its head."""
        config, lora = parts_of(saved.config)
        maps = lora_maps(lora, saved.state)
        tensors: Mapping[str, Tensor] = saved.state
        shapes = dict(saved.state.shapes)
        dimensions = self.dimensions_for(saved.config)
        if getattr(saved.config, "trainable_token_indices", None):
            raise AdapterError("the adapter trains embeddings of tokens, which all documents share here; load it alone")
        key = form_key(config, maps, dimensions)
        if config is not None:
            check_same_backbone(config, dimensions)
        if config is not None and not self.is_plain.get(key, False):
            if key not in self.is_plain:
                check_new_form(config, dimensions, self.model)
            paths = {module: path for path, module in self.body.named_modules()}
            config, found = plain_adapter(config, saved.state, dimensions, paths, self.hooks)
            self.is_plain[key] = found is None
            if found is not None:
                replaced = {name for name in shapes if f".{NAME}." in name}
                shapes = {name: shape for name, shape in shapes.items() if name not in replaced}
                shapes |= {name: tuple(tensor.shape) for name, tensor in found.items()}
                tensors = {name: saved.state[name] for name in shapes if name not in found} | found
        others = (f".{NAME}.", ".lora_")
        head_names = {name for name in shapes if not any(part in name for part in others)}
        head = self.heads.find(saved.config, {name: shapes[name] for name in head_names})
        form = self.find_form(config, maps, dimensions, shapes)
        if head is not None and head.model.pool == PREFIX and (form is None or not form.has_prefix):
            raise AdapterError("the adapter's head reads the prefix (pool 'prefix'), and its method puts none there")
        slot = -1 if form is None else form.add(config, maps, tensors)
        head_slot = -1
        try:
            if head is not None and head.store.layout:
                head_slot = head.store.add(tensors)
        except BaseException:
            if form is not None:
                form.remove(slot)
            raise
        return Entry((form, slot), head, head_slot, describe(saved.config, form, head, labels, self.dtype))

    def find_form(
        self,
        config: ForetokenConfig | None,
        maps: LoraMaps,
        dimensions: Dimensions,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> AdapterForm | None:
        """Return the adapter's form, put at the model's sites where it is the first of it; None for a head alone."""
        key = form_key(config, maps, dimensions)
        form = self.forms.get(key)
        if form is None:
            name = f"form{len(self.forms)}"
            form = AdapterForm(name, self.hooks, config, maps, dimensions=dimensions, dtype=self.dtype)
            self.frozen.rest()
        check_tensors(form, shapes)
        self.forms[key] = form
        return form if form.targets else None

    def dimensions_for(self, config: PeftConfig) -> Dimensions:
        """Return the numbers of the backbone; where an adapter has a task, its pooler belongs to the head."""
        heads = ("pooler",) if task_of(config) in CLASSES else ()
        if heads not in self.dimensions:
            self.dimensions[heads] = dimensions_of(self.model, self.body, self.frozen.backbone, heads=heads)
        return self.dimensions[heads]

    def remove(self, name: str) -> None:
        """Remove an adapter; its place is used again.

        Raises:
            AdapterError: there is none of this name.
        """
        with self.lock:
            check_names([name], self.entries)
            entry = self.entries.pop(name)
            form, slot = entry.place
            if form is not None:
                form.remove(slot)
            if entry.head is not None and entry.head_slot >= 0:
                entry.head.store.remove(entry.head_slot)

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        adapter_names: Sequence[str],
        **inputs: Tensor,
    ) -> BankOutput:
        """Return the logits of each document by its own adapter and head.

        Args:
            input_ids: (B, N).
            attention_mask: (B, N), 0 for padding; None where there is none.
            adapter_names: of each document; ``"__base__"`` for the model itself, where it has a head.
            inputs: what else the body takes, such as ``token_type_ids``. In ``global_attention_mask`` the documents
                whose row begins with -1 have the tokens that the class of their head asks for.

        Raises:
            AdapterError: a name is unknown, their number is not that of the documents, or one has no head.
        """
        found: list[Any] = [None] * len(input_ids)
        with self.lock:
            for form, rows, numbers, given in self._of_heads(input_ids, attention_mask, adapter_names, inputs):
                logits = form.logits(rows, *given)
                for number, own, real in zip(numbers, logits, given[1], strict=True):
                    found[number] = own[real.bool()] if form.model.is_of_tokens else own
        return BankOutput(found)

    def summaries(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        adapter_names: Sequence[str],
        **inputs: Tensor,
    ) -> list[Tensor]:
        """Return of each row, a part of a document, what its adapter's head keeps (K,): see :meth:`document_logits`.

        Raises:
            AdapterError: as :meth:`__call__`; or a head pools nothing.
        """
        found: list[Any] = [None] * len(input_ids)
        with self.lock:
            for form, rows, numbers, given in self._of_heads(input_ids, attention_mask, adapter_names, inputs):
                if form.model.pool is None:
                    raise AdapterError(f"the head of {adapter_names[numbers[0]]!r} reads one row of a document alone")
                for number, own in zip(numbers, form.summaries(rows, *given[:2]), strict=True):
                    found[number] = own
        return found

    def document_logits(self, name: str, summaries: Sequence[Tensor], owner: Sequence[int]) -> Tensor:
        """Return the logits (B, C) of documents, given what was kept of their rows, and whose each row is."""
        with self.lock:
            form, slot = self.head_of(name)
            assert form is not None
            rows = form.store.gather([slot] * (owner[-1] + 1), self.compute_dtype) if form.store.layout else NOTHING
            kept = torch.stack(list(summaries)).to(self.heads.device)
            pooled = of_documents(str(form.model.pool), kept, torch.tensor(owner))
            return form.of_pooled(rows, pooled.to(self.compute_dtype))

    def _of_heads(
        self, input_ids: Tensor, attention_mask: Tensor | None, names: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> Iterator[tuple[HeadForm, RowParameters, list[int], list[Tensor]]]:
        """Yield each form of head with its documents' parameters, numbers, and states, mask and tokens."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        heads = [self.head_of(name) for name in self.checked(names, input_ids)]
        if missing := next((name for name, (head, _) in zip(names, heads, strict=True) if head is None), None):
            raise AdapterError(f"{missing!r} has no head here; ask for hidden_states(), or give the model a head")
        states = self.run_body(input_ids, mask, names, inputs, whole=False)
        forms = dict.fromkeys(head for head, _ in heads)
        has_prefix = any(form is not None and form.model.pool == PREFIX for form in forms)
        for form in forms:
            assert form is not None
            numbers = [number for number, (head, _) in enumerate(heads) if head is form]
            slots = [heads[number][1] for number in numbers]
            rows = form.store.gather(slots, self.compute_dtype) if form.store.layout else NOTHING
            is_all = len(numbers) == len(heads)
            own = states if not has_prefix else states[:, :1] if form.model.pool == PREFIX else states[:, 1:]
            yield form, rows, numbers, [x if is_all else x[numbers] for x in (own, mask, input_ids)]

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        adapter_names: Sequence[str],
        **inputs: Tensor,
    ) -> list[Tensor]:
        """Return each document's last hidden states (N, D), padding left out.

        Raises:
            AdapterError: as :meth:`__call__`; heads are not asked for.
        """
        with self.lock:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            self.checked(adapter_names, input_ids)
            states = self.run_body(input_ids, mask, adapter_names, inputs, whole=True)
            return [own[real.bool()] for own, real in zip(states, mask, strict=True)]

    def head_of(self, name: str) -> tuple[HeadForm | None, int]:
        """Return an adapter's head and its number there."""
        if name == BASE:
            return self.heads.own, -1
        entry = self.entries[name]
        return entry.head, entry.head_slot

    def checked(self, names: Sequence[str], input_ids: Tensor) -> Sequence[str]:
        """Return the names, one of each document."""
        check_names(names, self.entries)
        if len(names) != len(input_ids):
            raise AdapterError(
                f"adapter_names has {len(names)} names for a batch of {len(input_ids)}; give one name per document"
            )
        return names

    def run_body(
        self, input_ids: Tensor, mask: Tensor, names: Sequence[str], inputs: Mapping[str, Tensor], *, whole: bool
    ) -> Tensor:
        """Return the last hidden states (B, N, D), (B, 1 + N, D) or (B, 1, D), as the heads want them."""
        heads = [self.head_of(name)[0] for name in names]
        models = [head.model for head in heads if head is not None and not whole]
        first = len(models) == len(heads) and all(model.reads_first_token for model in models)
        wanted = Wanted(first, prefix=any(model.pool == PREFIX for model in models))
        places = [NOWHERE if name == BASE else self.entries[name].place for name in names]
        return self.frozen(body_inputs(heads, input_ids, mask, inputs), places, wanted)


NOTHING = RowParameters(torch.zeros(1, 0), (0,))  # of a head that is the model's own
