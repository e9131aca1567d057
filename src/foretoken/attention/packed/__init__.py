"""A batch of documents as one run of tokens without padding: the layout of the run, and parts of it."""

from foretoken.attention.packed.layout import DocumentSpan, PackedBatch, documents_in_place, packed_batch_of
from foretoken.attention.packed.parts import Parts

__all__ = ["DocumentSpan", "PackedBatch", "Parts", "documents_in_place", "packed_batch_of"]
