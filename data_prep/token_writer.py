"""Writing a token shard: an Arrow IPC stream that `datasets` and `TokenStore` both read as it lies on disk.

One row per document, several record batches per file, so that neither writing nor reading ever needs more
than a batch in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from cluster.manifest import write_durably
from data_prep.layout import TOKENIZER_FILE

BATCH_BYTES = 8 << 20
"""A record batch is closed once its ids and sentence starts fill this many bytes."""
BATCH_DOCUMENTS = 4096
"""A record batch holds at most this many documents."""
_LARGEST_UINT16_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """One row of a token shard."""

    doc_id: str
    input_ids: np.ndarray
    """[tokens] of any unsigned integer type; no special tokens."""
    sentence_starts: np.ndarray
    """[sentences] int32, ascending; the first is 0, and each is the position of a sentence's first token."""


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 where all ids fit, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= _LARGEST_UINT16_VOCABULARY else np.uint32)


def token_schema(dtype: np.dtype) -> pa.Schema:
    """The Arrow schema of a token shard."""
    return pa.schema(
        [
            ("doc_id", pa.string()),
            ("source", pa.dictionary(pa.int32(), pa.string())),
            ("input_ids", pa.list_(pa.from_numpy_dtype(dtype))),
            ("sentence_starts", pa.list_(pa.int32())),
        ]
    )


def write_token_shard(path: Path, source: str, documents: Iterable[EncodedDocument], dtype: np.dtype) -> int:
    """Write one shard, all of whose documents come from `source`; returns its tokens.

    A shard without documents still holds one empty batch, because `datasets` reads no file without any.
    """
    schema = token_schema(dtype)
    num_tokens = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        pending: list[EncodedDocument] = []
        pending_bytes = 0
        written = False
        for document in documents:
            pending.append(document)
            num_tokens += len(document.input_ids)
            pending_bytes += dtype.itemsize * len(document.input_ids) + 4 * len(document.sentence_starts)
            if pending_bytes >= BATCH_BYTES or len(pending) >= BATCH_DOCUMENTS:
                writer.write_batch(_record_batch(pending, source, dtype, schema))
                pending, pending_bytes, written = [], 0, True
        if pending or not written:
            writer.write_batch(_record_batch(pending, source, dtype, schema))
    return num_tokens


def _record_batch(
    documents: Sequence[EncodedDocument], source: str, dtype: np.dtype, schema: pa.Schema
) -> pa.RecordBatch:
    # The dictionary is the same in every batch, so that the stream holds it once.
    indices = pa.array(np.zeros(len(documents), dtype=np.int32))
    columns = [
        pa.array([document.doc_id for document in documents], type=pa.string()),
        pa.DictionaryArray.from_arrays(indices, pa.array([source], type=pa.string())),
        _list_array([document.input_ids for document in documents], dtype),
        _list_array([document.sentence_starts for document in documents], np.dtype(np.int32)),
    ]
    return pa.record_batch(columns, schema=schema)


def _list_array(rows: Sequence[np.ndarray], dtype: np.dtype) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    assert offsets[-1] < 2**31, "a batch is closed long before its offsets leave int32"
    values = np.concatenate([np.empty(0, dtype=dtype), *[row.astype(dtype, copy=False) for row in rows]])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def token_files(num_shards: int) -> list[str]:
    """File names of a store's shards, in order; the pattern is the one of `datasets`."""
    return [f"data-{number:05d}-of-{num_shards:05d}.arrow" for number in range(num_shards)]


def write_sidecars(directory: Path, files: Sequence[str], dtype: np.dtype, tokenizer_json: bytes) -> None:
    """Write what `datasets.load_from_disk` needs beside the shards, and a copy of the tokenizer."""
    features = {
        "doc_id": _value("string"),
        "source": _value("string"),
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
    write_if_changed(directory / "dataset_info.json", orjson.dumps({"features": features}))
    write_if_changed(directory / "state.json", orjson.dumps(state))
    write_if_changed(directory / TOKENIZER_FILE, tokenizer_json)


def write_if_changed(path: Path, data: bytes) -> None:
    """Write `data` durably unless `path` holds just that already: a repair touches only what was damaged."""
    if not path.is_file() or path.read_bytes() != data:
        write_durably(path, data)


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}
