"""Text that tokenizers get wrong: odd white space, marks, joiners, scripts, and the edges of pre-tokenizers' rules."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

_PIECES = [
    *(
        "  ",
        "     ",
        "\t",
        "\n\n",
        "\r\n",
        "\x0b",
        "\x0c",
        "\x85",
        "\xa0",
        "\u1680",
        "\u2003",
        "\u2028",
        "\u202f",
        "\u3000",
    ),
    *(
        "\x00",
        "\x01",
        "\x1c",
        "\x7f",
        "\xad",
        "\u180e",
        "\u200b",
        "\u200d",
        "\u2060",
        "\ufeff",
        "\ufffd",
        "\ue000",
        "\U000f0000",
    ),
    *(
        "'s",
        "'S",
        "'ll",
        "'re ",
        "’s",
        "don't",
        "''",
        "e\u0301",
        "a\u0323\u0307",
        "\u0301",
        "İ",
        "ß",
        "ſ",
        "Å",
        "ﬁ",
        "Ω",
        "ǅ",
    ),
    *(
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "🇩🇪",
        "1️⃣",
        "שלום",
        "مرحبا",
        "١٢٣",
        "१२",
        "٪",
        "½",
        "²",
        "Ⅷ",
        "一二",
        "日本語",
        "カタカナ",
        "ﾊﾟ",
        "한국어",
        "ᄒ",
        "ก็",
    ),
    *(
        "<s>",
        "<|endoftext|>",
        "[MASK]",
        "##a",
        "▁",
        "<unk>",
        "http://a.b/c?d=e",
        "a" * 101,
        "!!!",
        "_",
        "$5.00",
        "^",
        "~",
        "…",
        "—",
    ),
]
pieces = st.sampled_from(_PIECES)
words = st.sampled_from(["the", " the", "The", "word", "Tokenization", " naïve", "x", "1984", " 007"])
anything = st.characters(exclude_categories=("Cs",))
texts = st.lists(st.one_of(pieces, words, anything), max_size=25).map("".join)
"""Mixtures of all that."""


def is_settled(character: str) -> bool:
    """Whether all versions of Unicode that libraries carry agree on what the character is."""
    before, now = unicodedata.ucd_3_2_0.category(character), unicodedata.category(character)
    return before == now != "Cn"


settled_texts = st.lists(st.one_of(pieces, words, anything.filter(is_settled)), max_size=25).map("".join)
"""The same without characters on which versions of Unicode differ."""
