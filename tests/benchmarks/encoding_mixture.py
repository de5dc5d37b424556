"""The token stage on one core and a mixture of languages: a shard of documents to a shard of tokens, cold.

Texts are those of `mixture.py`, all together and English alone. Ids of all texts are compared first. Processor seconds;
reading the vocabulary is not counted.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from data_prep.document import Document
from data_prep.documents import DocumentWriter
from data_prep.selection import Selection, write_selection
from tests.benchmarks.compare import Comparison, compare_all, peer_name
from tests.benchmarks.mixture import documents

NUM_BYTES = int(os.environ.get("CLOZE_BENCHMARK_BYTES", 16_000_000))
VOCAB_SIZE = 32_768
PEER_SHARE = 8
"""Hugging Face tokenizers encode every so-manieth text."""
ROUNDS = 3


def run() -> Iterator[Comparison]:
    """MB of text per second, by tokenizer, on the mixture, on English alone, and on its paragraphs as documents; with
    and without sentences."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        mixture = list(documents(NUM_BYTES))
        english = [(lang, text) for lang, text in mixture if lang == "en"]
        paragraphs = [(lang, line) for lang, text in english for line in text.split("\n") if line]
        texts = {
            f"mixture of {' '.join(sorted({lang for lang, _ in mixture}))}": mixture,
            "English": english,
            "English, a document for each paragraph": paragraphs,
        }
        for name, tokenizer_json in _tokenizers([text for _, text in mixture]).items():
            for what, chosen in texts.items():
                stage = _Stage(Path(scratch), tokenizer_json, chosen)
                yield from stage.compared(f"{name}, {what}")


class _Stage:
    """One shard of documents, and what is done with it."""

    def __init__(self, scratch: Path, tokenizer_json: str, texts: list[tuple[str, str]]) -> None:
        from data_prep.stages.tokenize import TokensSplit

        self._texts = [text for _, text in texts]
        self._num_bytes = sum(len(text.encode("utf-8")) for text in self._texts)
        shard, selection = scratch / "documents.parquet", scratch / "selection.parquet"
        self._tokenizer, self._out = scratch / "tokenizer.json", scratch / "tokens.arrow"
        with DocumentWriter(shard) as writer:
            for number, (lang, text) in enumerate(texts):
                writer.add(Document(f"d{number}", "mixture", f"file:{number}", "", lang, text))
        write_selection(selection, Selection.whole(np.arange(len(texts))))
        no_rows = scratch / "no-rows.parquet"
        write_selection(no_rows, Selection.whole(np.arange(0)))
        self._tokenizer.write_text(tokenizer_json, encoding="utf-8")
        self._split = {
            sentences: TokensSplit(shard, selection, self._tokenizer, "mixture", sentences, "uint32")
            for sentences in ("none", "blingfire")
        }
        self._nothing = TokensSplit(shard, no_rows, self._tokenizer, "mixture", "none", "uint32")

    def compared(self, what: str) -> list[Comparison]:
        """With and without sentences, against each peer."""
        encoder = self._require_equal_ids()
        ours = {
            f"token stage, {what}, sentences: {sentences} (by {encoder})": lambda sentences=sentences: (
                self._encode(sentences)
            )
            for sentences in self._split
        }
        return compare_all(ours, dict(self._peers()), "MB", self._num_bytes / 1e6, ROUNDS)

    def _encode(self, sentences: str) -> float:
        from cluster.artefacts.manifest import hash_file
        from data_prep.stages import tokenize

        tokenize._encoders.cache_clear()
        tokenize.tokenize_documents(self._nothing, self._out)
        started = time.process_time()
        tokenize.tokenize_documents(self._split[sentences], self._out)
        hash_file(self._out)
        return time.process_time() - started

    def _require_equal_ids(self) -> str:
        """Compare all ids with those of Hugging Face tokenizers; returns the name of the encoder."""
        from tokenizers import Tokenizer

        from data_prep.stages.tokenize import tokenize_documents

        result = tokenize_documents(self._split["none"], self._out)
        tokenizer = Tokenizer.from_file(str(self._tokenizer))
        tokenizer.encode_special_tokens = True
        with pa.ipc.open_stream(str(self._out)) as reader:
            rows = chain.from_iterable(batch["input_ids"] for batch in reader)
            for text, row in zip(self._texts, rows, strict=True):
                expected = tokenizer.encode(text, add_special_tokens=False).ids
                if not np.array_equal(expected, row.values.to_numpy()):
                    raise AssertionError(f"other ids than tokenizers: {text[:100]!r}")
        (encoder,) = (name for name in result.stats if name.startswith("shards_by_"))
        return encoder.removeprefix("shards_by_")

    def _peers(self) -> Iterator[tuple[str, Callable[[], float]]]:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self._tokenizer))
        some = self._texts[::PEER_SHARE]
        share = sum(len(text.encode("utf-8")) for text in some) / self._num_bytes
        yield (
            peer_name("tokenizers", "encode_batch, text in memory"),
            lambda: _seconds(lambda: tokenizer.encode_batch(some, add_special_tokens=False)) / share,
        )
        parts = orjson.loads(self._tokenizer.read_bytes()) | {"post_processor": None}
        if parts["model"]["type"] == "BPE":
            yield peer_name("fastokens", "alone, text in memory"), lambda: self._by_fastokens(parts)

    def _by_fastokens(self, parts: dict) -> float:
        import fastokens

        encoder = fastokens.Tokenizer.from_json_str(orjson.dumps(parts).decode())
        return _seconds(lambda: encoder.encode_batch_flat(self._texts, False, True))


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _tokenizers(texts: list[str]) -> dict[str, str]:
    """Published ones, and others trained on some of the texts."""
    from data_prep.tokenizers import byte_level_bpe, sentencepiece, wordpiece
    from data_prep.tokenizers.config import ByteLevelBPE, SentencePiece, WordPiece
    from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer

    published = Path(os.environ["CLOZE_DATA"]) / "tokenizers"
    some = texts[::4]
    return {
        "GPT-2": read_tokenizer(find_tokenizer(published / "gpt2")),
        "byte-level BPE of the mixture": byte_level_bpe.train(some, ByteLevelBPE(vocab_size=VOCAB_SIZE)),
        "BERT uncased": read_tokenizer(find_tokenizer(published / "bert-base-uncased")),
        "WordPiece of the mixture": wordpiece.train(some, WordPiece(vocab_size=VOCAB_SIZE)),
        "unigram of the mixture": sentencepiece.train(some, SentencePiece(vocab_size=VOCAB_SIZE)),
    }
