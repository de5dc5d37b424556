"""Writing a token shard: an Arrow IPC stream that `datasets` and `TokenStore` both read as it lies on disk.

One row per document, several record batches per file, so that neither writing nor reading ever needs more
than a batch in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cluster.artefacts.manifest import write_durably
from data_prep.layout import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from data_prep.ragged import Ragged
from data_prep.tokenizers.special import transformers_config

SIDECARS = ("dataset_info.json", "state.json")
"""Files that `datasets.load_from_disk` expects beside the shards."""
_LARGEST_UINT16_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Some consecutive rows of a token shard."""

    doc_ids: pa.Array
    """[documents] string."""
    langs: pa.Array
    """[documents] string, ISO 639-1 codes."""
    input_ids: Ragged
    """Ids of every document, of any unsigned integer type; no special tokens."""
    sentence_starts: Ragged
    """Per document int32 positions of each sentence's first token, ascending; the first is 0."""


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 where all ids fit, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= _LARGEST_UINT16_VOCABULARY else np.uint32)


def token_schema(dtype: np.dtype) -> pa.Schema:
    """The Arrow schema of a token shard."""
    return pa.schema(
        [
            ("doc_id", pa.string()),
            ("source", pa.dictionary(pa.int32(), pa.string())),
            ("lang", pa.dictionary(pa.int32(), pa.string())),
            ("input_ids", pa.list_(pa.from_numpy_dtype(dtype))),
            ("sentence_starts", pa.list_(pa.int32())),
        ]
    )


def write_token_shard(
    path: Path, source: str, langs: Sequence[str], batches: Iterable[EncodedBatch], dtype: np.dtype
) -> int:
    """Write one shard, all of whose documents come from `source` and are in one of `langs`; returns its tokens.

    A shard without documents still holds one empty batch, because `datasets` reads no file without any.
    """
    schema = token_schema(dtype)
    # The dictionaries are the same in every batch, so that the stream holds them once.
    names, codes = pa.array([source], type=pa.string()), pa.array(sorted(langs), type=pa.string())
    no_strings, no_rows = pa.array([], type=pa.string()), Ragged.of([])
    nothing = EncodedBatch(no_strings, no_strings, no_rows, no_rows)
    later, num_tokens = iter(batches), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in chain([next(later, nothing)], later):
            sources = pa.array(np.zeros(len(batch.doc_ids), dtype=np.int32))
            numbers = pc.index_in(batch.langs, value_set=codes)  # pyright: ignore[reportAttributeAccessIssue]
            columns = [
                batch.doc_ids,
                pa.DictionaryArray.from_arrays(sources, names),
                pa.DictionaryArray.from_arrays(numbers, codes),
                _list_array(batch.input_ids, dtype),
                _list_array(batch.sentence_starts, np.dtype(np.int32)),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            num_tokens += len(batch.input_ids.values)
    return num_tokens


def _list_array(rows: Ragged, dtype: np.dtype) -> pa.ListArray:
    assert rows.offsets[-1] < 2**31, "a batch is closed long before its offsets leave int32"
    return pa.ListArray.from_arrays(
        pa.array(rows.offsets.astype(np.int32)), pa.array(rows.values.astype(dtype, copy=False))
    )


def write_sidecars(directory: Path, files: Sequence[str], dtype: np.dtype, tokenizer_json: bytes) -> None:
    """Write what `datasets.load_from_disk` needs beside the shards, and a copy of the tokenizer."""
    features = {
        "doc_id": _value("string"),
        "source": _value("string"),
        "lang": _value("string"),
        "input_ids": {"feature": _value(dtype.name), "_type": "List"},
        "sentence_starts": {"feature": _value("int32"), "_type": "List"},
    }
    state = {
        "_data_files": [{"filename": file} for file in files],
        "_fingerprint": None,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_if_changed(directory / SIDECARS[0], orjson.dumps({"features": features}))
    write_if_changed(directory / SIDECARS[1], orjson.dumps(state))
    write_tokenizer(directory, tokenizer_json)


def write_tokenizer(directory: Path, tokenizer_json: bytes) -> None:
    """Write a tokenizer and what `transformers` needs beside it."""
    from tokenizers import Tokenizer

    write_if_changed(directory / TOKENIZER_FILE, tokenizer_json)
    config = transformers_config(Tokenizer.from_buffer(tokenizer_json))
    write_if_changed(directory / TOKENIZER_CONFIG_FILE, config)


def write_if_changed(path: Path, data: bytes) -> None:
    """Write `data` durably unless `path` holds just that already: a repair touches only what was damaged."""
    if not path.is_file() or path.read_bytes() != data:
        write_durably(path, data)


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}
