"""A batch of documents as one run of tokens without padding: where they lie, and how to get at some of them."""

from foretoken.attention.packed.layout import DocumentSpan, PackedBatch, documents_in_place, packed_batch_of
from foretoken.attention.packed.parts import Parts

__all__ = ["DocumentSpan", "PackedBatch", "Parts", "documents_in_place", "packed_batch_of"]
