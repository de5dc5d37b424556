"""Reading a token store: documents as views of memory-mapped token ids.

A store is a directory of Arrow IPC streams (see `token_writer.py`). Opening finds where each record batch lies, and
takes no longer for more documents; `arrays` gives the places of all documents.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.manifest import MANIFEST_NAME, Manifest
from cluster.artefacts.places import Place
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.storage import contents_of, open_artefact
from cluster.copies import beside, committed_at, local_copy, place_of
from data_prep.document import Document
from data_prep.documents import DocumentStore
from data_prep.hashing import as_fraction, hash_strings
from data_prep.layout import DECONTAMINATION, DEDUP, DOCUMENTS, REPAIR, TAKEDOWN, TOKENIZER_FILE, TOKENS
from data_prep.ragged import offsets_of
from data_prep.selection import Selection, remove_spans
from data_prep.token_files import (
    FIRST,
    ID_OFFSETS,
    IDS,
    SENTENCE_OFFSETS,
    SENTENCES,
    TokenArrays,
    TokenIndex,
    advise,
    categories,
    ids_dtype,
    index_batches,
    map_batches,
)
from data_prep.token_writer import SIDECARS


class TokenStore:
    """The tokenised documents of one preparation. Pickles as its path: workers map the files again."""

    path: Path
    """Directory of the store, or of the copy of it on this machine."""
    manifest: Manifest
    fingerprint: str
    """Equal for equal tokens on any machine."""
    vocab_size: int
    special_tokens: dict[str, int]
    """Ids of `bos`, `pad`, `eos`, `unk` and `mask`."""
    tokenizer_path: Path
    """The `tokenizer.json` that made the ids."""
    num_documents: int
    num_tokens: int

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Map the files of a store whose manifest was read; use `open`."""
        self.path = path
        self.manifest = manifest
        self.fingerprint = manifest.fingerprint
        self.vocab_size = int(manifest.config["vocab_size"])
        self.special_tokens = {
            name: int(number) for name, number in manifest.config["special_tokens"].items()
        }
        self.tokenizer_path = path / TOKENIZER_FILE
        files = [map_batches(entry.under(path)) for entry in manifest.files if entry.path.endswith(".arrow")]
        self._buffers = [buffer for buffer, _ in files]
        self._batches = [batch for _, batches in files for batch in batches]
        sizes = [sum(batch.num_rows for batch in batches) for _, batches in files]
        self._first_of_file, self._first_of_batch = (
            offsets_of(own) for own in (sizes, [batch.num_rows for batch in self._batches])
        )
        self.num_documents = int(self._first_of_file[-1])
        self.num_tokens = 0
        for batch in self._batches:
            offsets = batch.column("input_ids").offsets
            self.num_tokens += offsets[batch.num_rows].as_py() - offsets[0].as_py() if batch.num_rows else 0
        self._held_out: dict[float, np.ndarray] = {}
        self._categories: dict[str, np.ndarray] = {}

    @classmethod
    def open(cls, path: Place | str, *, verify: bool = True, seen: SeenFiles | None = None) -> TokenStore:
        """Open the store at `path`, or the one under a preparation's output directory.

        Args:
            path: a directory, or a URI, whose files are copied to this machine first.
            verify: hash every file (a few GB/s); otherwise only their sizes are compared.
            seen: files that need not be hashed again; those that are right are added.

        Raises:
            MissingInputError: there is no token store at `path`, or another artefact.
            CorruptArtefactError: the store is damaged; names every damaged file.
        """
        place = committed_at(path, TOKENS)
        path = local_copy(place, kind=TOKENS, verify=verify)
        # Whatever changed since a copy was fetched has been hashed there.
        verify = verify and path == place
        if not any((path / name).exists() for name in (MANIFEST_NAME, *SIDECARS)):
            raise MissingInputError(
                f"There is no token store at {path}.", next_step="make it with `cloze data prepare CONFIG`"
            )
        manifest = open_artefact(path, kind=TOKENS, deep=verify, seen=seen, repair=REPAIR)
        with contents_of(path / MANIFEST_NAME):
            return cls(path, manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TokenStore.open, verify=False), (self.path,)

    @property
    def place(self) -> str:
        """Directory of the store, or the URI that `path` is a copy of."""
        return place_of(self.path)

    def __repr__(self) -> str:
        return f"TokenStore({self.place!r}, {self.num_documents:,} documents, {self.num_tokens:,} tokens)"

    # -- tokens ---------------------------------------------------------------------------------------------

    def tokens(self, document: int) -> np.ndarray:
        """[lengths[document]] uint16 or uint32: a read-only view of the document's ids."""
        first = self._token_starts[document]
        return self.index.ids[first : first + self.lengths[document]]

    def sentence_starts(self, document: int) -> np.ndarray:
        """[sentences] int32: a read-only view of the positions of each sentence's first token, ascending."""
        first = self._sentence_starts[document]
        return self.index.words[first : first + self.sentence_counts[document]]

    @property
    def dtype(self) -> np.dtype:
        """uint16 or uint32: the type of the stored ids."""
        return ids_dtype(self._batches[0].schema)

    @cached_property
    def lengths(self) -> np.ndarray:
        """[num_documents] int32 tokens per document."""
        return self._list_lengths(ID_OFFSETS)

    @cached_property
    def sentence_counts(self) -> np.ndarray:
        """[num_documents] int32 sentences per document."""
        return self._list_lengths(SENTENCE_OFFSETS)

    def arrays(self) -> TokenArrays:
        """The offsets that `tokens` and `sentence_starts` slice by, without the values. Each is made at its first use.

        With a billion documents they take 24 GB. `lengths` alone take 4, and `index` next to nothing."""
        return TokenArrays(
            self.index.ids,
            self.index.words,
            self._token_starts,
            self.lengths,
            self._sentence_starts,
            self.sentence_counts,
        )

    @property
    def size_bytes(self) -> int:
        """Size of the mapped files in bytes."""
        return sum(buffer.size for buffer in self._buffers)

    def expect_random_reads(self) -> None:
        """Read documents from disk without what lies around them, which is of use only if it stays in memory until it
        is asked for. Passes over all documents stay as fast as they are."""
        for buffer in self._buffers:
            advise(buffer.address, buffer.size, mmap.MADV_RANDOM)

    @cached_property
    def index(self) -> TokenIndex:
        """Index to look documents up in, without a look at each of them."""
        return index_batches(self._buffers, self._batches, self.source_dictionaries)

    @cached_property
    def source_dictionaries(self) -> list[tuple[str, ...]]:
        """The different dictionaries that number sources in some record batch; mostly one for each source."""
        return self._dictionaries("source")

    @cached_property
    def _token_starts(self) -> np.ndarray:
        return self._list_starts(ID_OFFSETS, IDS)

    @cached_property
    def _sentence_starts(self) -> np.ndarray:
        return self._list_starts(SENTENCE_OFFSETS, SENTENCES)

    def _list_lengths(self, offsets_column: int) -> np.ndarray:
        """[num_documents] int32, read-only: elements of each list of a column of the store."""
        lengths = np.empty(self.num_documents, dtype=np.int32)
        for own, _, offsets in self._list_offsets(offsets_column):
            np.subtract(offsets[1:], offsets[:-1], out=lengths[own])
        lengths.flags.writeable = False
        return lengths

    def _list_starts(self, offsets_column: int, values_column: int) -> np.ndarray:
        """[num_documents] int64, read-only: where each list of a column begins in the memory of all files."""
        starts = np.empty(self.num_documents, dtype=np.int64)
        for own, batch, offsets in self._list_offsets(offsets_column):
            np.add(offsets[:-1], batch[values_column], out=starts[own], dtype=np.int64)
        starts.flags.writeable = False
        return starts

    def _list_offsets(self, offsets_column: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """(documents, row of `TokenIndex.batches`, [documents + 1] int32 Arrow's offsets) of every record batch."""
        batches, words = self.index.batches, self.index.words
        bounds = [*batches[:, FIRST].tolist(), self.num_documents]
        for batch, (first, last) in zip(batches, pairwise(bounds), strict=True):
            place = batch[offsets_column]
            offsets = words[place : place + last - first + 1]
            advise(offsets.ctypes.data, offsets.nbytes, mmap.MADV_WILLNEED)
            yield slice(first, last), batch, offsets

    # -- documents ------------------------------------------------------------------------------------------

    def doc_id(self, document: int) -> str:
        """The document's id, as its source gave it."""
        return self._value("doc_id", document)

    def doc_ids(self) -> pa.StringArray:
        """[num_documents] string ids of all documents."""
        return pa.concat_arrays(list(self._columns("doc_id")))

    def source(self, document: int) -> str:
        """The name of the document's source in the configuration."""
        return self._value("source", document)

    def lang(self, document: int) -> str:
        """The document's language, as ISO 639-1 code."""
        return self._value("lang", document)

    @cached_property
    def source_names(self) -> list[str]:
        """The names that `sources` gives, by first appearance."""
        return self._names("source")

    @cached_property
    def lang_codes(self) -> list[str]:
        """The ISO 639-1 codes that `langs` gives, by first appearance."""
        return self._names("lang")

    def sources(self) -> tuple[np.ndarray, list[str]]:
        """([num_documents] int32 numbers, read-only, and names): the source of every document."""
        return self._category("source")

    def langs(self) -> tuple[np.ndarray, list[str]]:
        """([num_documents] int32 numbers, read-only, and ISO 639-1 codes): the language of every document."""
        return self._category("lang")

    def _names(self, column: str) -> list[str]:
        return list(dict.fromkeys(name for names in self._dictionaries(column) for name in names))

    def _dictionaries(self, column: str) -> list[tuple[str, ...]]:
        """The different dictionaries of a column, by first appearance."""
        return list(
            dict.fromkeys(tuple(batch.column(column).dictionary.to_pylist()) for batch in self._batches)
        )

    def _columns(self, name: str) -> Iterator[Any]:
        """A column of every batch, to be read as a whole; where reads at random are expected, that would take a wait
        for each page."""
        for batch in self._batches:
            column = batch.column(name)
            for buffer in filter(None, column.buffers()):
                advise(buffer.address, buffer.size, mmap.MADV_WILLNEED)
            yield column

    def _category(self, column: str) -> tuple[np.ndarray, list[str]]:
        names = self._names(column)
        if column not in self._categories:
            self._categories[column] = categories(self._columns(column), names, self.num_documents)
        return self._categories[column], names

    def held_out(self, fraction: float) -> np.ndarray:
        """[num_documents] bool, read-only: which documents training must not see.

        A function of the document's id alone: a document held out of one preparation is held out of all of them, and a
        smaller fraction holds out a subset of the documents of a larger one.
        """
        if fraction not in self._held_out:
            chosen = np.empty(self.num_documents, dtype=bool)
            place = 0
            for ids in self._columns("doc_id"):
                chosen[place : place + len(ids)] = as_fraction(hash_strings(ids)) < fraction
                place += len(ids)
            chosen.flags.writeable = False
            self._held_out[fraction] = chosen
        return self._held_out[fraction]

    def document(self, document: int) -> Document:
        """The document itself: text, title, uri and meta, from the documents beside this store.

        Raises:
            CorruptArtefactError: the documents, or what was selected of them, are gone or damaged.
        """
        number = range(self.num_documents)[document]
        return next(self.documents(np.array([number], dtype=np.int64)))

    def documents(self, numbers: np.ndarray) -> Iterator[Document]:
        """The documents with the given ascending indices; every row group is read once.

        Raises:
            CorruptArtefactError: the documents, or what was selected of them, are gone or damaged.
        """
        store, shards = self.documents_beside(), self._file_number(numbers)
        for shard in np.unique(shards).tolist():
            yield from store.read(shard, self._selection(store, shard, numbers[shards == shard]))

    def document_and_removed(self, document: int) -> tuple[Document, Document, np.ndarray]:
        """The document as `document` gives it, the same before anything was removed from its text, and the
        [spans, 2] int64 ranges of UTF-8 bytes that were.

        Raises:
            CorruptArtefactError: the documents, or what was selected of them, are gone or damaged.
        """
        number = range(self.num_documents)[document]
        store, shard = self.documents_beside(), int(self._file_number(number))
        own = self._selection(store, shard, np.array([number]))
        (whole,) = store.read(shard, own.with_whole_texts())
        spans = own.spans.values
        return replace(whole, text=remove_spans(whole.text, spans)) if len(spans) else whole, whole, spans

    def documents_beside(self) -> DocumentStore:
        """The documents that this store was made of.

        Raises:
            CorruptArtefactError: they are gone.
        """
        kinds = {entry.kind for entry in self.manifest.inputs}
        selected = next(kind for kind in (TAKEDOWN, DECONTAMINATION, DEDUP) if kind in kinds or kind == DEDUP)
        return DocumentStore(beside(self.path, DOCUMENTS), beside(self.path, selected))

    def _selection(self, documents: DocumentStore, shard: int, numbers: np.ndarray) -> Selection:
        """The selection of the documents with the given ascending indices, which are all in one file."""
        return documents.selection(shard).take(numbers - self._first_of_file[shard])

    def _file_number(self, documents: Any) -> Any:
        """Return the index of the file that a document is in, or of each of [n] documents."""
        return np.searchsorted(self._first_of_file, documents, side="right") - 1

    def _value(self, column: str, document: int) -> str:
        number = range(self.num_documents)[document]
        batch = int(np.searchsorted(self._first_of_batch, number, side="right")) - 1
        return self._batches[batch].column(column)[int(number - self._first_of_batch[batch])].as_py()
