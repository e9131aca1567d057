"""Modules of a method with the parameters of each document's own adapter: all documents at once, whatever the method.

A method's module is written for one set of parameters. Here it is called through ``torch.func.vmap``, which computes
what a loop over the documents would, in one batched operation for each of the module's.

Shapes: b documents of a group, N text tokens, P length of the prefix, H heads, K head width, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from foretoken.methods.sites import AttentionEdit, LayerEntry, OutputEdit, ScoreColumns, SeparatePrefix
from foretoken.tuner.forward.rows import Layout, RowParameters
from foretoken.tuner.forward.sites import edits_text


class BankedMethod(nn.Module):
    """A method of a module as a module's ``forward``, which is what ``functional_call`` calls."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module = module
        self.method = name

    def forward(self, *args: Any) -> Any:
        """Call it."""
        return getattr(self.module, self.method)(*args)


class RowCalls:
    """Calls of one module's methods with the parameters of each document.

    Args:
        module: the method's module; what its own parameters hold does not matter.
        layout: where its parameters lie in an adapter's vector.
        own: by adapter, its own modules, for methods whose adapters differ in more than parameters; else None.
        constants: parameters that all adapters share.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        own: Mapping[int, nn.Module] | None = None,
        *,
        constants: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.module = module
        self.constants = {f"module.{name}": value for name, value in constants.items()}
        self.layout = {f"module.{name}": place for name, place in layout.items()}
        self.own = own
        self.methods: dict[str, BankedMethod] = {}

    def part(self, path: str) -> RowCalls:
        """Return the calls of a module inside the module."""
        if not path:
            return self
        inner = f"module.{path}."
        layout = {name.removeprefix(inner): place for name, place in self.layout.items() if name.startswith(inner)}
        own = None if self.own is None else BankedParts(self.own, path)
        return RowCalls(self.module.get_submodule(path), layout, own)

    def __call__(self, rows: RowParameters, name: str, *args: Any, training: bool = False) -> Any:
        """Call a method for all documents. Tensors among the arguments have the documents first, results too."""
        if self.own is not None:
            return self.one_by_one(self.own, rows, name, args)
        method = self.methods.get(name)
        if method is None:
            method = self.methods[name] = BankedMethod(self.module, name)
        if method.training is not training:
            method.train(training)
        parameters = rows.named(self.layout)
        if rows.is_shared:
            shared = {key: value[0] for key, value in parameters.items()}
            return functional_call(method, {**shared, **self.constants}, args)

        def of_one(parameters: dict[str, Tensor], *args: Any) -> Any:
            given = tuple(x[None] if isinstance(x, Tensor) else x for x in args)
            result = functional_call(method, {**parameters, **self.constants}, given)
            return tuple(x[0] for x in result) if isinstance(result, tuple) else result[0]

        dims = tuple(0 if isinstance(x, Tensor) else None for x in args)
        return vmap(of_one, in_dims=(0, *dims), randomness="different")(parameters, *args)

    @staticmethod
    def one_by_one(own: Mapping[int, nn.Module], rows: RowParameters, name: str, args: tuple[Any, ...]) -> Any:
        """Call each adapter's own module with its documents."""
        places: dict[int, list[int]] = {}
        for number, slot in enumerate(rows.slots):
            places.setdefault(slot, []).append(number)
        results = []
        for slot, numbers in places.items():
            given = [x[numbers] if isinstance(x, Tensor) and len(places) > 1 else x for x in args]
            results.append(getattr(own[slot], name)(*given))
        if len(results) == 1:
            return results[0]
        order = torch.tensor([number for numbers in places.values() for number in numbers]).argsort()
        return torch.cat(results)[order]


