"""Documents of a token store: found by id, source file or text; and one of them on its whole way, from the bytes of its
source file to its text, what was removed, its sentences and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster.artefacts.errors import ClozeError, CorruptArtefactError
from cluster.artefacts.storage import contents_of
from cluster.copies import beside, manifest_at
from data_prep.document import Document
from data_prep.documents import read_row_groups
from data_prep.layout import DOCUMENTS
from data_prep.sources.streams import Gap, read_chunks
from data_prep.token_store import TokenStore


def find_numbers(
    store: TokenStore, ids: Sequence[str] = (), uris: Sequence[str] = (), texts: Sequence[str] = ()
) -> tuple[np.ndarray, list[dict[str, str]]]:
    """The documents with one of these ids, from one of these source files, or with one of these texts in them.

    Ids are found in the tokens; for all else, every document beside the store is read.

    Args:
        uris: names of source files, as documents have them.
        texts: parts of texts; letters in either case.

    Returns:
        int64 ascending indices of the documents; and `doc_id`, `uri` and `title` of those that were read from the
        sources and are not among the tokens: copies of others, for instance.

    Raises:
        CorruptArtefactError: documents beside the store are wanted and are not there.
    """
    found = [np.empty(0, dtype=np.int64)]
    if ids:
        wanted = pa.array(ids, type=pa.string())
        is_wanted = pc.is_in(store.doc_ids(), value_set=wanted)  # pyright: ignore[reportAttributeAccessIssue]
        found.append(np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False)))
    copies: list[dict[str, str]] = []
    if uris or texts:
        first, documents = 0, store.documents_beside()
        for shard in range(documents.num_shards):
            kept = documents.selection(shard).rows
            for row, copy in _fitting(documents.file(shard), uris, texts):
                place = int(np.searchsorted(kept, row))
                if place < len(kept) and kept[place] == row:
                    found.append(np.array([first + place]))
                else:
                    copies.append(copy)
            first += len(kept)
        if first != store.num_documents:
            raise CorruptArtefactError(
                f"The documents beside {store.place} are not the ones that were tokenised."
            )
    return np.unique(np.concatenate(found)), copies


def _fitting(path: Path, uris: Sequence[str], texts: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(row, document) of a shard for all that fit."""
    names = ("doc_id", "uri", "title")
    for first, table in read_row_groups(path, (*names, "text")):
        fits = np.isin(table["uri"].to_pylist(), uris)
        for text in texts:
            matches = pc.match_substring(table["text"], text, ignore_case=True)  # pyright: ignore[reportAttributeAccessIssue]
            fits |= matches.to_numpy()
        for number in np.flatnonzero(fits).tolist():
            yield first + number, {name: str(table[name][number]) for name in names}


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
    documents = manifest_at(beside(store.path, DOCUMENTS))
    # The input whose path, or a link of a chain of URIs, ends in the document's `uri`, its name below its pattern.
    paths = (entry.uri for entry in (documents.inputs if documents else ()))
    end = f"/{whole.uri}"
    path = next((path for path in paths if any(f"/{link}".endswith(end) for link in path.split("::"))), None)
    return Provenance(
        document=document,
        removed=[data[start:end].decode("utf-8") for start, end in removed_spans.tolist()],
        source_path=path,
        source_text=None if path is None else _source_text(path, whole, max_bytes),
        sentences=list(_sentences(store, number)),
    )


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
