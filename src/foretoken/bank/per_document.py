"""Modules of a method with the parameters of each document's own adapter, for all documents at once.

A method's module is written for one set of parameters. Here it is called through ``torch.func.vmap``, which computes
the same as a loop over the documents, with one batched operation for each operation of the module.

Shapes: b documents of a group, N text tokens, P length of the prefix, H heads, K head width, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from foretoken.methods.sites import AttentionEdit, LayerEntry, OutputEdit, ScoreColumns, SeparatePrefix
from foretoken.tuner.forward.rows import Layout, RowParameters
from foretoken.tuner.forward.sites import edits_text


class MethodCall(nn.Module):
    """A method of a module as the ``forward`` of another module, which ``functional_call`` calls."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module = module
        self.method = name

    def forward(self, *args: Any) -> Any:
        """Call the method."""
        return getattr(self.module, self.method)(*args)


class RowCalls:
    """Calls of one module's methods with the parameters of each document.

    Args:
        module: the method's module; the values of its own parameters do not matter.
        layout: the positions of its parameters in an adapter's vector.
        modules: each adapter's own module, for methods whose adapters differ in more than parameters; else None.
        constants: parameters that all adapters share.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        modules: Mapping[int, nn.Module] | None = None,
        *,
        constants: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.module = module
        self.constants = {f"module.{name}": value for name, value in constants.items()}
        self.layout = {f"module.{name}": slot for name, slot in layout.items()}
        self.own = modules
        self.methods: dict[str, MethodCall] = {}

    def part(self, path: str) -> RowCalls:
        """Return the calls of a module inside the module."""
        if not path:
            return self
        inner = f"module.{path}."
        layout = {name.removeprefix(inner): slot for name, slot in self.layout.items() if name.startswith(inner)}
        modules = None if self.own is None else InnerModules(self.own, path)
        return RowCalls(self.module.get_submodule(path), layout, modules)

    def bound(self, rows: RowParameters, *, training: bool = False) -> DocumentCalls:
        """Return the calls with the parameters of these documents."""
        return DocumentCalls(self, rows, training)

    def __call__(self, rows: RowParameters, name: str, *args: Any) -> Any:
        """Call a method for all documents. Tensors among the arguments have the documents first, results too."""
        return self.bound(rows)(name, *args)


class DocumentCalls:
    """Calls with the parameters of the documents of one pass: views of their vectors, made once for all calls."""

    def __init__(self, calls: RowCalls, rows: RowParameters, training: bool) -> None:
        self.calls, self.rows, self.training = calls, rows, training
        self.is_shared, self.number = rows.is_shared, len(rows.slots)
        self.parameters: dict[str, Tensor] = {}
        if calls.own is None:
            for key, (start, shape) in calls.layout.items():
                values = (
                    rows.values[:, start : start + prod(shape)].unflatten(1, shape) if shape else rows.values[:, start]
                )
                self.parameters[key] = values[0] if self.is_shared else values

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a method for all documents. Tensors among the arguments have the documents first, results too."""
        calls = self.calls
        if calls.own is not None:
            return one_by_one(calls.own, self.rows, name, args)
        method = calls.methods.get(name)
        if method is None:
            method = calls.methods[name] = MethodCall(calls.module, name)
        if method.training is not self.training:
            method.train(self.training)
        constants = calls.constants
        if self.is_shared:
            return functional_call(method, {**self.parameters, **constants}, args)

        def of_one(parameters: dict[str, Tensor], *args: Any) -> Any:
            batched = tuple(x[None] if isinstance(x, Tensor) else x for x in args)
            result = functional_call(method, {**parameters, **constants}, batched)
            return tuple(x[0] for x in result) if isinstance(result, tuple) else result[0]

        dims = tuple(0 if isinstance(x, Tensor) else None for x in args)
        return vmap(of_one, in_dims=(0, *dims), randomness="different")(self.parameters, *args)


