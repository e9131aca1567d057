"""How many floating-point operations a Longformer layer is, by formula: what the machine's limit is compared with.

Shapes: N rows (text, and the rows in front of it), D width, I inner width of the feed-forward block, M keys that a
query sees (the window, itself and the global ones).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerWork:
    """One layer on N rows; a multiplication and its addition are two operations.

    Attributes:
        rows: N.
        hidden: D.
        inner: I.
        window: how many neighbours a token sees, both sides together.
        num_global: how many keys every query sees.
    """

    rows: int
    hidden: int
    inner: int
    window: int
    num_global: int

    @property
    def keys(self) -> int:
        """Return M; what the ends of the text lack is counted all the same."""
        return min(self.rows, self.window + 1) + self.num_global

    @property
    def linear(self) -> int:
        """Return N (8 D^2 + 4 D I): query, key, value and output projection, and the feed-forward block."""
        return self.rows * (8 * self.hidden**2 + 4 * self.hidden * self.inner)

    @property
    def forward(self) -> int:
        """Return the linear maps, and 4 N D M for scores and sums of values.

        >>> round(LayerWork(rows=4096, hidden=768, inner=3072, window=512, num_global=9).forward / 1e9, 1)
        64.6
        """
        return self.linear + 4 * self.rows * self.hidden * self.keys

    @property
    def backward(self) -> int:
        """Return the gradients of all inputs, of no weight: linear again, and five products of 2 N D M.

        The five are the scores once more (nobody stores them), and the gradients of probabilities, values, queries
        and keys.

        >>> work = LayerWork(rows=4096, hidden=768, inner=3072, window=512, num_global=9)
        >>> round((work.forward + work.backward) / 1e9)
        139
        """
        return self.linear + 10 * self.rows * self.hidden * self.keys

    @property
    def first_backward(self) -> int:
        """Return the backward pass of the layer where the prefix comes in: its text needs no gradient at the input.

        Gradients flow through the feed-forward block and the output projection, and into the rows in front as keys.
        """
        through = self.rows * (2 * self.hidden**2 + 4 * self.hidden * self.inner)
        return through + 10 * self.rows * self.hidden * self.num_global


def whole(work: LayerWork, layers: int, *, backward: bool) -> int:
    """Return the operations of all layers, every row of each."""
    return layers * (work.forward + (work.backward if backward else 0))


def needed(work: LayerWork, layers: int, *, backward: bool) -> int:
    """Return the operations that a prediction from one global row cannot do without.

    The last layer is needed at one row only, which is not counted; the first layer's input needs no gradient.

    >>> work = LayerWork(rows=4096, hidden=768, inner=3072, window=512, num_global=9)
    >>> round(needed(work, 12, backward=True) / whole(work, 12, backward=True), 2)
    0.9
    """
    if layers < 2:
        return whole(work, layers, backward=backward)
    forward = (layers - 1) * work.forward
    return forward + (work.first_backward + (layers - 2) * work.backward if backward else 0)
