"""Sentence starts in tokens, and that the fast encoder is used only where it equals the reference."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import data_prep.tokenizers.fast
from data_prep.ragged import Ragged
from data_prep.sentences import cut_sentences
from data_prep.tokenizers.byte_level_bpe import train_bpe
from data_prep.tokenizers.fast import (
    FastEncoder,
    GigatokenEncoder,
    agrees_with,
    is_byte_level,
    make_fast_encoder,
    settled_characters,
)
from data_prep.tokenizers.lookup_kernel import find_others
from data_prep.tokenizers.reference import ReferenceEncoder

FRAGMENTS = [
    *(
        "A",
        "é",
        "they",
        "'s",
        "'re",
        "'",
        "12",
        "3.",
        "Mr. ",
        "U.S. ",
        "中文",
        "。",
        "「あ」",
        "ア",
        "…",
        "“",
        "”",
    ),
    *(
        ". ",
        "! ",
        "? ",
        ".",
        "  ",
        " ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "\x85",
        "\u2028",
        "\u3000",
        "\xa0",
        "\x00",
    ),
    *("\u200b", "\ufeff", "\x1c", "\u0301", "👍", "<s>", "</s>", "<mask>", " <mask>", "<pad>"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=40).map("".join)


def cut_in(texts):
    return cut_sentences(pa.array(texts, pa.string()), pa.array(["en"] * len(texts)), "blingfire")


@pytest.fixture(scope="module")
def tokenizer_json():
    training = [
        "The quick brown fox. It's 12 o'clock! They're here.\n\nWhat now?  Two spaces.",
        "中文。你好吗？好。「え」あ。ア",
    ]
    return train_bpe(training * 3, vocab_size=700, min_frequency=1)


@pytest.fixture(scope="module")
def encoders(tokenizer_json):
    return FastEncoder(tokenizer_json), ReferenceEncoder(tokenizer_json), GigatokenEncoder(tokenizer_json)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(TEXTS, max_size=3))
@example(texts=["One.  Two.\n\n Three. 四。五。 <mask> it's\n's", "", "Four. Five."])
def test_fast_encoder_gives_the_ids_and_sentence_starts_of_the_reference(encoders, texts):
    cuts = cut_in(texts)
    fast, theirs, faster = (encoder.encode(pa.array(texts, pa.string()), cuts) for encoder in encoders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_prep.tokenizers.fast, "_FEW_BYTES", 0)
        in_one_call = encoders[2].encode(pa.array(texts, pa.string()), cuts)
    for ours in (fast, faster, in_one_call):
        assert all(mine.equals(true) for mine, true in zip(ours, theirs, strict=True))


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(
        st.lists(
            st.sampled_from(["a", "plain text of thirty-two letters", "é", "中", "👍", "\u200b", "ˈ", "."])
        ).map("".join),
        max_size=6,
    )
)
def test_texts_with_characters_that_are_not_settled_are_found(texts):
    known = settled_characters()
    text = Ragged.of([np.frombuffer(text.encode(), dtype=np.uint8) for text in ["", *texts]])
    others = np.zeros(len(text), dtype=bool)
    find_others(text.values, text.offsets, known, others)
    expected = [any(ord(c) >= len(known) or not known[ord(c)] for c in text) for text in texts]
    assert others.tolist() == [False, *expected]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 99), max_size=4)), min_size=1, max_size=9)
)
def test_merged_rows_are_in_order(rows):
    first, second = (
        Ragged.of([np.array(row, dtype=np.uint32) for own, row in rows if own == part])
        for part in (False, True)
    )
    merged = Ragged.merge(first, second, np.array([own for own, _ in rows]))
    assert [merged[row].tolist() for row in range(len(rows))] == [row for _, row in rows]


def test_a_sentence_starts_with_the_token_of_its_first_word(encoders):
    text = "The quick brown fox. It's here.\nWhat now?"
    for encoder in encoders:
        ids, starts = encoder.encode(pa.array([text]), cut_in([text]))
        joined = [ids[0][start:end] for start, end in zip(starts[0], [*starts[0][1:], None], strict=True)]
        encode = [
            encoder.encode(pa.array([part]), Ragged.of([np.empty(0, np.int64)]))[0][0]
            for part in ("The quick brown fox.", " It's here.", "\nWhat now?")
        ]
        assert [part.tolist() for part in joined] == [part.tolist() for part in encode]


def test_text_that_spells_special_tokens_becomes_ordinary_tokens(encoders):
    for encoder in encoders:
        ids, _ = encoder.encode(pa.array(["<s> <mask> </s>"]), Ragged.of([np.empty(0, np.int64)]))
        assert len(ids[0]) > 3
        assert ids[0].min() >= 5


def test_an_encoder_that_differs_anywhere_in_the_sample_is_found_out(encoders):
    fast, reference, _ = encoders
    texts = [f"Document {number}. It has text." for number in range(40)]
    cuts, texts = cut_in(texts), pa.array(texts)
    assert agrees_with(fast, reference, texts, cuts)

    class OffByOne:
        name = "wrong"

        def encode(self, texts, cuts):
            ids, starts = fast.encode(texts, cuts)
            return Ragged(np.append(ids.values[:-1], ids.values[-1] + 1), ids.offsets), starts

    assert not agrees_with(OffByOne(), reference, texts, cuts)


@pytest.mark.parametrize("change", ["normalizer", "prefix space", "added token", "other pattern"])
def test_tokenizers_that_do_not_keep_every_byte_are_left_to_the_reference(tokenizer_json, change):
    from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

    tokenizer = Tokenizer.from_str(tokenizer_json)
    assert is_byte_level(tokenizer.to_str())
    if change == "normalizer":
        tokenizer.normalizer = normalizers.NFKC()
    elif change == "prefix space":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif change == "added token":
        tokenizer.add_tokens([AddedToken("quick brown")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not is_byte_level(tokenizer.to_str())
    assert make_fast_encoder(tokenizer.to_str()) is None


def test_any_tokenizer_gets_sentence_starts_from_the_reference():
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0, "One": 1, ".": 2, "Two": 3, "words": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = "One.  Two words.\n\nOne."
    ids, starts = ReferenceEncoder(tokenizer.to_str()).encode(pa.array([text]), cut_in([text]))
    assert ids[0].tolist() == [1, 2, 3, 4, 2, 1, 2]
    assert starts[0].tolist() == [0, 2, 5]