def one_by_one(modules: Mapping[int, nn.Module], rows: RowParameters, name: str, args: tuple[Any, ...]) -> Any:
    """Call each adapter's own module with its documents."""
    places: dict[int, list[int]] = {}
    for number, slot in enumerate(rows.slots):
        places.setdefault(slot, []).append(number)
    results = []
    for slot, numbers in places.items():
        inputs = [x[numbers] if isinstance(x, Tensor) and len(places) > 1 else x for x in args]
        results.append(getattr(modules[slot], name)(*inputs))
    if len(results) == 1:
        return results[0]
    order = torch.tensor([number for numbers in places.values() for number in numbers]).argsort()
    return torch.cat(results)[order]


class InnerModules(Mapping[int, nn.Module]):
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
    module: nn.Module, layout: Layout, modules: Mapping[int, nn.Module] | None = None, *, query: Tensor | None = None
) -> RowModule:
    """Return the module that computes for the adapters of one form at a site.

    Args:
        module: the method's module.
        layout: the positions of its parameters in an adapter's vector.
        modules: each adapter's own module, for methods whose adapters differ in more than parameters; else None.
        query: (1, H, 1, K) on the module's device, for a module in attention.
    """
    calls = RowCalls(module, layout, modules)
    if isinstance(module, LayerEntry):
        for entry in module.modules():
            if isinstance(entry, LayerEntry):
                entry.one_document = True
        return RowEntry(calls, module)
    if isinstance(module, AttentionEdit):
        assert query is not None
        return RowAttention.of(calls, module, query)
    assert isinstance(module, OutputEdit)
    return RowOutput(calls)


class RowEntry(LayerEntry):
    """The layer entry of the adapters of one form, or of the documents of a pass if its ``calls`` are theirs."""

    def __init__(self, calls: RowCalls | DocumentCalls, entry: LayerEntry) -> None:
        super().__init__()
        self.calls = calls
        self.prefix_length = entry.prefix_length
        self.position_free = entry.position_free
        self.edits_text = edits_text(entry)

    def bound(self, rows: RowParameters) -> LayerEntry:
        """Return the entry of the documents with these parameters."""
        return RowEntry(bound(self.calls, rows, self), self)

    def new_prefix(self, batch_size: int) -> Tensor:
        """Return the documents' (b, P, D) prefixes."""
        calls = of_documents(self.calls)
        prefix: Tensor = calls("new_prefix", batch_size if calls.is_shared else 1)
        return prefix

    def on_prefix(self, prefix: Tensor) -> Tensor:
        """Edit the (b, P, D) prefixes."""
        edited: Tensor = of_documents(self.calls)("on_prefix", prefix)
        return edited

    def on_text(self, text: Tensor, token_ids: Tensor | None) -> Tensor:
        """Edit the (b, N, D) texts."""
        edited: Tensor = of_documents(self.calls)("on_text", text, token_ids) if self.edits_text else text
        return edited


class RowAttention(AttentionEdit):
    """The edit of one attention by the adapters of one form, or of the documents of a pass if it is bound."""

    def __init__(self, parts: Sequence[RowScores | RowPrefix]) -> None:
        super().__init__()
        self.parts = parts  # in a list: their modules are registered nowhere else

    @classmethod
    def of(cls, calls: RowCalls, edit: AttentionEdit, query: Tensor) -> RowAttention:
        """Return the edit; a (1, H, 1, K) query shows which of the members' methods return None."""
        paths = {member: path for path, member in edit.named_modules()}
        parts: list[RowScores | RowPrefix] = []
        with torch.no_grad():
            for member in edit.members():
                member_calls = calls.part(paths[member])
                if isinstance(member, SeparatePrefix):
                    parts.append(RowPrefix(member_calls, member, is_weighted=member.weight(query) is not None))
                    continue
                probabilities = query[..., :1].expand(-1, -1, -1, member.num_columns)
                adds_after = member.after_projection(probabilities, query) is not None
                parts.append(RowScores(member_calls, member, adds_after=adds_after))
        return cls(parts)

    def members(self) -> Iterable[ScoreColumns | SeparatePrefix]:
        """Return the columns and separate prefixes."""
        return self.parts

    def bound(self, rows: RowParameters) -> AttentionEdit:
        """Return the edit of the documents with these parameters."""
        return RowAttention([part.bound(rows, self) for part in self.parts])


