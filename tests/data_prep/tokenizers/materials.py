"""Text to train on, text that tokenizers get wrong, and shards of it on disk."""

import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from data_prep.document import Document
from data_prep.documents import DocumentWriter
from data_prep.ragged import Ragged
from data_prep.selection import Selection, write_selection

ROOT = Path(__file__).parents[2]
_SPACES = ["  ", "     ", "\n\n", "\r\n", *"\t\x0b\x0c\x85\xa0\u1680\u2003\u2028\u202f\u3000"]
_INVISIBLE = [*"\x00\x01\x1c\x7f\xad\u180e\u200b\u200d\u2060\ufeff\ufffd\ue000\U000f0000"]
_LATIN = "'s~'S~'ll~'re ~’s~don't~''~e\u0301~a\u0323\u0307~\u0301~İ~ß~ſ~Å~ﬁ~Ω~ǅ"
_OTHER = "👩‍👩‍👧~🏳️‍🌈~🇩🇪~1️⃣~שלום~مرحبا~١٢٣~१२~٪~½~²~Ⅷ~一二~日本語~カタカナ~ﾊﾟ~한국어~ᄒ~ก็"
_SIGNS = "<s>~<|endoftext|>~[MASK]~##a~▁~<unk>~http://a.b/c?d=e~!!!~_~$5.00~^~…~—"
pieces = st.sampled_from(
    [*_SPACES, *_INVISIBLE, *_LATIN.split("~"), *_OTHER.split("~"), *_SIGNS.split("~"), "~", "a" * 101]
)
words = st.sampled_from(["the", " the", "The", "word", "Tokenization", " naïve", "x", "1984", " 007"])
anything = st.characters(exclude_categories=("Cs",))
texts = st.lists(st.one_of(pieces, words, anything), max_size=25).map("".join)
"""Odd white space, marks, joiners, scripts, and the edges of pre-tokenizers' rules."""


INPUTS = [path.read_text("utf-8", "replace") for path in sorted((ROOT / "golden" / "inputs").iterdir())]
"""Small files of every source: prose, markup and JSON, in several scripts."""


def is_settled(character: str) -> bool:
    """Whether all versions of Unicode that libraries carry agree on what the character is."""
    before, now = unicodedata.ucd_3_2_0.category(character), unicodedata.category(character)
    return before == now != "Cn"


settled_texts = st.lists(st.one_of(pieces, words, anything.filter(is_settled)), max_size=25).map("".join)
"""The same without characters on which versions of Unicode differ."""


def corpus() -> list[str]:
    """Sixty lines in twenty texts, the same every time."""
    generator = random.Random(3)
    stems = ["".join(generator.choices("aehilnorstüß", k=generator.randint(3, 6))) for _ in range(300)]
    endings = ["", "ing", "ed", "s", "ness"]
    lines = [
        " ".join(generator.choice(stems).capitalize() + generator.choice(endings) for _ in range(40)) + "."
        for _ in range(60)
    ]
    return ["\n".join(lines[start : start + 3]) for start in range(0, 60, 3)]


def no_cuts(count: int) -> Ragged:
    """No sentence ends in so many texts."""
    return Ragged.of([np.empty(0, np.int64)] * count)


def encode(encoder, text: str) -> np.ndarray:
    """Ids that an encoder of documents gives a text."""
    return encoder.encode(pa.array([text]), no_cuts(1))[0][0]


def write_shard(path: Path, documents: Sequence[Document], rows: Sequence[int] | None = None) -> Path:
    """Write a document shard; returns the selection of these rows beside it, or of all."""
    with DocumentWriter(path) as writer:
        for each in documents:
            writer.add(each)
    kept = np.arange(len(documents)) if rows is None else np.array(rows, dtype=np.int64)
    write_selection(path.with_suffix(".selection"), Selection.whole(kept))
    return path.with_suffix(".selection")
