"""One document on its whole way: the bytes of its source file, its text, what was removed, sentences and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.storage import contents_of
from cluster.copies import beside, manifest_at
from data_prep.document import Document
from data_prep.layout import DOCUMENTS
from data_prep.sources.streams import Gap, read_chunks
from data_prep.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Provenance:
    """A document of a token store, and where it came from."""

    document: Document
    """As it was tokenised."""
    removed: list[str]
    """The parts of its text that deduplication and decontamination took out."""
    source_path: str | None
    """Path of its source file when the documents were made; None when that is not known."""
    source_text: str | None
    """The beginning of its bytes in the (decompressed) source file; None when they cannot be read any more."""
    sentences: list[list[str]]
    """The text of every token, sentence by sentence."""


def trace_document(store: TokenStore, number: int, max_bytes: int = 4000) -> Provenance:
    """Follow document `number` of a store back to its source.

    Args:
        max_bytes: how much of the source file to read; a document may be a whole book.

    Raises:
        CorruptArtefactError: the documents beside the store are gone or damaged.
    """
    document, whole, removed_spans = store.document_and_removed(number)
    data = whole.text.encode("utf-8")
    path = _source_path(store, whole.uri)
    return Provenance(
        document=document,
        removed=[data[start:end].decode("utf-8") for start, end in removed_spans.tolist()],
        source_path=path,
        source_text=None if path is None else _source_text(path, whole, max_bytes),
        sentences=list(_sentences(store, number)),
    )


def _source_path(store: TokenStore, uri: str) -> str | None:
    """The input of the documents whose path ends in `uri`, the file's name below its pattern."""
    documents = manifest_at(beside(store.path, DOCUMENTS))
    inputs = documents.inputs if documents else ()
    return next((entry.uri for entry in inputs if f"/{entry.uri}".endswith(f"/{uri}")), None)


def _source_text(path: str, document: Document, max_bytes: int) -> str | None:
    """The document's stretch of its file; the file may be gone, or be another one by now."""
    meta = document.meta
    if "byte_start" not in meta or "byte_end" not in meta:
        return None
    stream_start, start = int(meta.get("stream_start", 0)), int(meta["byte_start"])
    wanted = min(int(meta["byte_end"]), start + max_bytes)
    found, position = bytearray(), 0
    try:
        for chunk in read_chunks(path, start=stream_start):
            if isinstance(chunk, Gap):
                continue
            found += chunk[max(start - position, 0) : max(wanted - position, 0)]
            position += len(chunk)
            if position >= wanted:
                break
    except (OSError, ClozeError):
        return None
    return found.decode("utf-8", "replace")


def _sentences(store: TokenStore, number: int) -> Iterator[list[str]]:
    from tokenizers import Tokenizer

    with contents_of(store.tokenizer_path):
        tokenizer = Tokenizer.from_file(str(store.tokenizer_path))
    ids, starts = store.tokens(number), store.sentence_starts(number)
    for sentence in np.split(ids, starts[1:]) if len(ids) else []:
        yield [tokenizer.decode([token], skip_special_tokens=False) for token in sentence.tolist()]
