"""Looking words up gives the ids and sentence starts of the reference, for every tokenizer that allows it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from data_prep.ragged import Ragged
from data_prep.sentences import cut_sentences
from data_prep.tokenizers import word_lexicon, wordpiece
from data_prep.tokenizers.byte_level_bpe import train_bpe
from data_prep.tokenizers.config import WordLexicon, WordPiece
from data_prep.tokenizers.fast import make_fast_encoder
from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.sentencepiece_conversion import convert
from data_prep.tokenizers.sentencepiece_training import train_model
from data_prep.tokenizers.word_cache import WordCacheEncoder, encodes_words_apart
from tests.data_prep.tokenizers import adversarial
from tests.data_prep.tokenizers.test_sentencepiece import config, corpus

TEXTS = [*corpus(), "The naïve river, 12 o'clock! Über 日本語. 한국어 “café” — 3.5 km.\n\nSchön."]


def sentencepiece(model: str, normalization: str) -> str:
    return convert(train_model(TEXTS, config(model, normalization=normalization), 600))


def like_t5() -> str:
    """As T5's published tokenizer.json: words split first, then marked."""
    tokenizer = Tokenizer.from_str(sentencepiece("unigram", "nmt_nfkc"))
    tokenizer.normalizer = tokenizer.normalizer[0]  # pyright: ignore[reportIndexIssue]
    mark = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    return tokenizer.to_str()


MAKERS = {
    "wordpiece": lambda: wordpiece.train(TEXTS, WordPiece(vocab_size=800)),
    "cased wordpiece": lambda: wordpiece.train(TEXTS, WordPiece(vocab_size=800, lowercase=False)),
    "word lexicon": lambda: word_lexicon.train(TEXTS, WordLexicon(vocab_size=1024)),
    "unigram": lambda: sentencepiece("unigram", "nmt_nfkc"),
    "unigram, folded": lambda: sentencepiece("unigram", "nfkc_cf"),
    "unigram, as it is": lambda: sentencepiece("unigram", "identity"),
    "bpe": lambda: sentencepiece("bpe", "nmt_nfkc"),
    "T5": like_t5,
}


@pytest.fixture(scope="module")
def trained():
    return {kind: make() for kind, make in MAKERS.items()}


@pytest.fixture(scope="module", params=[*MAKERS, "BERT"])
def encoders(request, trained):
    """(by looking words up, the reference)"""
    if request.param == "BERT":
        path = request.getfixturevalue("corpora") / "tokenizers" / "bert-base-uncased"
        tokenizer_json = read_tokenizer(find_tokenizer(path))
    else:
        tokenizer_json = trained[request.param]
    assert isinstance(make_fast_encoder(tokenizer_json), WordCacheEncoder)
    return WordCacheEncoder(tokenizer_json), ReferenceEncoder(tokenizer_json)


def assert_equal(encoders, texts, cuts):
    ours, theirs = (encoder.encode(pa.array(texts, pa.string()), cuts) for encoder in encoders)
    for mine, true in zip(ours, theirs, strict=True):
        assert [row.tolist() for row in map(mine.__getitem__, range(len(mine)))] == [
            row.tolist() for row in map(true.__getitem__, range(len(true)))
        ]


@st.composite
def texts_with_cuts(draw):
    """Texts and any character boundaries in them, or the sentences that are found there."""
    texts = draw(st.lists(adversarial.texts | st.text(" \n.a\xa0\u0301▁", max_size=12), max_size=3))
    if draw(st.booleans()):
        return texts, cut_sentences(pa.array(texts, pa.string()), pa.array(["en"] * len(texts)), "blingfire")
    cuts = []
    for text in texts:
        places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)))
        cuts.append([len(text[:place].encode()) for place in places if place < len(text)])
    return texts, Ragged.of([np.array(own, dtype=np.int64) for own in cuts])


