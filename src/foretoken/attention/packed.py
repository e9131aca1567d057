"""A batch of documents as one run of tokens without padding.

The prefixes stand first, all documents' together, and then text after text. Every virtual token and every global token
of a document is seen by all of its tokens.

Shapes: B documents, P virtual tokens before each, N tokens of the padded texts, T real tokens of all, S = B P + T, G
global tokens of a document, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from foretoken.attention.kernels import seen_by

T = TypeVar("T")
SHORT = 64  # tokens up to which documents are padded together whatever their lengths
ALIKE = 2 / 3  # of the longest one's length: from there on documents are padded together
APART_FROM = 20_000  # scores with padding, for each document: so many take longer than a call of its own


@dataclass(frozen=True, eq=False)
class Document:
    """A stretch of tokens that see nothing of the others.

    Attributes:
        start: where it begins.
        stop: where it ends; ``start`` for a document without tokens.
        global_index: (G,) places of its global tokens.
        outside: (stop - start,) bool, True for keys that the window leaves out: masked ones, and global ones, which
            are seen anyhow; None where there is none.
        masked: (stop - start,) bool, True for masked tokens in its midst; None where there is none.
        opens_global: its first token is global.
    """

    start: int
    stop: int
    global_index: Tensor
    outside: Tensor | None = None
    masked: Tensor | None = None
    opens_global: bool = False


def documents_in_place(masked: Tensor, is_global: Tensor) -> tuple[Document, ...]:
    """Return the documents of a padded batch as stretches of the flattened (B N) batch; masks (B, N) bool."""
    real, length = (~masked).cpu(), masked.shape[1]
    found = spans(real)
    return documents_of(real, is_global, found, [number * length + first for number, (first, _) in enumerate(found)])


def documents_of(
    real: Tensor, is_global: Tensor, found: list[tuple[int, int]], starts: list[int]
) -> tuple[Document, ...]:
    """Describe the documents of a padded batch.

    Args:
        real: (B, N) bool on the CPU, False for padding.
        is_global: (B, N) bool, True for global tokens.
        found: the :func:`spans` of the documents.
        starts: where each document begins in the run.
    """
    device, marked = is_global.device, is_global.cpu() & real
    any_global = marked.any(dim=1).tolist()
    documents = []
    for number, ((first, stop), start) in enumerate(zip(found, starts, strict=True)):
        inside = real[number, first:stop]
        whole = bool(inside.all())
        marks = marked[number, first:stop]
        here = any_global[number]
        documents.append(
            Document(
                start,
                start + stop - first,
                marks.nonzero()[:, 0].to(device) + start if here else torch.empty(0, dtype=torch.long, device=device),
                None if whole and not here else (marks | ~inside).to(device),
                None if whole else (~inside).to(device),
                here and bool(marks[:1].any()),
            )
        )
    return tuple(documents)


def spans(real: Tensor) -> list[tuple[int, int]]:
    """(B, N) bool -> each document's first real token and the place behind its last; (0, 0) where it has none."""
    length, counts = real.shape[1], real.to(torch.uint8)
    first = counts.argmax(dim=1).tolist()
    last = (length - counts.flip(1).argmax(dim=1)).tolist()
    return [(a, b) if some else (0, 0) for a, b, some in zip(first, last, real.any(dim=1).tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Parts:
    """The documents of a run in batches that are padded by themselves.

    Attributes:
        batches: how each is packed, a run of its own.
        places: (S',) where the tokens of each stand in the whole run; empty for a single batch, which is all of it.
    """

    batches: tuple[PackedBatch, ...]
    places: tuple[Tensor, ...] = ()

    def split(self, x: Tensor) -> list[Tensor]:
        """(1, S, ...) -> the run of each batch (1, S', ...)."""
        return [x.index_select(1, places) for places in self.places] if self.places else [x]

    def join(self, runs: list[Tensor]) -> Tensor:
        """Put the runs back: (1, S', ...) each -> (1, S, ...)."""
        return torch.cat(runs, dim=1).index_select(1, self.back) if self.places else runs[0]

    @cached_property
    def back(self) -> Tensor:
        """(S,) where each token of the whole run stands behind one another's."""
        return torch.cat(self.places).argsort()


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """How a padded batch (B, P + N, ...) and its run of tokens (1, S, ...) belong together.

    Attributes:
        prefix_length: P.
        length: N.
        documents: where the documents are among the T tokens.
        index: (T,) where each token stands in the flattened (B N) texts.
        wanted: (B,) the tokens, one of each document, whose states after the last layer are wanted; None: all.
        prefix_mask: (B, P) bool, False where a document's own prefix is shorter than P; None where none is.
        mask: (B or 1, 1, N, N) which tokens of the padded texts see which, bool or numbers to add to the scores; None
            where all of a document's do.
    """

    prefix_length: int
    length: int
    documents: tuple[Document, ...]
    index: Tensor
    wanted: Tensor | None = None
    prefix_mask: Tensor | None = None
    mask: Tensor | None = None

    @property
    def size(self) -> int:
        """B."""
        return len(self.documents)

    @property
    def text_start(self) -> int:
        """B P, where the texts begin."""
        return self.size * self.prefix_length

    @cached_property
    def places(self) -> tuple[Tensor, Tensor, Tensor]:
        """(S,) each: the document that a place belongs to (-1: masked), the position in it, and whether all see it."""
        prefix = torch.arange(self.size, device=self.index.device).repeat_interleave(self.prefix_length)
        if self.prefix_mask is not None:
            prefix = prefix.masked_fill(~self.prefix_mask.flatten(), -1)
        document, position = torch.full_like(self.index, -1), self.index % self.length
        is_global = torch.zeros_like(self.index, dtype=torch.bool)
        for number, part in enumerate(self.documents):
            inside = document[part.start : part.stop]
            inside.fill_(number) if part.masked is None else inside.masked_fill_(~part.masked, number)
            is_global[part.global_index] = True
        return (
            torch.cat([prefix, document]),
            torch.cat([torch.zeros_like(prefix), position]),
            torch.cat([torch.ones_like(prefix, dtype=torch.bool), is_global]),
        )

    @cached_property
    def _wider(self) -> dict[int, PackedBatch]:
        return {}

    def with_prefix(self, length: int) -> PackedBatch:
        """Return the batch with a prefix of this length, or itself if it has one."""
        return self if length == self.prefix_length else self.with_longer_prefix(length - self.prefix_length)

    def with_longer_prefix(self, count: int) -> PackedBatch:
        """Return the batch with more keys before each document: the same object for all layers, as masks are."""
        if count not in self._wider:
            self._wider[count] = replace(self, prefix_length=self.prefix_length + count)
        return self._wider[count]

    def with_mask(self, mask: Tensor) -> PackedBatch:
        """Return the batch with the mask of a layer: the same object for layers with the same mask."""
        return self.remembered(mask, lambda mask: replace(self, mask=mask))

    @cached_property
    def key_mask(self) -> Tensor | None:
        """(B, 1, 1, P + N) bool, True for what is real; None where everything is."""
        masked, _ = self.masks()
        return ~masked[:, None, None] if bool(masked.any()) else None

    @property
    def pays_apart(self) -> bool:
        """Tell whether the attention of each document by itself takes less time than that of the padded batch."""
        sizes = self.sizes
        padded = self.size * self.length**2 - sum(size**2 for size in sizes)
        return padded > APART_FROM * self.size

    @property
    def sizes(self) -> list[int]:
        """The number of tokens of each document."""
        return [document.stop - document.start for document in self.documents]

    def place_of(self, number: int) -> slice:
        """Return where a document stands in its row of the padded batch."""
        document = self.documents[number]
        first = int(self.index[document.start] % self.length) if document.start < document.stop else 0
        return slice(first, first + document.stop - document.start)

    @cached_property
    def own_masks(self) -> list[tuple[Tensor | None, bool]]:
        """For each document what its tokens see of it, broadcastable to (1, 1, n, n), and whether that is causal."""
        return [self.own_mask(number) for number in range(self.size)]

    def own_mask(self, number: int) -> tuple[Tensor | None, bool]:
        """Return the mask of one document, None where all is seen, and whether it is the causal one."""
        place = self.place_of(number)
        if self.mask is not None:
            own = self.mask.expand(self.size, -1, -1, -1)[number : number + 1, :, place, place]
            seen = seen_by(own)
            return own, bool((seen == torch.ones_like(seen).tril()).all())
        if self.key_mask is None:
            return None, False
        prefix, text = self.key_mask[number : number + 1].tensor_split([self.prefix_length], dim=-1)
        seen = torch.cat([prefix, text[..., place]], dim=-1)
        return None if bool(seen.all()) else seen, False

    def apart(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what each document has of a run, its prefix first: (1, S, ...) -> (1, P + n, ...) each."""
        if self.prefix_length:
            x = x.index_select(1, self.order)
        return x.split([self.prefix_length + size for size in self.sizes], dim=1)

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """Undo :meth:`apart`: (1, P + n, ...) each -> (1, S, ...)."""
        x = torch.cat(list(parts), dim=1)
        return x.index_select(1, self.order_back) if self.prefix_length else x

    @cached_property
    def order_back(self) -> Tensor:
        """(S,) where each place of the run is, document by document."""
        return self.order.argsort()

    @cached_property
    def order(self) -> Tensor:
        """(S,) the places of the run, document by document."""
        prefix = torch.arange(self.text_start, device=self.index.device).unflatten(0, (self.size, self.prefix_length))
        text = torch.arange(self.text_start, self.text_start + len(self.index), device=self.index.device)
        pairs = zip(prefix, text.split(self.sizes), strict=True)
        return torch.cat([part for pair in pairs for part in pair])

    def window_mask(self, window: int) -> Tensor:
        """(B or 1, 1, P + N, P + N) bool: what is real, text only where text is nearer than the window."""
        if window not in self._windows:
            places = torch.arange(self.length, device=self.index.device)
            near = (places[:, None] - places).abs() < window
            front = (self.prefix_length, 0, self.prefix_length, 0)
            seen = nn.functional.pad(near, front, value=True)[None, None]
            self._windows[window] = seen if self.key_mask is None else seen & self.key_mask
        return self._windows[window]

    def remembered(self, given: Tensor, make: Callable[[Tensor], T]) -> T:
        """Return what is made of a tensor that the layers of a pass share, made once."""
        known = self._made.get(id(given))
        if known is None:
            known = self._made[id(given)] = given, make(given)  # the tensor is held, so that nothing else gets its id
        return cast("T", known[1])

    @cached_property
    def _made(self) -> dict[int, tuple[Tensor, object]]:
        return {}

    @cached_property
    def _windows(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def alike(self) -> Parts:
        """Batches of documents of like length, which have little padding and all of the prefix."""
        sizes = self.sizes
        groups: list[list[int]] = []
        for number in sorted(range(self.size), key=sizes.__getitem__, reverse=True):
            longest = sizes[groups[-1][0]] if groups else 0
            if groups and (longest <= SHORT or sizes[number] > ALIKE * longest):
                groups[-1].append(number)
            else:
                groups.append([number])
        if len(groups) < 2:
            return Parts((self,))
        made = [self.of_documents(numbers) for numbers in groups]
        return Parts(tuple(batch for batch, _ in made), tuple(places for _, places in made))

    def of_documents(self, numbers: list[int]) -> tuple[PackedBatch, Tensor]:
        """Return some documents packed by themselves, and where their tokens stand in this run."""
        device, length = self.index.device, self.prefix_length
        own = [self.documents[number] for number in numbers]
        longest = max(1, *(part.stop - part.start for part in own))
        documents, index, begin = [], [], 0
        places = [torch.arange(length, device=device) + number * length for number in numbers]
        for row, part in enumerate(own):
            count, nothing = part.stop - part.start, torch.empty(0, dtype=torch.long, device=device)
            documents.append(Document(begin, begin + count, nothing, part.masked, part.masked))
            index.append(torch.arange(count, device=device) + row * longest)
            places.append(torch.arange(part.start, part.stop, device=device) + self.text_start)
            begin += count
        return PackedBatch(length, longest, tuple(documents), torch.cat(index)), torch.cat(places)

    @property
    def is_whole(self) -> bool:
        """Tell whether there is no padding around the texts."""
        return len(self.index) == self.size * self.length

    def pack(self, x: Tensor) -> Tensor:
        """(B, P + N, ...) -> (1, S, ...)."""
        text = self.pack_text(x[:, self.prefix_length :])
        return self.join(x[:, : self.prefix_length], text)

    def pack_text(self, x: Tensor) -> Tensor:
        """(B, N, ...) -> (1, T, ...)."""
        if self.is_whole:
            return x.flatten(0, 1)[None]
        return x.flatten(0, 1).index_select(0, self.index)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, S, ...) -> (B, P + N, ...), zero where there is padding."""
        prefix, text = self.split(x)
        if self.is_whole:
            spread = text[0]
        else:
            spread = text.new_zeros(self.size * self.length, *text.shape[2:]).index_copy(0, self.index, text[0])
        spread = spread.unflatten(0, (self.size, self.length))
        return torch.cat([prefix, spread], dim=1) if self.prefix_length else spread

    def first_tokens(self) -> Tensor | None:
        """Return the (B,) places of the texts' first tokens; None where one of them is masked."""
        starts = torch.tensor([document.start for document in self.documents], device=self.index.device)
        empty = any(document.start == document.stop for document in self.documents)
        if empty or bool((self.index[starts] % self.length).any()):
            return None
        return starts

    def is_run(self, x: Tensor) -> bool:
        """Tell whether (., ...) is a run of tokens and not the padded batch; of one document the two are alike."""
        return x.shape[0] == 1 and self.size > 1

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """Return some documents of a run, padded: (1, S, ...) -> (b, N, ...).

        Runs without prefixes, with longer ones, and of one token of each document (1, B, ...) are known by their size.
        """
        places, _ = self.places_of(x, index)
        return x[0].index_select(0, places.flatten()).unflatten(0, places.shape)

    def put(self, x: Tensor, part: Tensor, index: Tensor) -> Tensor:
        """Return the run (1, S, ...) with some documents replaced by (b, N, ...); their padding is left out."""
        places, real = self.places_of(x, index)
        if real is None:
            return x.index_copy(1, places.flatten(), part.flatten(0, 1)[None])
        return x.index_copy(1, places.flatten()[real], part.flatten(0, 1)[real][None])

    def places_of(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (b, N) places of documents in a run, and which of the (b N) are no padding; None: all."""
        key = x.shape[1], id(index)
        if key not in self._places:
            self._places[key] = (index, *self.find_places(x.shape[1], index))
        return self._places[key][1:]

    @cached_property
    def _places(self) -> dict[tuple[int, int], tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def find_places(self, length: int, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Do :meth:`places_of` for a run of ``length`` tokens."""
        device = index.device
        if length == self.size != len(self.index):
            return index[:, None], None
        before = (length - len(self.index)) // self.size
        parts = [self.documents[number] for number in index.tolist()]
        starts = torch.tensor([part.start for part in parts], device=device)[:, None] + self.size * before
        sizes = torch.tensor([part.stop - part.start for part in parts], device=device)[:, None]
        steps = torch.arange(max((part.stop - part.start for part in parts), default=0), device=device)
        real = steps < sizes
        text = torch.where(real, starts + steps, 0)
        prefix = index[:, None] * before + torch.arange(before, device=device)
        is_real = torch.cat([torch.ones_like(prefix, dtype=torch.bool), real], dim=1).flatten()
        places = torch.cat([prefix, text], dim=1)
        return places, None if bool(is_real.all()) else is_real.nonzero()[:, 0]

    def masks(self) -> tuple[Tensor, Tensor]:
        """Return (B, P + N) bool masks of the padded batch: what is masked, what is global."""
        document, _, is_global = self.places
        real = (document >= 0)[None]
        return ~self.unpack(real), self.unpack(is_global[None])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(1, S, ...) -> prefixes (B, P, ...) and texts (1, T, ...)."""
        return x[0, : self.text_start].unflatten(0, (self.size, self.prefix_length)), x[:, self.text_start :]

    def join(self, prefix: Tensor, text: Tensor) -> Tensor:
        """Prefixes (B, P, ...) and texts (1, T, ...) -> (1, S, ...)."""
        return torch.cat([prefix.flatten(0, 1)[None], text], dim=1) if self.prefix_length else text


def packed_batch_of(
    masked: Tensor, is_global: Tensor, *, prefix_length: int, prefix_mask: Tensor | None = None
) -> PackedBatch:
    """Return the run of tokens of a padded batch.

    Args:
        masked: (B, N) bool of the texts, True for padding.
        is_global: (B, N) bool of the texts, True for global tokens.
        prefix_length: P.
        prefix_mask: (B, P) bool, False where a document's own prefix is shorter; None where none is.

    >>> masked = torch.tensor([[False, False, True], [False, True, True]])
    >>> batch = packed_batch_of(masked, torch.zeros(2, 3).bool(), prefix_length=0)
    >>> batch.pack(torch.tensor([[1, 2, 0], [3, 0, 0]]))
    tensor([[1, 2, 3]])
    """
    length, real = masked.shape[1], (~masked).cpu()
    found = spans(real)
    starts, index = [0], []
    for number, (first, stop) in enumerate(found):
        starts.append(starts[-1] + stop - first)
        index.append(torch.arange(first, stop) + number * length)
    documents = documents_of(real, is_global, found, starts[:-1])
    return PackedBatch(prefix_length, length, documents, torch.cat(index).to(masked.device), prefix_mask=prefix_mask)
