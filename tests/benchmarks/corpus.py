"""Text for benchmarks, and token stores of random documents.

Text is English, real articles and novels where CLOZE_DATA names them, else docstrings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models

from data_prep.ragged import Ragged
from data_prep.sources.base import SourceConfig
from data_prep.text import clean_text
from data_prep.token_writer import EncodedBatch
from tests.conftest import commit_tokens

FILES = 8
SPECIAL = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}


def documents() -> Iterator[str]:
    """Texts of at least 200 characters, in an order that does not change."""
    from data_prep.sources.books import BooksTextConfig
    from data_prep.sources.python_docs import PythonDocsConfig
    from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig

    root = os.environ.get("CLOZE_DATA")
    if root is None:
        yield from read_texts(PythonDocsConfig(name="docs", packages=("torch", "scipy", "sklearn", "pandas")))
        return
    yield from read_texts(
        WikipediaExtractedConfig(name="wikipedia", paths=(f"{root}/wikipedia/extracted-en/*",))
    )
    yield from read_texts(BooksTextConfig(name="books", paths=(f"{root}/books/en/*.txt",)))


def read_texts(config: SourceConfig) -> Iterator[str]:
    """Texts of a source of at least 200 characters, as clean as a preparation makes them."""
    for file in config.list_files():
        for part in config.split_file(file, 1, 1 << 40):
            for document in config.read(part):
                if len(text := clean_text(getattr(document, "text", ""))) >= 200:
                    yield text


def tokenizer_of(vocab_size: int) -> str:
    """A tokenizer.json of that many words, the first of which are special."""
    words = [f"<{name}>" for name in SPECIAL] + [f"w{number}" for number in range(len(SPECIAL), vocab_size)]
    ids = {word: number for number, word in enumerate(words)}
    return Tokenizer(models.WordLevel(ids, unk_token="<unk>")).to_str()


def write_random_store(path: Path, lengths: np.ndarray, vocab_size: int) -> Path:
    """Commit a token store of documents of these lengths: random tokens, in sentences of about 25."""
    shards = []
    for number, own in enumerate(np.array_split(lengths, FILES)):
        generator, ends = np.random.Generator(np.random.Philox(number)), np.cumsum(own)
        starts = np.union1d(np.flatnonzero(generator.random(ends[-1]) < 1 / 25), ends - own)
        owners = np.searchsorted(ends, starts, side="right")
        batch = EncodedBatch(
            doc_ids=pa.array([f"benchmark:{number}-{document}" for document in range(len(own))]),
            langs=pa.array(["en"]).take(pa.array(np.zeros(len(own), dtype=np.int32))),
            input_ids=Ragged(
                generator.integers(len(SPECIAL), vocab_size, size=ends[-1], dtype=np.uint16),
                np.concatenate([[0], ends]),
            ),
            sentence_starts=Ragged(
                (starts - (ends - own)[owners]).astype(np.int32),
                np.searchsorted(owners, np.arange(len(own) + 1)),
            ),
        )
        shards.append(("benchmark", batch))
    return commit_tokens(path, shards, tokenizer_of(vocab_size), vocab_size, SPECIAL)
