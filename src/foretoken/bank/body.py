"""The frozen body of a bank: one pass for the documents of a batch, each with its own adapter's rows.

What the layers below an adapter's first one compute is the frozen model's, so many adapters share it: it runs once for
each document, and its states are repeated for the rows that ask.

Shapes: B rows of a batch, N tokens, n tokens of a document, D model width.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foretoken.backbones import find_backbone
from foretoken.backbones.packing import HEAD_INPUTS, HeadInputs
from foretoken.backbones.pooling import POOLING
from foretoken.bank.forms import AdapterForm
from foretoken.tuner.forward.dimensions import body_of, dimensions_of
from foretoken.tuner.forward.plan import BASE
from foretoken.tuner.lower_layers import LowerLayers, can_leave_layers_out, keys_of
from foretoken.tuner.model_hooks import HOOKS, ModelHooks

Place: TypeAlias = tuple[AdapterForm | None, int]  # an adapter's form and its row there; None: it acts in no layer
NOWHERE: Place = (None, -1)
MASK = "attention_mask"


@dataclass(frozen=True)
class Wanted:
    """What heads read of the last hidden states.

    Attributes:
        first_only: the first token's alone.
        prefix: also the first row of the prefix, which is put before the text.
    """

    first_only: bool = False
    prefix: bool = False


class NotedPrefix:
    """Notes the prefix before the text leaves the body, as :class:`foretoken.backbones.pooling.Pooling` does."""

    reads_prefix = True
    states: Tensor

    def note_prefix(self, states: Tensor, mask: Tensor) -> None:
        """Note its first row in (B, P + N, D) last hidden states."""
        self.states = states[:, :1]


class DocumentStates:
    """States of documents, by what they hold and how many layers have run; those used least recently leave.

    Those of the last batch stay until the next one, whatever their size: a large request takes several batches.

    Attributes:
        size: bytes of them that stay longer.
        keeps_all: also documents that one row of a batch asks for are kept, as the next one will.
    """

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.keeps_all = False
        self.kept: OrderedDict[tuple[bytes, int], Tensor] = OrderedDict()  # (n, D)
        self.used: set[tuple[bytes, int]] = set()

    def __contains__(self, key: tuple[bytes, int]) -> bool:
        return key in self.kept

    def __getitem__(self, key: tuple[bytes, int]) -> Tensor:
        self.used.add(key)
        self.kept.move_to_end(key)
        return self.kept[key]

    def put(self, key: tuple[bytes, int], states: Tensor) -> None:
        """Keep a document's states for this batch at least."""
        self.kept[key] = states
        self.used.add(key)

    def end_batch(self) -> None:
        """Let go of what does not fit."""
        left = sum(states.nbytes for states in self.kept.values())
        for key in list(self.kept):
            if left > self.size and key not in self.used:
                left -= self.kept.pop(key).nbytes
        self.used = set()


