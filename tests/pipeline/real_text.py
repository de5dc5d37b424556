"""Token stores of real text for tests: docstrings of a package that is installed, by any kind of tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa
from tokenizers import Tokenizer

from data_prep.document import Document
from data_prep.sentences import cut_sentences
from data_prep.sources.python_docs import PythonDocsConfig
from data_prep.token_writer import EncodedBatch
from data_prep.tokenizers import ByteLevelBPE, SentencePiece, WordLexicon, WordPiece
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from tests.conftest import commit_tokens

VOCAB_SIZE = 1024
TRAINERS = {
    "tiny": ByteLevelBPE(vocab_size=VOCAB_SIZE),
    "tiny-wordpiece": WordPiece(vocab_size=VOCAB_SIZE),
    "tiny-sentencepiece": SentencePiece(vocab_size=VOCAB_SIZE, sentinels=100),
    "tiny-words": WordLexicon(vocab_size=VOCAB_SIZE),
}
"""By the name of a configuration in configs/data/, a smaller tokenizer of its kind."""


@cache
def docstrings() -> tuple[Document, ...]:
    """Docstrings of NumPy of at least 200 characters."""
    config = PythonDocsConfig(name="docstrings", stdlib=False, packages=("numpy",), max_bytes=8_000_000)
    parts = (file for file in config.list_files())
    found = (each for part in parts for each in config.read(part))
    return tuple(each for each in found if isinstance(each, Document) and len(each.text) >= 200)


def write_text_store(
    path: Path, kind: str, langs: tuple[str, ...] = ("en",), documents: Sequence[Document] = ()
) -> Path:
    """Commit a token store of the documents, or of the docstrings.

    Args:
        kind: a name of TRAINERS.
        langs: languages that the documents claim in turn.
    """
    documents = documents or docstrings()
    texts = [document.text for document in documents]
    tokenizer_json = TRAINERS[kind].train(texts)[0]
    tokenizer = Tokenizer.from_str(tokenizer_json)
    cuts = cut_sentences(pa.array(texts), pa.array(["en"] * len(texts)), "blingfire")
    ids, starts = ReferenceEncoder(tokenizer_json).encode(pa.array(texts, pa.string()), cuts)
    batch = EncodedBatch(
        doc_ids=pa.array([document.doc_id for document in documents]),
        langs=pa.array([langs[number % len(langs)] for number in range(len(documents))]),
        input_ids=ids,
        sentence_starts=starts,
    )
    size, special = vocabulary_size(tokenizer), find_special_tokens(tokenizer)
    return commit_tokens(path, [("docstrings", batch)], tokenizer_json, size, special, langs)
