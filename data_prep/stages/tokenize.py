"""Selected documents to tokens."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cluster.artefacts.manifest import Manifest
from cluster.artefacts.shard_records import ShardRecord
from cluster.shards import ShardResult, WriteShard
from data_prep.documents import one_chunk, read_selected, text_bytes_by
from data_prep.layout import TOKEN_FILES, TOKENIZER, TOKENIZER_FILE, TOKENS
from data_prep.selection import load_selection
from data_prep.sentences import cut_sentences
from data_prep.token_writer import EncodedBatch, token_dtype, write_sidecars, write_token_shard
from data_prep.tokenizers.fast import agrees_with, make_fast_encoder, round_trips
from data_prep.tokenizers.reference import Encoder, ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, tokenizer_facts
from data_prep.workspace import Workspace

VERSION = 4
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""


def tokenize(job: Workspace, selection: Manifest, tokenizer: Manifest) -> Manifest:
    """Make the `tokens` artefact: one Arrow shard per document shard."""
    tokenizer_path = job.directory(TOKENIZER) / TOKENIZER_FILE
    facts = tokenizer_facts(tokenizer_path)
    dtype = token_dtype(facts["vocab_size"])
    settings = {"sentences": job.config.sentences, "dtype": dtype.name}

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        write_sidecars(directory, TOKEN_FILES.files(len(job.shards)), dtype, tokenizer_path.read_bytes())
        return {"sources": job.by_source(records)}

    def make(shard: int) -> WriteShard:
        return partial(
            tokenize_documents,
            documents=job.documents_path(shard),
            selection=job.selection_path(selection, shard),
            tokenizer=tokenizer_path,
            source=job.shards[shard].source.name,
            **settings,
        )

    def contents(shard: int) -> list[Any]:
        hashes = job.documents.files[shard].xxh3_128, selections[shard], tokenizer.files[0].xxh3_128
        return [VERSION, [*hashes, job.shards[shard].source.name], settings]

    selections = job.selection_hashes(selection)
    return job.build(
        TOKENS,
        TOKEN_FILES,
        make,
        config={"version": VERSION, **facts, **settings},
        inputs=[job.documents, selection, tokenizer],
        contents=contents,
        finish=finish,
    )


_COUNTS: tuple[str, ...] = ("kept_bytes", "sentences", "unknown_tokens", "lines_tried", "exact_lines")


class _DisagreementError(Exception):
    """The fast encoder differs from the reference on this shard's text."""


def tokenize_documents(
    path: Path, *, documents: Path, selection: Path, tokenizer: Path, source: str, sentences: str, dtype: str
) -> ShardResult:
    """Encode the kept documents of a shard; row j of the result is the j-th kept row.

    The fast encoder does the work as long as it agrees with the reference on a sample of every batch; at the
    first difference the whole shard is encoded by the reference. A difference outside all samples goes unnoticed.

    Args:
        selection: of the rows and texts of the document shard.
        source: name of the source that all its documents come from.
        dtype: `uint16` or `uint32`.
    """
    # One task is one CPU; both libraries would otherwise start a thread for every core of the machine.
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    file = tokenizer.stat()
    reference, fast = _encoders(tokenizer, (file.st_ino, file.st_size, file.st_mtime_ns))
    unknown = find_special_tokens(reference.tokenizer).get("unk", -1)
    kept = load_selection(selection)
    langs = pq.read_table(str(documents), columns=["lang"])["lang"].unique().to_pylist()

    def encoded(encoder: Encoder, counts: Counter[str]) -> Iterator[EncodedBatch]:
        for table in read_selected(documents, ("doc_id", "lang", "text"), kept):
            doc_ids, codes, texts = (one_chunk(table[name]) for name in ("doc_id", "lang", "text"))
            cuts = cut_sentences(texts, codes, sentences)
            if encoder is not reference and not agrees_with(encoder, reference, texts, cuts):
                raise _DisagreementError(documents.name)
            ids, starts = encoder.encode(texts, cuts)
            for lang, num_bytes in text_bytes_by(codes, texts).items():
                counts["kept_bytes"] += num_bytes
                counts[f"kept_bytes.{lang}"] += num_bytes
            counts["sentences"] += len(starts.values)
            counts["unknown_tokens"] += int((ids.values == unknown).sum())
            tried, exact = round_trips(reference.tokenizer, texts, cuts)
            counts["lines_tried"] += tried
            counts["exact_lines"] += exact
            yield EncodedBatch(doc_ids, codes, ids, starts)

    def write(encoder: Encoder) -> ShardResult:
        counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        num_tokens = write_token_shard(path, source, langs, encoded(encoder, counts), np.dtype(dtype))
        stats = counts | {f"shards_by_{encoder.name}": 1}
        return ShardResult(rows=len(kept), tokens=num_tokens, stats=stats, text_bytes=counts["kept_bytes"])

    if fast is not None:
        with suppress(_DisagreementError):
            return write(fast)
    return write(reference)


@lru_cache(maxsize=1)
def _encoders(tokenizer: Path, version: tuple[int, ...]) -> tuple[ReferenceEncoder, Encoder | None]:
    """Kept from task to task of a process: reading a big vocabulary costs as much as encoding megabytes.

    Args:
        version: anything that changes with the file.
    """
    tokenizer_json = tokenizer.read_text(encoding="utf-8")
    return ReferenceEncoder(tokenizer_json), make_fast_encoder(tokenizer_json)
