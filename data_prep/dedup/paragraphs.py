"""Repeated paragraphs (Wenzek et al. 2020, section 3.1): found by hash, removed as spans of the text.

A paragraph is a line. It is known by 64 bits of the hash of its letters and digits as `words.py` folds them, so neither
case, accents, punctuation nor spacing makes two of them differ, nor digits where they are folded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from cluster.shards import ShardResult
from data_prep.dedup.records import Records, RecordWriter, iterate_repeats, read_documents, rows_of
from data_prep.dedup.texts import Survivors, join_texts, read_blocks
from data_prep.documents import read_selected
from data_prep.ragged import Ragged, offsets_of
from data_prep.selection import Selection, remove_spans, write_selection
from data_prep.text.words import FIRST, split_joined

KEYS = ("hash",)
REPEATS = {"document": "uint64", "start": "uint32", "end": "uint32"}
"""A paragraph: its document and its bytes in the text of it, the line break included."""
COLUMNS = {"hash": "uint64", **REPEATS}


def hash_paragraphs(
    path: Path, *, survivors: Survivors, min_length: int, fold_digits: bool, only_repeats: bool
) -> ShardResult:
    """Write a record of every paragraph of a document shard, in order.

    Args:
        min_length: least letters and digits of a paragraph that counts.
        only_repeats: write those that repeat an earlier one of the same document, without their hashes.
    """
    with RecordWriter(path, REPEATS if only_repeats else COLUMNS) as writer:
        for documents, texts in read_blocks(survivors.documents, survivors.shard, survivors.load()):
            run = _hash_lines(texts, documents, min_length, fold_digits=fold_digits)
            if only_repeats:
                ((run, _),) = iterate_repeats([run], ("document", "hash"))
            writer.write(run)
    return ShardResult(rows=writer.num_records)


def remove_repeats(
    path: Path, *, survivors: Survivors, repeats: Path, max_removed: float, min_characters: int
) -> ShardResult:
    """Write the selection of a document shard without repeated paragraphs.

    A document that loses too much is dropped. Where it held the first of equal paragraphs, the others are removed
    all the same: no decision depends on another one.

    Args:
        repeats: directory with the repeated paragraphs.
        max_removed: a document that loses at least this share of its characters is dropped.
        min_characters: characters that a document must be left with.
    """
    selection = survivors.load()
    found = read_documents(repeats, survivors.shard)
    if found is None:
        write_selection(path, selection)
        return ShardResult(rows=len(selection))
    rows, counts = np.unique(rows_of(found["document"]), return_counts=True)
    places = np.stack([found["start"], found["end"]], axis=1).astype(np.int64)
    spans = Ragged(places, offsets_of(counts))
    tables = read_selected(survivors.documents, ("text",), Selection.whole(rows))
    texts = (text for table in tables for text in table["text"].to_pylist())
    dropped = np.zeros(len(rows), dtype=bool)
    for number, text in enumerate(texts):
        left = len(remove_spans(text, spans[number]))
        lost = 1 - left / len(text)
        dropped[number] = left < max(1, min_characters) or lost > max_removed
    kept = selection.take(np.flatnonzero(~np.isin(selection.rows, rows[dropped])))
    edited = np.searchsorted(kept.rows, rows[~dropped])
    removed = kept.spans.replaced(edited, spans.take(np.flatnonzero(~dropped)))
    write_selection(path, replace(kept, spans=removed))
    return ShardResult(rows=len(kept))


def _hash_lines(
    texts: pa.StringArray, documents: np.ndarray, min_length: int, *, fold_digits: bool
) -> Records:
    joined, offsets = join_texts(texts)
    text_bytes = Ragged.of_strings(texts).offsets
    bounds = _line_bounds(np.frombuffer(joined.encode("utf-32-le"), dtype="<u4"), offsets)
    byte_bounds = _line_bounds(np.frombuffer(joined.encode(), dtype=np.uint8), text_bytes)
    words = split_joined(joined, offsets, fold_digits=fold_digits)
    places = words.places + np.repeat(offsets[:-1], words.counts)
    # Letters before each bound: a line break ends a word.
    before = words.starts[np.searchsorted(places, bounds)]
    chosen = np.flatnonzero(np.diff(before) >= min_length)
    data = memoryview((words.codes & ~FIRST).astype("<u4").tobytes())
    starts, ends = (4 * before[chosen]).tolist(), (4 * before[chosen + 1]).tolist()
    hashes = [xxhash.xxh3_64_intdigest(data[start:end]) for start, end in zip(starts, ends, strict=True)]
    texts_of = np.searchsorted(offsets, bounds[chosen], side="right") - 1
    return {
        "hash": np.array(hashes, dtype=np.uint64),
        "document": documents[texts_of],
        "start": byte_bounds[chosen] - text_bytes[texts_of],
        "end": byte_bounds[chosen + 1] - text_bytes[texts_of],
    }


def _line_bounds(units: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[lines + 1] where lines begin and end: after every break, and at the ends of texts.

    Args:
        units: code points or bytes of all texts.
        offsets: [texts + 1] units before each text and in all of them.
    """
    return np.union1d(np.flatnonzero(units == ord("\n")) + 1, offsets)
