"""Training of a byte-level BPE tokenizer (Radford et al. 2019) with RoBERTa's special tokens.

Ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` 4, then the 256 bytes, then merges as learned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.index import load_entries
from data_prep.documents import read_selected
from data_prep.selection import Selection, load_selection

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@dataclass(frozen=True, slots=True)
class TrainingSplit:
    """The input of tokenizer training: all kept documents, and the settings."""

    documents: tuple[Path, ...]
    """Document shards."""
    selections: tuple[Path, ...]
    """What is kept of each."""
    indexes: tuple[Path, ...]
    """The index file of each; see `dedup/index.py`."""
    vocab_size: int
    train_bytes: int
    min_frequency: int
    num_threads: int
    """Threads of the trainer; they do not change its result."""


def train_tokenizer(split: TrainingSplit, path: Path) -> ShardResult:
    """Train on a sample of the kept documents and write `tokenizer.json`."""
    # Read by the thread pool of the library when it starts.
    os.environ["RAYON_NUM_THREADS"] = str(split.num_threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    selections = [load_selection(path) for path in split.selections]
    rows = [selection.rows for selection in selections]
    chosen, num_bytes = draw_documents(
        [load_entries(path) for path in split.indexes], rows, split.train_bytes
    )
    texts = _texts(split.documents, selections, chosen)
    path.write_text(train_bpe(texts, split.vocab_size, split.min_frequency), encoding="utf-8")
    num_documents = sum(len(rows) for rows in chosen)
    return ShardResult(rows=1, stats={"train_documents": num_documents, "train_bytes": num_bytes})


def draw_documents(
    index: list[np.ndarray], kept: list[np.ndarray], max_bytes: int
) -> tuple[list[np.ndarray], int]:
    """Draw kept documents evenly from the corpus until the next would exceed `max_bytes` of text.

    The order of the draw is the order of the hashes of the documents' ids, so it does not depend on how
    documents are spread over shards. At least one document is drawn.

    Args:
        index: per shard [documents] ENTRY of `dedup/index.py`.
        kept: per shard [kept] int64 row numbers.

    Returns:
        Per shard [drawn] int64 ascending row numbers, and the bytes of text drawn.
    """
    shard_of = np.repeat(np.arange(len(kept)), [len(rows) for rows in kept])
    rows = np.concatenate([np.empty(0, dtype=np.int64), *kept])
    draws = np.concatenate([entries["draw"][own] for entries, own in zip(index, kept, strict=True)])
    sizes = np.concatenate([entries["text_bytes"][own] for entries, own in zip(index, kept, strict=True)])
    order = np.argsort(draws, kind="stable")
    totals = np.cumsum(sizes[order])
    count = max(1, int(np.searchsorted(totals, max_bytes, side="right")))
    drawn = np.zeros(len(order), dtype=bool)
    drawn[order[:count]] = True
    chosen = [rows[drawn & (shard_of == shard)] for shard in range(len(kept))]
    return chosen, int(totals[count - 1])


def train_bpe(texts: Iterable[str], vocab_size: int, min_frequency: int) -> str:
    """Train on texts; returns the `tokenizer.json`. The same texts give the same bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS[:-1]]
    # As in RoBERTa, a mask stands for a word with the space before it.
    mask = AddedToken(SPECIAL_TOKENS[-1], special=True, normalized=False, lstrip=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*special, mask],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer.to_str(pretty=True)


def _texts(
    documents: tuple[Path, ...], selections: list[Selection], chosen: list[np.ndarray]
) -> Iterator[str]:
    for path, selection, rows in zip(documents, selections, chosen, strict=True):
        if len(rows):
            own = selection.take(np.searchsorted(selection.rows, rows))
            for table in read_selected(path, ("text",), own):
                yield from table["text"].to_pylist()