class BankedParts(Mapping[int, nn.Module]):
    """The modules at one path inside each of several modules."""

    def __init__(self, whole: Mapping[int, nn.Module], path: str) -> None:
        self.whole = whole
        self.path = path

    def __getitem__(self, slot: int) -> nn.Module:
        return self.whole[slot].get_submodule(self.path)

    def __iter__(self) -> Any:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def row_module(
    module: nn.Module, layout: Layout, own: Mapping[int, nn.Module] | None = None, *, query: Tensor | None = None
) -> RowModule:
    """Return what stands at a site for the adapters of one form.

    Args:
        module: the method's module.
        layout: where its parameters lie in an adapter's vector.
        own: by adapter, its own modules, for methods whose adapters differ in more than parameters; else None.
        query: of an attention: (1, H, 1, K), on the module's device.
    """
    calls = RowCalls(module, layout, own)
    if isinstance(module, LayerEntry):
        for part in module.modules():
            if isinstance(part, LayerEntry):
                part.one_document = True
        return RowEntry(calls, module)
    if isinstance(module, AttentionEdit):
        assert query is not None
        return RowAttention(calls, module, query)
    assert isinstance(module, OutputEdit)
    return RowOutput(calls)


class RowEntry(LayerEntry):
    """A layer entry of the adapters of one form."""

    def __init__(self, calls: RowCalls, entry: LayerEntry) -> None:
        super().__init__()
        self.calls = calls
        self.prefix_length = entry.prefix_length
        self.position_free = entry.position_free
        self.edits_text = edits_text(entry)

    def bound(self, rows: RowParameters) -> LayerEntry:
        """Return the entry of the documents with these parameters."""
        return BoundEntry(self, rows)


class BoundEntry(LayerEntry):
    """A layer entry of documents with parameters of their own."""

    def __init__(self, entry: RowEntry, rows: RowParameters) -> None:
        super().__init__()
        self.prefix_length, self.position_free = entry.prefix_length, entry.position_free
        self.edits_text = entry.edits_text
        self.entry = (entry,)  # in a tuple: not registered a second time
        self.rows = rows

    def call(self, name: str, *args: Any) -> Tensor:
        """Call a method of the entry."""
        entry = self.entry[0]
        result: Tensor = entry.calls(self.rows, name, *args, training=entry.training)
        return result

    def new_prefix(self, batch_size: int) -> Tensor:
        """Return the documents' (b, P, D) prefixes."""
        return self.call("new_prefix", batch_size if self.rows.is_shared else 1)

    def on_prefix(self, prefix: Tensor) -> Tensor:
        """Edit the (b, P, D) prefixes."""
        return self.call("on_prefix", prefix)

    def on_text(self, text: Tensor, token_ids: Tensor | None) -> Tensor:
        """Edit the (b, N, D) texts."""
        return self.call("on_text", text, token_ids) if self.edits_text else text


@dataclass(frozen=True)
class Member:
    """Score columns or a separate prefix, and which of its methods yield something.

    Attributes:
        module: the method's module.
        adds_after: what columns add after the output projection is not None.
        is_weighted: nor is the weight of a separate prefix.
    """

    module: ScoreColumns | SeparatePrefix
    adds_after: bool = False
    is_weighted: bool = False

    @classmethod
    def of(cls, module: ScoreColumns | SeparatePrefix, query: Tensor) -> Member:
        """Ask the methods with a (1, H, 1, K) query."""
        if isinstance(module, SeparatePrefix):
            return cls(module, is_weighted=module.weight(query) is not None)
        probabilities = query[..., :1].expand(-1, -1, -1, module.num_columns)
        return cls(module, adds_after=module.after_projection(probabilities, query) is not None)


class RowAttention(AttentionEdit):
    """What the adapters of one form do in one attention."""

    def __init__(self, calls: RowCalls, edit: AttentionEdit, query: Tensor) -> None:
        super().__init__()
        paths = {member: path for path, member in edit.named_modules()}
        with torch.no_grad():
            self.parts = [(Member.of(member, query), calls.part(paths[member])) for member in edit.members()]

    def members(self) -> Iterable[ScoreColumns | SeparatePrefix]:
        """Return the columns and separate prefixes of the form, for their numbers and not for their values."""
        return [member.module for member, _ in self.parts]

    def bound(self, rows: RowParameters) -> AttentionEdit:
        """Return the edit of the documents with these parameters."""
        return BoundAttention(self, rows)


