"""From a document shard to a token shard: the last stage of a preparation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.kept import load_kept
from data_prep.documents import read_texts
from data_prep.sentences import cut_points
from data_prep.token_writer import EncodedDocument, write_token_shard
from data_prep.tokenizers.fast import agrees_with, make_fast_encoder
from data_prep.tokenizers.reference import Encoder, ReferenceEncoder


@dataclass(frozen=True, slots=True)
class TokensSplit:
    """The input of one token shard."""

    documents: Path
    """The document shard."""
    kept: Path
    """Which of its rows are kept."""
    tokenizer: Path
    source: str
    """The source that all its documents come from."""
    sentences: str
    dtype: str
    """`uint16` or `uint32`."""


class _DisagreementError(Exception):
    """The fast encoder differs from the reference on this shard's text."""


def tokenize_documents(split: TokensSplit, path: Path) -> ShardResult:
    """Encode the kept documents of a shard; row j of the result is the j-th kept row.

    The fast encoder does the work as long as it agrees with the reference on a sample of every batch; at the
    first difference the whole shard is encoded by the reference. So the result never depends on which it was.
    """
    # One task is one CPU; both libraries would otherwise start a thread for every core of the machine.
    os.environ["RAYON_NUM_THREADS"] = "1"
    tokenizer_json = split.tokenizer.read_text(encoding="utf-8")
    reference = ReferenceEncoder(tokenizer_json)
    fast = make_fast_encoder(tokenizer_json, split.sentences)
    if fast is not None:
        try:
            return _write(split, path, fast, reference)
        except _DisagreementError:
            pass
    return _write(split, path, reference, None)


def _write(split: TokensSplit, path: Path, encoder: Encoder, reference: Encoder | None) -> ShardResult:
    counts = {"kept_bytes": 0, "sentences": 0}
    rows = load_kept(split.kept)

    def encoded() -> Iterator[EncodedDocument]:
        for batch in _batches(read_texts(split.documents, rows), encoder.batch_characters):
            texts = [text for _, text in batch]
            cuts = [cut_points(text, split.sentences) for text in texts]
            if reference is not None and not agrees_with(encoder, reference, texts, cuts):
                raise _DisagreementError(split.documents.name)
            for (doc_id, text), (ids, starts) in zip(batch, encoder.encode(texts, cuts), strict=True):
                counts["kept_bytes"] += len(text.encode("utf-8"))
                counts["sentences"] += len(starts)
                yield EncodedDocument(doc_id, ids, starts)

    num_tokens = write_token_shard(path, split.source, encoded(), np.dtype(split.dtype))
    stats = counts | {f"shards_by_{encoder.name}": 1}
    return ShardResult(rows=len(rows), tokens=num_tokens, stats=stats)


def _batches(documents: Iterable[tuple[str, str]], max_characters: int) -> Iterator[list[tuple[str, str]]]:
    """Documents in lists of about `max_characters` of text, at least one in each."""
    batch: list[tuple[str, str]] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document[1])
        if size >= max_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
