"""Training of a byte-level BPE, against Hugging Face tokenizers; and what other trainers learn.

`pip install -r requirements-bench.txt` brings the libraries that are only measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tests.benchmarks.compare import Comparison, compare, peer_name

TEXT_BYTES = 65_000_000
VOCAB_SIZE = 32_768
NUM_ENTRIES = VOCAB_SIZE - 5
"""Without the special tokens, which other trainers know nothing of."""
MIN_FREQUENCY = 2
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def run() -> list[Comparison]:
    """MB of Wikipedia per second, merges of 32,768 entries, on all cores; the tokenizer.json must be equal.

    Reads the folder named by CLOZE_DATA.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from data_prep.tokenizers.byte_level_bpe import reference_merges, train, train_bpe, with_merges
    from data_prep.tokenizers.config import ByteLevelBPE
    from data_prep.tokenizers.fast_merges import learn_merges

    texts = _articles(Path(os.environ["CLOZE_DATA"]) / "wikipedia" / "extracted-en")
    config = ByteLevelBPE(vocab_size=VOCAB_SIZE, min_frequency=MIN_FREQUENCY)
    if train(texts, config) != train_bpe(texts, VOCAB_SIZE, MIN_FREQUENCY):
        raise AssertionError("the two trainers learned different tokenizers")
    expected = reference_merges(texts, NUM_ENTRIES, MIN_FREQUENCY)
    if learn_merges(texts, NUM_ENTRIES, MIN_FREQUENCY, reference_merges, with_merges) is None:
        raise AssertionError("the fast trainer was not used, so there is nothing to compare")
    for name, learn in _OTHERS.items():
        print(f"  {name}: {_outcome(name, learn, texts, expected)}", flush=True)
    megabytes = sum(len(text.encode("utf-8")) for text in texts) / 1e6
    return [
        compare(
            f"training a byte-level BPE of {VOCAB_SIZE:,} entries, {megabytes:.0f} MB of Wikipedia, equal result",
            peer_name("tokenizers", "BpeTrainer"),
            "MB",
            megabytes,
            lambda: train(texts, config),
            lambda: train_bpe(texts, VOCAB_SIZE, MIN_FREQUENCY),
            rounds=3,
        )
    ]


def _articles(directory: Path) -> list[str]:
    """Articles of extracted Wikipedia, TEXT_BYTES of them."""
    texts, num_bytes = [], 0
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        for block in path.read_text(encoding="utf-8").split("</doc>"):
            text = block.partition(">")[2]
            texts.append(text)
            num_bytes += len(text.encode("utf-8"))
            if num_bytes > TEXT_BYTES:
                return texts
    return texts


def _outcome(
    name: str, learn: Callable[[list[str]], list[str]], texts: list[str], expected: list[tuple[str, str]]
) -> str:
    """How long a trainer takes and where its merges first differ: the reason why it is or is not used."""
    if find_spec(name) is None:
        return "not installed; pip install -r requirements-bench.txt"
    started = time.perf_counter()
    entries = learn(texts)
    seconds = time.perf_counter() - started
    wanted = list(map("".join, expected))
    if entries == wanted:
        return f"{seconds:.1f} s, all {len(wanted):,} merges equal; {_USE[name]}"
    first = next((k for k, (a, b) in enumerate(zip(entries, wanted, strict=False)) if a != b), len(entries))
    common = len(set(entries) & set(wanted))
    return (
        f"{seconds:.1f} s, merges differ from number {first:,} on, {common:,} of {len(wanted):,} entries in common;"
        " not used, because trained tokenizers would not be those of tokenizers"
    )


def _gigatoken(texts: list[str]) -> list[str]:
    from data_prep.tokenizers import fast_merges

    return list(map("".join, fast_merges._gigatoken(texts, NUM_ENTRIES)))


def _rustbpe(texts: list[str]) -> list[str]:
    import rustbpe  # pyright: ignore[reportMissingImports]

    from data_prep.tokenizers.fast_merges import byte_alphabet

    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(iter(texts), NUM_ENTRIES, pattern=GPT2_PATTERN)
    ranked = sorted(tokenizer.get_mergeable_ranks(), key=lambda item: item[1])
    alphabet = byte_alphabet()
    return ["".join(alphabet[byte] for byte in entry) for entry, _ in ranked[256:]]


_OTHERS = {"gigatoken": _gigatoken, "rustbpe": _rustbpe}
"""Trainers by package."""
_USE = {
    "gigatoken": "does the work where it learns the same on a sample",
    "rustbpe": "equal on this text, but nothing makes sure of ties and it is not used",
}
"""What becomes of a trainer that gives equal merges."""
