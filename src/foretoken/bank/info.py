"""The facts about an adapter in a bank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft import PeftConfig

from foretoken.bank.forms import AdapterForm
from foretoken.bank.heads import ANSWERS, HeadForm

KINDS = {
    "ForTokenClassification": "tagging",
    "ForSequenceClassification": "classification",
    ANSWERS: "questions",
}


@dataclass(frozen=True)
class AdapterInfo:
    """The facts about one adapter in a bank.

    Attributes:
        method: its peft type.
        head: ``classification``, ``regression``, ``tagging``, ``questions``, ``language-model`` or ``none``.
        labels: the names of its outputs.
        bytes: the memory of its parameters in the bank.
        dtype: the type in which these are kept.
        pools: whether its head reads features pooled over a document, which may have several rows.
    """

    method: str
    head: str
    labels: tuple[str, ...]
    bytes: int
    dtype: torch.dtype
    pools: bool = False


def describe(
    config: PeftConfig,
    form: AdapterForm | None,
    head: HeadForm | None,
    labels: tuple[str, ...] | None,
    dtype: torch.dtype,
) -> AdapterInfo:
    """Return the facts about an adapter."""
    numbers = sum(store.size for store in (form and form.store, head and head.store) if store)
    count = None if head is None else head.num_labels
    kind = "none" if head is None else next((KINDS[end] for end in KINDS if head.model.kind.endswith(end)), None)
    kind = "language-model" if kind is None else "regression" if kind == "classification" and count == 1 else kind
    if count is not None and (labels is None or len(labels) != count):
        labels = tuple(f"LABEL_{number}" for number in range(count))
    pools = head is not None and head.model.pool is not None
    method = getattr(config.peft_type, "value", str(config.peft_type))
    return AdapterInfo(method, kind, labels or () if count is not None else (), numbers * dtype.itemsize, dtype, pools)
