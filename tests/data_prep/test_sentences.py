"""Where sentences are cut, and that cutting does not change the tokens."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep import sentences
from data_prep.sentences import cut_points, split_at
from data_prep.tokenizers.byte_level_bpe import train_bpe
from data_prep.tokenizers.fast import FastEncoder, agrees_with, make_fast_encoder, splits_like_gpt2
from data_prep.tokenizers.reference import ReferenceEncoder

FRAGMENTS = [
    *("A", "é", "they", "'s", "'re", "'", "12", "3.", "Mr. ", "U.S. ", "中文", "。", "「あ」", "ア", "…"),
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
        "\x0b",
        "\x85",
        "\u2028",
        "\u3000",
        "\xa0",
    ),
    *("\u200b", "\ufeff", "\x1c", "\x1f", "\u180e", "\x00", "\u0301", "👍🏽", "“", "”", "‘", "\U00010400"),
    *("<s>", "</s>", "<mask>", " <mask>", "<pad>"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=40).map("".join)


@pytest.fixture(scope="module")
def tokenizer_json():
    training = [
        "The quick brown fox. It's 12 o'clock! They're here.\n\nWhat now?  Two spaces.",
        "中文。你好吗？好。「え」あ。ア",
    ]
    return train_bpe(training * 3, vocab_size=700, min_frequency=1)


@pytest.fixture(scope="module")
def encoders(tokenizer_json):
    return FastEncoder(tokenizer_json), ReferenceEncoder(tokenizer_json)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS)
@example(text="One.  Two.\n\n Three. 四。五。 <mask> it's\n's")
def test_encoding_sentence_by_sentence_gives_the_ids_of_the_whole_text(encoders, text):
    fast, reference = encoders
    cuts = cut_points(text, "blingfire")
    ((ids, starts),) = fast.encode([text], [cuts])
    ((true_ids, true_starts),) = reference.encode([text], [cuts])
    assert ids.tolist() == true_ids.tolist()
    assert starts.tolist() == true_starts.tolist()


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_sentences_joined_are_the_text_and_none_is_blank(text):
    pieces = split_at(text, cut_points(text, "blingfire"))
    assert "".join(pieces) == text
    assert all(piece.strip() for piece in pieces) or not text.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello world. Next one.", ["Hello world.", " Next one."]),
        ("Two spaces.  Next one.", ["Two spaces. ", " Next one."]),
        ("Mr. Smith went home. He slept.", ["Mr. Smith went home.", " He slept."]),
        ("A title\nA paragraph", ["A title", "\nA paragraph"]),
        ("One\n\n\nTwo", ["One\n\n", "\nTwo"]),
        ("中文。你好吗？好。", ["中文。", "你好吗？", "好。"]),
        ("No end", ["No end"]),
        ("\n\n Leading space", ["\n\n Leading space"]),
        ("Trailing space. \n", ["Trailing space. \n"]),
        (" \n ", [" \n "]),
        ("", []),
    ],
)
def test_examples(text, expected):
    assert split_at(text, cut_points(text, "blingfire")) == expected


def test_text_that_spells_special_tokens_becomes_ordinary_tokens(encoders):
    for encoder in encoders:
        ((ids, _),) = encoder.encode(["<s> <mask> </s>"], [np.empty(0, np.int64)])
        assert len(ids) > 3
        assert ids.min() >= 5


def test_long_texts_are_cut_in_blocks_as_they_are_in_one(monkeypatch):
    text = "\n".join(f"Line {number} is here. It has two sentences." for number in range(300))
    whole = cut_points(text, "blingfire")
    monkeypatch.setattr(sentences, "BLOCK_CHARACTERS", 500)
    assert np.array_equal(cut_points(text, "blingfire"), whole)
    assert len(whole) == 599


def test_without_sentences_nothing_is_cut():
    assert len(cut_points("One. Two.\nThree.", "none")) == 0


def test_an_encoder_that_differs_anywhere_in_the_sample_is_found_out(encoders):
    fast, reference = encoders
    texts = [f"Document {number}. It has text." for number in range(40)]
    cuts = [cut_points(text, "blingfire") for text in texts]
    assert agrees_with(fast, reference, texts, cuts)

    class OffByOne:
        name, batch_characters = "wrong", 1 << 20

        def encode(self, texts, cuts):
            encoded = fast.encode(texts, cuts)
            encoded[-1] = (encoded[-1][0] + np.uint32(1), encoded[-1][1])
            return encoded

    assert not agrees_with(OffByOne(), reference, texts, cuts)


@pytest.mark.parametrize("change", ["normalizer", "prefix space", "added token", "other pattern"])
def test_tokenizers_that_do_not_split_like_gpt2_are_never_given_sentences(tokenizer_json, change):
    from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

    tokenizer = Tokenizer.from_str(tokenizer_json)
    assert splits_like_gpt2(tokenizer.to_str())
    if change == "normalizer":
        tokenizer.normalizer = normalizers.NFKC()
    elif change == "prefix space":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif change == "added token":
        tokenizer.add_tokens([AddedToken("quick brown")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not splits_like_gpt2(tokenizer.to_str())
    assert make_fast_encoder(tokenizer.to_str(), "blingfire") is None


def test_any_tokenizer_gets_sentence_starts_from_the_reference():
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0, "One": 1, ".": 2, "Two": 3, "words": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = "One.  Two words.\n\nOne."
    reference = ReferenceEncoder(tokenizer.to_str())
    ((ids, starts),) = reference.encode([text], [cut_points(text, "blingfire")])
    assert ids.tolist() == [1, 2, 3, 4, 2, 1, 2]
    assert starts.tolist() == [0, 2, 5]
