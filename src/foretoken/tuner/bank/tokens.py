"""Embeddings of tokens that adapters have for themselves: each document of a batch reads, and writes, its own.

A token that the pretrained model does not have is a number from its vocabulary's end on, and may mean another one in
every adapter.

Shapes: B documents, N tokens, V vocabulary, R tokens of an adapter (the most of a batch), D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftConfig
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foretoken.backbones.module_value import Arguments
from foretoken.errors import AdapterError
from foretoken.tuner.bank.reading import State
from foretoken.tuner.dimensions import embedding_of

DELTA = ".token_adapter.trainable_tokens_delta"  # what peft calls the vectors of a table


@dataclass(frozen=True)
class OwnTokens:
    """The tokens of one adapter.

    Attributes:
        ids: (R,) their numbers.
        read: (R, D) their embeddings.
        written: (R, D) their rows of the output layer; None where they have none there.
    """

    ids: Tensor
    read: Tensor
    written: Tensor | None

    @property
    def num_bytes(self) -> int:
        """What they take in memory."""
        tensors = [self.ids, self.read, *([] if self.written is None or self.written is self.read else [self.written])]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class BatchTokens:
    """The tokens of each document of a batch.

    Attributes:
        ids: (B, R) their numbers, -1 where a document has fewer.
        read: (B, R, D) their embeddings.
        written: (B, R, D) their rows of the output layer.
        are_written: (B, R) which of them have some; None where none has.
        most: the highest number.
    """

    ids: Tensor
    read: Tensor
    written: Tensor
    are_written: Tensor | None
    most: int

    @classmethod
    def of(cls, documents: Sequence[OwnTokens | None]) -> BatchTokens | None:
        """Return the tokens of these documents; None where no document has any."""
        some = next((own for own in documents if own is not None), None)
        if some is None:
            return None
        nothing = OwnTokens(some.ids[:0], some.read[:0], None)
        every = [own or nothing for own in documents]
        ids = pad_sequence([own.ids for own in every], batch_first=True, padding_value=-1)
        read = pad_sequence([own.read for own in every], batch_first=True)
        written = pad_sequence([own.read if own.written is None else own.written for own in every], batch_first=True)
        writes = torch.tensor([own.written is not None for own in every], device=ids.device)
        are_written = (ids >= 0) & writes[:, None]
        return cls(ids, read, written, are_written if bool(writes.any()) else None, int(ids.max()))

    def spread(self, size: int) -> BatchTokens:
        """Return the tokens of a batch in which each document is there several times, as beams are."""
        times = size // len(self.ids)
        return self if times == 1 else self.changed(lambda x: x.repeat_interleave(times, 0))

    def only(self, numbers: Sequence[int]) -> BatchTokens:
        """Return the tokens of some documents."""
        return self.changed(lambda x: x[list(numbers)])

    def changed(self, change: Callable[[Tensor], Tensor]) -> BatchTokens:
        """Return the tokens of other documents: of each tensor, what ``change`` makes of it."""
        are_written = None if self.are_written is None else change(self.are_written)
        return BatchTokens(change(self.ids), change(self.read), change(self.written), are_written, self.most)

    def embedded(self, output: Tensor, ids: Tensor, scale: Tensor | None) -> Tensor:
        """(B, N, D) of a table, (B, N) -> (B, N, D) with the documents' own embeddings."""
        same = ids[..., None] == self.ids[:, None]
        place = same.int().argmax(-1)[..., None].expand(-1, -1, output.shape[-1])
        own = self.read.to(output.dtype).gather(1, place)
        own = own if scale is None else own * scale.to(output.dtype)
        return torch.where(same.any(-1, keepdim=True), own, output)

    def with_columns(self, logits: Tensor, states: Tensor, vocab_size: int, bias: Tensor | None) -> Tensor:
        """(B, N, V), (B, N, D) -> (B, N, V + new); a new token of another document's adapter is never written."""
        if self.are_written is None:
            return logits
        own = states @ self.written.to(states.dtype).transpose(1, 2)
        if bias is not None:
            own = own + nn.functional.pad(bias, (0, 1))[self.ids.clamp(0, vocab_size)][:, None].to(own.dtype)
        size = max(vocab_size, self.most + 1)
        wider = nn.functional.pad(logits, (0, size + 1 - vocab_size), value=torch.finfo(logits.dtype).min)
        place = self.ids.where(self.are_written, size)[:, None].expand(-1, logits.shape[1], -1)  # the last one goes
        return wider.scatter(-1, place, own.to(logits.dtype))[..., :size]