@settings(max_examples=100, deadline=None)
@given(case=texts_with_cuts())
@example(case=(["", " ", "a"], Ragged.of([np.empty(0, dtype=np.int64)] * 3)))
@example(
    case=(
        ["a \u0301\u0308b", "\u0600 \u0301x", "▁ ▁a▁ b", "a¨ ¨b"],
        Ragged.of([np.array(cuts) for cuts in ([1, 2, 4], [2, 3, 5], [3, 4, 7], [1, 3, 4])]),
    )
)
@example(case=(["\ue000\r\n\xad", "A.\r\nB"], Ragged.of([np.array([4]), np.array([3])])))
@example(
    case=(["One. Two.", "x.\n\n  日本。日本 y"], Ragged.of([np.array([4, 5]), np.array([3, 4, 5, 6, 9])]))
)
@example(case=(["A ſ\u200cｱÄ", "´\u1dee就 b"], Ragged.of([np.array([4, 7]), np.array([2, 5])])))
@example(case=(["x \x01日y", "Ǆ\x1c é"], Ragged.of([np.array([3, 6]), np.array([2, 3, 4])])))
@example(case=(["인\u200c👩"], Ragged.of([np.array([3, 6])])))
@example(case=(["Ƥ\U0001e00e\u094d b", "a \r\n!\u302eX"], Ragged.of([np.array([6, 9]), np.array([3, 4, 5])])))
def test_ids_and_sentence_starts_are_those_of_the_reference_on_any_text(encoders, case):
    assert_equal(encoders, *case)


def test_real_text_is_equal_run_by_run(encoders, corpora, monkeypatch):
    from data_prep.tokenizers import word_cache

    monkeypatch.setattr(word_cache, "_RUN_BYTES", 20_000)
    path = min((corpora / "wikitext-2").rglob("*valid*"))
    texts = path.read_text(encoding="utf-8").split("\n \n")[:60]
    cuts = cut_sentences(pa.array(texts), pa.array(["en"] * len(texts)), "blingfire")
    assert_equal(encoders, texts, cuts)
    assert len(cuts.values) > 100


@pytest.mark.parametrize("kind", ["wordpiece", "word lexicon", "unigram", "bpe", "T5"])
def test_sentences_between_words_need_no_reference(trained, kind, monkeypatch):
    texts = ["One two. Three four.\n\nFive six!  Seven. नमस्ते दुनिया। \xa0Ja."] * 3
    cuts = cut_sentences(pa.array(texts), pa.array(["en"] * 3), "blingfire")
    fast, reference = WordCacheEncoder(trained[kind]), ReferenceEncoder(trained[kind])
    expected = reference.encode(pa.array(texts), cuts)

    def forbidden(*arguments):
        raise AssertionError("a document was left to the reference")

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceEncoder, "encode", forbidden)
        ours = fast.encode(pa.array(texts), cuts)
    assert all(mine.equals(true) for mine, true in zip(ours, expected, strict=True))


def test_equal_segmentations_are_told_apart_by_the_same_rounding(trained):
    tokenizer = Tokenizer.from_str(trained["unigram"])
    scores = {"▁13": -9.517918586730957, ",": -3.0105206966400146, "55": -11.067779541015625}
    scores |= {"<unk>": -1e6, "5": -8.060866355895996, "▁": -9.0, "▁0": -9.25}
    tokenizer.model = models.Unigram(list(scores.items()), 3, False)
    tokenizer_json = tokenizer.to_str()  # which Hugging Face tokenizers reads with other last bits
    encoders = WordCacheEncoder(tokenizer_json), ReferenceEncoder(tokenizer_json)
    texts = ["13,555 55,55,55 0555", *(",".join("5" * k for k in range(1, n)) for n in range(2, 20))]
    assert_equal(encoders, texts, Ragged.of([np.empty(0, dtype=np.int64)] * len(texts)))


def test_remembered_words_take_bounded_memory(trained):
    encoder = WordCacheEncoder(trained["wordpiece"], cache_bytes=10_000)
    reference = ReferenceEncoder(trained["wordpiece"])
    for number in range(20):
        texts = pa.array([" ".join(f"word{number}x{k}" for k in range(50))])
        none = Ragged.of([np.empty(0, dtype=np.int64)])
        assert encoder.encode(texts, none)[0].equals(reference.encode(texts, none)[0])
        assert encoder._table.num_bytes < 2 * 10_000


@pytest.mark.parametrize("change", ["normalizer", "added token", "prefix", "splitter", "no splitter"])
def test_tokenizers_that_may_look_across_white_space_are_left_to_the_reference(trained, change):
    tokenizer = Tokenizer.from_str(trained["unigram"])
    assert encodes_words_apart(tokenizer.to_str())
    if change == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a b", "c"), tokenizer.normalizer])  # pyright: ignore[reportArgumentType]
    elif change == "added token":
        tokenizer.add_tokens([AddedToken("two words")])
    elif change == "prefix":
        tokenizer.normalizer = normalizers.NFC()
    elif change == "splitter":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    else:
        tokenizer.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    assert not encodes_words_apart(tokenizer.to_str())


def test_byte_level_tokenizers_do_not_encode_words_apart():
    assert not encodes_words_apart(train_bpe(TEXTS, 600, 1))
