"""The documents of a token store with an id, from a source file, or with a text in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster.artefacts.errors import CorruptArtefactError
from cluster.copies import beside, local_copy
from data_prep.documents import DocumentStore, read_row_groups
from data_prep.layout import DOCUMENTS
from data_prep.selection import read_selection
from data_prep.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Wanted:
    """Properties to find documents by; a document with one of them is found."""

    ids: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    """Names of source files, as documents have them."""
    texts: tuple[str, ...] = ()
    """Parts of texts; letters in either case."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A document that was read from the sources, and is not among the tokens: a copy of another one, for instance."""

    doc_id: str
    uri: str
    title: str


def find_ids(store: TokenStore, ids: tuple[str, ...]) -> np.ndarray:
    """int64, ascending: indices of the documents with these ids. No text is read."""
    wanted = pa.array(ids, type=pa.string())
    is_wanted = pc.is_in(store.doc_ids(), value_set=wanted)  # pyright: ignore[reportAttributeAccessIssue]
    return np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False))


def find_numbers(store: TokenStore, wanted: Wanted) -> tuple[np.ndarray, list[Copy]]:
    """int64, ascending: the numbers of the documents that are wanted; and those that fit and are not among the tokens.

    Ids are found in the tokens; for all else, every document beside the store is read.

    Raises:
        CorruptArtefactError: documents beside the store are wanted and are not there.
    """
    found = [find_ids(store, wanted.ids)] if wanted.ids else []
    copies: list[Copy] = []
    if wanted.uris or wanted.texts:
        first = 0
        documents = DocumentStore.open(beside(store.path, DOCUMENTS), verify=False)
        selections = local_copy(beside(store.path, store.selection_kind))
        for shard in range(documents.num_shards):
            kept = read_selection(selections, shard, documents.num_shards).rows
            for row, copy in _fitting(documents.file(shard), wanted):
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
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found])), copies


def _fitting(path: Path, wanted: Wanted) -> Iterator[tuple[int, Copy]]:
    """(row, document) of a shard for all that fit."""
    for first, table in read_row_groups(path, ("doc_id", "uri", "title", "text")):
        fits = np.isin(table["uri"].to_pylist(), wanted.uris)
        for text in wanted.texts:
            matches = pc.match_substring(table["text"], text, ignore_case=True)  # pyright: ignore[reportAttributeAccessIssue]
            fits |= matches.to_numpy()
        for number in np.flatnonzero(fits).tolist():
            row = {name: str(table[name][number]) for name in ("doc_id", "uri", "title")}
            yield first + number, Copy(**row)