class RowScores(ScoreColumns):
    """Score columns of the adapters of one form.

    Attributes:
        adds_after: what they add after the output projection is not None.
    """

    def __init__(self, calls: RowCalls | DocumentCalls, columns: ScoreColumns, *, adds_after: bool) -> None:
        super().__init__()
        self.calls, self.adds_after = calls, adds_after
        self.num_columns, self.position_free = columns.num_columns, columns.position_free
        self.placement, self.are_keys = columns.placement, columns.are_keys  # type: ignore[misc]

    def bound(self, rows: RowParameters, edit: nn.Module) -> RowScores:
        """Return the columns of the documents with these parameters."""
        return RowScores(bound(self.calls, rows, edit), self, adds_after=self.adds_after)

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(b, H, N, K) -> (b, H, N, X)."""
        scores: Tensor = of_documents(self.calls)("scores", query, scale)
        return scores

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Use the probabilities (b, H, N, X)."""
        combined: Tensor = of_documents(self.calls)("combine", out, probabilities, query)
        return combined

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return a (b, N, D) vector, or None."""
        return of_documents(self.calls)("after_projection", probabilities, query) if self.adds_after else None

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values (b, H_kv, X, K); None where the columns are more than these."""
        if not self.are_keys:
            return None
        calls = of_documents(self.calls)
        if not calls.is_shared:
            query, documents = query[:1, :, :1].expand(calls.number, -1, -1, -1), 1  # only its type matters
        pair: tuple[Tensor, Tensor] = calls("keys", query, documents)
        return pair


class RowPrefix(SeparatePrefix):
    """A separate prefix of the adapters of one form.

    Attributes:
        is_weighted: its weight is not None.
    """

    def __init__(self, calls: RowCalls | DocumentCalls, separate: SeparatePrefix, *, is_weighted: bool) -> None:
        super().__init__()
        self.kernel, self.text_kernel = separate.kernel, separate.text_kernel
        self.global_alpha, self.projection = separate.global_alpha, separate.projection
        self.calls, self.is_weighted = calls, is_weighted

    def bound(self, rows: RowParameters, edit: nn.Module) -> RowPrefix:
        """Return the separate prefix of the documents with these parameters."""
        return RowPrefix(bound(self.calls, rows, edit), self, is_weighted=self.is_weighted)

    def weight(self, query: Tensor) -> Tensor | None:
        """(b, H, N, K) -> alpha, broadcastable to (b, H, N, 1); None for the softmax's own lambda."""
        return of_documents(self.calls)("document_weight", query) if self.is_weighted else None


class RowOutput(OutputEdit):
    """An edit of a module's output by the adapters of one form."""

    def __init__(self, calls: RowCalls | DocumentCalls) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, output: Tensor, module_input: Tensor) -> Tensor:
        """(b, N, D_out) and (b, N, D_in) -> (b, N, D_out)."""
        edited: Tensor = of_documents(self.calls)("forward", output, module_input)
        return edited

    def bound(self, rows: RowParameters) -> OutputEdit:
        """Return the edit of the documents with these parameters."""
        return RowOutput(bound(self.calls, rows, self))


RowModule = RowEntry | RowAttention | RowOutput


def bound(calls: RowCalls | DocumentCalls, rows: RowParameters, form: nn.Module) -> DocumentCalls:
    """Return the calls with the parameters of these documents, in the training mode of the form's module."""
    assert isinstance(calls, RowCalls)
    return calls.bound(rows, training=form.training)


def of_documents(calls: RowCalls | DocumentCalls) -> DocumentCalls:
    """Return the calls if they are those of documents.

    Raises:
        TypeError: the calls are those of a form, which has no parameters of its own.
    """
    if isinstance(calls, RowCalls):
        raise TypeError("the module of a form is called without documents; bind it to their parameters first")
    return calls
