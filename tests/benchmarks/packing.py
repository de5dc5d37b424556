"""Share of real tokens in what the network reads: every format of single texts, beside padding, on documents of natural
lengths.

Articles and novels, and news (XSum), where CLOZE_DATA names them, else docstrings; a token is a word or a punctuation
mark here, a sentence ends at a full stop. Nothing is timed: shares are the same on every machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson

from data_prep.token_files import TokenArrays
from pipeline.samples.formats import FORMATS, SINGLE_FORMATS
from pipeline.samples.packed import FormatInput
from pipeline.samples.shuffle import StoreOrder
from tests.benchmarks.corpus import documents

LENGTH = 512
BATCH = 32
_TOKENS = re.compile(r"\w+|[^\w\s]")


def run() -> Iterator[str]:
    """Shares of all positions; special tokens are counted among the real ones."""
    for corpus, texts in {"articles, novels": documents(), "news": _news()}.items():
        arrays = _tokens(texts)
        if not len(arrays.lengths):
            continue
        cut = np.minimum(arrays.lengths + 2, LENGTH)
        order = np.random.Generator(np.random.Philox(1)).permutation(len(cut))
        batches = np.array_split(cut[order], max(len(cut) // BATCH, 1))
        longest = sum(int(batch.max()) * len(batch) for batch in batches)
        share = cut.sum() / longest
        yield f"packing {corpus}, a document cut to one row, padded to the longest of {BATCH}: {share:.1%}"
        everything, shuffle = np.arange(len(arrays.lengths), dtype=np.int32), StoreOrder("benchmark", 1)
        for format in SINGLE_FORMATS:
            given = (everything, LENGTH, shuffle, "the benchmark's text", None)
            rows = FORMATS[format](FormatInput(arrays.lengths, lambda arrays=arrays: arrays, *given))
            slices = rows.epoch(0).slices_of(np.arange(rows.num_rows))
            real = (slices.stops - slices.starts).sum() + slices.opened.sum() + slices.closed.sum()
            yield f"packing {corpus}, {format}: {real / (rows.num_rows * LENGTH):.2%} real tokens"


def _news() -> Iterator[str]:
    root = os.environ.get("CLOZE_DATA")
    if root is not None:
        with (Path(root) / "xsum" / "test-1000.jsonl").open("rb") as lines:
            for line in lines:
                yield orjson.loads(line)["document"]


def _tokens(texts: Iterable[str]) -> TokenArrays:
    """Lengths and sentences as a token store tells them; the ids themselves do not matter."""
    lengths, starts = [], [np.empty(0, dtype=np.int32)]
    for text in texts:
        tokens = _TOKENS.findall(text)
        ends = [0, *(place + 1 for place, token in enumerate(tokens) if token in ".!?"), len(tokens)]
        starts.append(np.array([a for a, b in pairwise(ends) if b > a], dtype=np.int32))
        lengths.append(len(tokens))
    sizes = np.array(lengths, dtype=np.int32)
    counts = np.array([len(each) for each in starts[1:]], dtype=np.int32)
    return TokenArrays(
        ids=np.zeros(1, dtype=np.uint16),
        words=np.concatenate(starts),
        token_starts=np.cumsum(sizes) - sizes,
        lengths=sizes,
        sentence_starts=np.cumsum(counts) - counts,
        sentence_counts=counts,
    )