class BoundAttention(AttentionEdit):
    """What documents with parameters of their own do in one attention."""

    def __init__(self, edit: RowAttention, rows: RowParameters) -> None:
        super().__init__()
        self.bound_members = [
            (BoundColumns if isinstance(member.module, ScoreColumns) else BoundSeparate)(
                member, calls, rows, training=edit.training
            )
            for member, calls in edit.parts
        ]

    def members(self) -> Iterable[ScoreColumns | SeparatePrefix]:
        """Return the columns and separate prefixes."""
        return self.bound_members


class BoundColumns(ScoreColumns):
    """Score columns of documents with parameters of their own."""

    def __init__(self, member: Member, calls: RowCalls, rows: RowParameters, *, training: bool) -> None:
        super().__init__()
        columns: Any = member.module
        self.num_columns, self.position_free = columns.num_columns, columns.position_free
        self.outside_softmax, self.own_softmax = columns.outside_softmax, columns.own_softmax  # type: ignore[misc]
        self.calls, self.rows, self.is_training = calls, rows, training
        self.are_keys, self.adds_after = columns.are_keys, member.adds_after

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the columns."""
        return self.calls(self.rows, name, *args, training=self.is_training)

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(b, H, N, K) -> (b, H, N, X)."""
        scores: Tensor = self.call("scores", query, scale)
        return scores

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Use the probabilities (b, H, N, X)."""
        combined: Tensor = self.call("combine", out, probabilities, query)
        return combined

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return a (b, N, D) vector, or None."""
        return self.call("after_projection", probabilities, query) if self.adds_after else None

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values (b, H_kv, X, K), where that is all there is to the columns."""
        if not self.are_keys:
            return None
        if self.rows.is_shared:
            pair: tuple[Tensor, Tensor] = self.call("keys", query, documents)
            return pair
        few = query[:1, :, :1].expand(len(self.rows.slots), -1, -1, -1)  # for its type alone
        one: tuple[Tensor, Tensor] = self.call("keys", few, 1)
        return one


class BoundSeparate(SeparatePrefix):
    """A separate prefix of documents with parameters of their own."""

    def __init__(self, member: Member, calls: RowCalls, rows: RowParameters, *, training: bool) -> None:
        super().__init__()
        separate: Any = member.module
        self.kernel, self.text_kernel = separate.kernel, separate.text_kernel
        self.global_alpha, self.projection = separate.global_alpha, separate.projection
        self.is_weighted = member.is_weighted
        self.calls, self.rows, self.is_training = calls, rows, training

    def weight(self, query: Tensor) -> Tensor | None:
        """(b, H, N, K) -> alpha, broadcastable to (b, H, N, 1); None for the softmax's own lambda."""
        if not self.is_weighted:
            return None
        weight: Tensor = self.calls(self.rows, "document_weight", query, training=self.is_training)
        return weight


class RowOutput(OutputEdit):
    """An edit of a module's output by the adapters of one form."""

    def __init__(self, calls: RowCalls) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """Raise TypeError: there are no parameters without documents."""
        raise TypeError("an edit of many adapters is called with the parameters of its documents")

    def bound(self, rows: RowParameters) -> OutputEdit:
        """Return the edit of the documents with these parameters."""
        return BoundOutput(self, rows)


class BoundOutput(OutputEdit):
    """An edit of a module's output by documents with parameters of their own."""

    def __init__(self, edit: RowOutput, rows: RowParameters) -> None:
        super().__init__()
        self.edit = (edit,)  # in a tuple: not registered a second time
        self.rows = rows

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """(b, N, D_out) and (b, N, D_in) -> (b, N, D_out)."""
        edit = self.edit[0]
        edited: Tensor = edit.calls(self.rows, "forward", output, given, training=edit.training)
        return edited


RowModule = RowEntry | RowAttention | RowOutput