class FrozenBody:
    """The body of a bank's model, with hooks that let adapters act in calls of the bank alone.

    Attributes:
        states: of documents whose lower layers have run.
    """

    def __init__(self, model: nn.Module, compute_dtype: torch.dtype | None) -> None:
        self.body: Any = body_of(model)
        self.backbone = find_backbone(model)
        self.hooks = ModelHooks(self.body, self.backbone, dimensions_of(model, self.body, self.backbone))
        HOOKS.set(self.body, self.hooks)
        self.compute_dtype = compute_dtype or next(self.body.parameters()).dtype
        self.states = DocumentStates()
        self.lower: dict[int, LowerLayers] = {}
        self.firsts = WeakKeyDictionary[AdapterForm, int]()

    @property
    def packs(self) -> bool:
        """Whether the model computes the texts of a batch without their padding."""
        return bool(self.backbone.first_token_heads and self.backbone.stacks[0].end)

    @cached_property
    def layers(self) -> list[nn.Module]:
        """The layers, where those below an adapter's first one can be left out; else none."""
        return self.backbone.stacks[0].layer_modules(self.body) if can_leave_layers_out(self.body) else []

    def first_layer(self, form: AdapterForm | None) -> int:
        """Return how many layers, from the first on, are those of the frozen model for adapters of a form."""
        if form is None or not self.layers:
            return len(self.layers)
        if form not in self.firsts:
            self.firsts[form] = self.find_first_layer(form)
        return self.firsts[form]

    def find_first_layer(self, form: AdapterForm) -> int:
        """Return it by where the form's modules are."""
        holders = {id(target.holder) for target, _ in form.targets.values()}
        within = [{id(module) for module in layer.modules()} & holders for layer in self.layers]
        if len(set().union(*within)) < len(holders):
            return 0  # something acts before, or beside
        return next(number for number, found in enumerate(within) if found)

    def __call__(self, given: dict[str, Tensor], places: Sequence[Place], wanted: Wanted) -> Tensor:
        """Return the last hidden states (B, N, D), (B, 1 + N, D) or (B, 1, D), as heads want them."""
        groups, keys = self.groups(given, places)
        if not groups.keys() - {0}:
            return self.run(given, places, wanted)
        parts = []
        for count, rows in sorted(groups.items()):
            part, own = {name: x[rows] for name, x in given.items()}, [places[row] for row in rows]
            if not count:
                states = self.run(part, own, wanted)
            else:
                states = self.run_above(count, part, own, [keys[row] for row in rows], wanted)
            parts.append((rows, states))
        self.states.end_batch()
        like = max((states for _, states in parts), key=lambda states: states.shape[1])  # the first tokens' are shorter
        found = like.new_zeros(len(places), *like.shape[1:])
        for rows, states in parts:
            found[rows, : states.shape[1]] = states
        return found

    def groups(self, given: Mapping[str, Tensor], places: Sequence[Place]) -> tuple[dict[int, list[int]], list[bytes]]:
        """Return the rows by how many layers they leave to others, and keys of their documents."""
        firsts = [self.first_layer(form) for form, _ in places]
        keeps = self.states.keeps_all or self.states.size > 0
        if not any(firsts) or (len(places) < 2 and not keeps and not self.states.kept):
            return {}, []
        if any(x.dim() != 2 or x.is_floating_point() or len(x) != len(places) for x in given.values()):
            return {}, []  # of what is more than tokens and what is said of them we do not know
        mask = given[MASK] != 0
        whole = (mask.cumprod(dim=1).sum(dim=1) == mask.sum(dim=1)).tolist()  # padding stands behind
        keys = keys_of(given, sorted(given.keys() - {"input_ids", MASK}))
        asked = Counter(key for key, first in zip(keys, firsts, strict=True) if first)
        groups: dict[int, list[int]] = {}
        for row, (key, first) in enumerate(zip(keys, firsts, strict=True)):
            shares = whole[row] and (asked[key] > 1 or keeps or (key, first) in self.states)
            groups.setdefault(first if shares else 0, []).append(row)
        return groups, keys

    def run_above(
        self, count: int, given: dict[str, Tensor], places: Sequence[Place], keys: Sequence[bytes], wanted: Wanted
    ) -> Tensor:
        """Return what leaves the body for rows whose first layers run once for each document."""
        level = count + wanted.first_only if count == len(self.layers) else count
        own = {key: row for row, key in reversed(list(enumerate(keys)))}
        if missing := [key for key in own if (key, level) not in self.states]:
            rows = [own[key] for key in missing]
            part = {name: x[rows] for name, x in given.items()}
            below = (n for n in self.lower if n < count and all((key, n) in self.states for key in missing))
            with self.starting(max(below, default=0), missing):
                if count == len(self.layers):
                    found = self.run(part, [NOWHERE] * len(rows), Wanted(wanted.first_only))
                else:
                    with self.naming([NOWHERE] * len(rows)), self.reading(first_only=False):
                        found = self.lower_layers(count).states(part)
            lengths = part[MASK].sum(dim=1).tolist()
            with torch.inference_mode(False):  # which later calls may not be in
                for key, states, length in zip(missing, found, lengths, strict=True):
                    self.states.put((key, level), states[:length].clone())
        if count == len(self.layers):
            states = self.stacked(keys, level)
            length = states.shape[1] if wanted.first_only else given["input_ids"].shape[1]
            return nn.functional.pad(states, (0, 0, int(wanted.prefix), length - states.shape[1]))
        with self.starting(count, keys):
            return self.run(given, places, wanted)

    def stacked(self, keys: Sequence[bytes], level: int) -> Tensor:
        """Return the states (B, N, D) of documents, zero for padding."""
        number = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        each = pad_sequence([self.states[key, level] for key in number], batch_first=True)
        return each if len(number) == len(keys) else each[[number[key] for key in keys]]

    @contextmanager
    def starting(self, count: int, keys: Sequence[bytes]) -> Iterator[None]:
        """Begin passes behind so many layers, with the states of these documents; 0: at the beginning."""
        if not count:
            yield
            return
        lower = self.lower_layers(count)
        lower.use(self.stacked(keys, count))
        try:
            yield
        finally:
            lower.use(None)

    def lower_layers(self, count: int) -> LowerLayers:
        """Return the first layers as what can be left out."""
        if count not in self.lower:
            self.lower[count] = LowerLayers(self.body, count).make_optional()
        return self.lower[count]

    def run(self, given: Mapping[str, Tensor], places: Sequence[Place], wanted: Wanted) -> Tensor:
        """Run the body for rows, each with its own adapter."""
        with self.naming(places), self.reading(first_only=wanted.first_only):
            if not wanted.prefix:
                states: Tensor = self.body(**given, return_dict=True)[0]
                return states
            noted, before = NotedPrefix(), POOLING.pop(self.body)
            POOLING.set(self.body, noted)  # type: ignore[arg-type]
            try:
                states = self.body(**given, return_dict=True)[0]
            finally:
                POOLING.pop(self.body)
                if before is not None:
                    POOLING.set(self.body, before)
            return torch.cat([noted.states, states], dim=1)

    @contextmanager
    def reading(self, *, first_only: bool) -> Iterator[None]:
        """Tell an encoder that packs what is read of it."""
        stack = self.backbone.stacks[0]
        encoder = stack.module(self.body).get_submodule(stack.end) if self.packs and stack.end else None
        if encoder is not None:
            HEAD_INPUTS.set(encoder, HeadInputs(first_only, padding=False, last_layer_only=True))
        try:
            yield
        finally:
            if encoder is not None:
                HEAD_INPUTS.pop(encoder)

    @contextmanager
    def naming(self, places: Sequence[Place]) -> Iterator[None]:
        """Let each document have its adapter for a while."""
        state = self.hooks.state
        state.rows = {
            form.name: form.store.gather([slot for own, slot in places if own is form], self.compute_dtype)
            for form in dict.fromkeys(form for form, _ in places)
            if form is not None
        }
        state.names = [BASE if form is None else form.name for form, _ in places]
        self.rest(disabled=False)
        try:
            yield
        finally:
            state.names, state.rows = None, {}
            self.rest()

    def rest(self, *, disabled: bool = True) -> None:
        """Let the model be itself outside of the bank's own calls."""
        for site in self.hooks.sites:
            site._disable_adapters = disabled
