"""Origins of documents in token stores: title, file and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.artefacts.errors import CorruptArtefactError
from data_prep.document import Document
from data_prep.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Origin of a document."""

    doc_id: str
    title: str
    """Empty, as `uri` is, where the documents do not lie beside the tokens."""
    source: str
    uri: str
    byte_start: int | None
    """First byte in the (decompressed) source file."""
    byte_end: int | None


def find_documents(
    stores: Sequence[TokenStore], wanted: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Whereabouts]:
    """The whereabouts of documents, each given by the number of its store and its own.

    The documents may lie elsewhere, or be deleted to save space: the tokens are enough to train on, and to name them.
    """
    unique = sorted(set(wanted))
    found: dict[tuple[int, int], Whereabouts] = {}
    for number, store in enumerate(stores):
        own = [document for place, document in unique if place == number]
        try:
            described = [_of(document) for document in store.documents(np.array(own, dtype=np.int64))]
        except CorruptArtefactError:
            described = [
                Whereabouts(store.doc_id(each), "", store.source(each), "", None, None) for each in own
            ]
        found |= {(number, document): one for document, one in zip(own, described, strict=True)}
    return found


def _of(document: Document) -> Whereabouts:
    return Whereabouts(
        doc_id=document.doc_id,
        title=document.title,
        source=document.source,
        uri=document.uri,
        byte_start=document.meta.get("byte_start"),
        byte_end=document.meta.get("byte_end"),
    )