class TokenTables:
    """The tables of a model's tokens, and the rows that documents have in their place while a batch names them.

    Args:
        model: of transformers.
    """

    def __init__(self, model: Any) -> None:
        self.table: Any = embedding_of(model)
        output = model.get_output_embeddings()
        self.output: Any = output if isinstance(output, nn.Linear) else None
        self.vocab_size = int(self.table.weight.shape[0])
        paths = {module: path for path, module in model.named_modules()}
        self.paths = {"read": paths[self.table], "written": paths.get(self.output, "")}
        self.batch: BatchTokens | None = None
        self.given: Tensor | None = None
        self.table.register_forward_pre_hook(self.before_table)
        self.table.register_forward_hook(self.after_table, prepend=True)
        if self.output is not None:
            self.output.register_forward_hook(self.after_output, prepend=True)

    @property
    def is_tied(self) -> bool:
        """Whether the model writes with the table that it reads."""
        return self.output is not None and self.output.weight is self.table.weight

    def of(self, config: PeftConfig, state: State, dtype: torch.dtype) -> OwnTokens | None:
        """Return an adapter's tokens; None where it trains none.

        Raises:
            AdapterError: they are of another table, or a tensor is not that of the config.
        """
        chosen = getattr(config, "trainable_token_indices", None)
        if not chosen:
            return None
        names = {name.removesuffix(DELTA): name for name in state if name.endswith(DELTA)}
        found = {what: next((n for n in names if is_same_path(n, path)), None) for what, path in self.paths.items()}
        if unknown := names.keys() - set(found.values()):
            raise AdapterError(f"the adapter trains tokens of {min(unknown)[:150]}, which is no table of this model's")
        if found["read"] is None:
            raise AdapterError("the adapter's file lacks the embeddings of the tokens that it trains; save it again")
        ids = token_ids(chosen, found["read"])
        read = vectors(state, names[found["read"]], len(ids), self.table.weight.shape[1], dtype)
        written = read if self.is_tied else None
        if found["written"] is not None and not self.is_tied:
            if token_ids(chosen, found["written"]) != ids:
                raise AdapterError("the adapter trains other tokens where it reads than where it writes")
            written = vectors(state, names[found["written"]], len(ids), self.output.weight.shape[1], dtype)
        device = self.table.weight.device
        own = None if written is None else written.to(device)
        return OwnTokens(torch.tensor(ids, device=device), read.to(device), own)

    def new_size(self, own: OwnTokens) -> int:
        """Return the size of the vocabulary with an adapter's new tokens.

        Raises:
            AdapterError: there is a token between that it does not bring along.
        """
        new = sorted(int(token) for token in own.ids if token >= self.vocab_size)
        if new != list(range(self.vocab_size, self.vocab_size + len(new))):
            raise AdapterError(
                f"the adapter trains the tokens {new[:3]}, and the model has {self.vocab_size}; expected the next ones"
            )
        return self.vocab_size + len(new)

    @contextmanager
    def naming(self, documents: Sequence[OwnTokens | None]) -> Iterator[None]:
        """Let each document have its adapter's tokens for a while."""
        self.batch = BatchTokens.of(documents)
        try:
            yield
        finally:
            self.batch = self.given = None

    def check(self, documents: Sequence[OwnTokens | None], input_ids: Tensor) -> None:
        """Raise AdapterError where a document has a token that neither the model nor its adapter has."""
        if not bool((input_ids >= self.vocab_size).any()):
            return
        for own, row in zip(documents, input_ids, strict=True):
            new = row[row >= self.vocab_size]
            if len(new) and (own is None or not bool(torch.isin(new, own.ids).all())):
                raise AdapterError(
                    f"there is no token {int(new.max())}: the model has {self.vocab_size}, and the document's adapter "
                    "brings no such one along"
                )

    def before_table(self, module: nn.Module, args: Arguments) -> Arguments | None:
        """Look up any row for tokens that the table does not have."""
        if self.batch is None:
            return None
        ids = self.given = args[0]
        return ids.where(ids < self.vocab_size, 0), *args[1:]

    def after_table(self, module: nn.Module, args: Arguments, output: Tensor) -> Tensor | None:
        """Put the documents' own embeddings in their places."""
        if self.batch is None or self.given is None:
            return None
        given, self.given = self.given, None
        return self.batch.spread(len(given)).embedded(output, given, getattr(module, "embed_scale", None))

    def after_output(self, module: nn.Module, args: Arguments, output: Tensor) -> Tensor | None:
        """Put the documents' own columns in their places."""
        return None if self.batch is None else self.with_columns(output, args[0], self.batch)

    def with_columns(self, logits: Tensor, states: Tensor, batch: BatchTokens) -> Tensor:
        """(B, N, V), (B, N, D) -> (B, N, V + new), the documents' own columns among them."""
        bias = None if self.output is None else self.output.bias
        return batch.spread(len(logits)).with_columns(logits, states, self.vocab_size, bias)


def is_same_path(name: str, path: str) -> bool:
    """Tell whether a name of a file is a module's path, with or without the name of the body before it."""
    return bool(path) and (path == name or path.endswith(f".{name}"))


def token_ids(chosen: Sequence[int] | Mapping[str, Sequence[int]], table: str) -> list[int]:
    """Return the tokens of a table by a config.

    Raises:
        AdapterError: it names none of this one.
    """
    if not isinstance(chosen, Mapping):
        return [int(token) for token in chosen]
    ends = (ids for name, ids in chosen.items() if is_same_path(table, name) or is_same_path(name, table))
    found = next(ends, None)
    if found is None:
        raise AdapterError(f"trainable_token_indices names no tokens of {table}; save the adapter again")
    return [int(token) for token in found]


def vectors(state: State, name: str, count: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return an adapter's (R, D) vectors.

    Raises:
        AdapterError: they are of another shape.
    """
    if state.shapes[name] != (count, width):
        raise AdapterError(f"{name[:150]} is {state.shapes[name]} in the adapter file, expected {(count, width)}")
    found = state[name].to(dtype)
    if not bool(found.isfinite().all()):
        raise AdapterError(f"{name[:150]} has numbers that {dtype} cannot hold; keep the adapter in float32")
    return found
