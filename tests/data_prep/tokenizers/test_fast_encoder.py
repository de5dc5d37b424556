"""The fast encoder gives the ids and sentence starts of the reference, and no text becomes a control id."""

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from data_prep.ragged import Ragged
from data_prep.sentences import cut_sentences
from data_prep.tokenizers import ByteLevelBPE, SentencePiece, WordLexicon, WordPiece
from data_prep.tokenizers.fast import encodes_words_apart, is_byte_level, make_fast_encoder
from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder, control_names
from data_prep.tokenizers.sentencepiece import convert, train_model
from tests.data_prep.tokenizers import materials
from tests.data_prep.tokenizers.materials import INPUTS, corpus, no_cuts
from tests.golden.tokens import LETTERS

TEXTS = [*corpus(), "The naïve river, 12 o'clock! Über 日本語. 한국어 “café” — 3.5 km.\n\nSchön."]


def sentencepiece(model: str, normalization: str) -> str:
    extra = ["en_XX", "<mask>", "<extra_id_0>"]
    config = SentencePiece(model=model, normalization=normalization, character_coverage=1.0)
    return convert(train_model(TEXTS, config, 600), extra)


def like_t5() -> str:
    """A unigram tokenizer as T5's was published: control symbols are pieces, words are split first, then marked."""
    parts = orjson.loads(sentencepiece("unigram", "nmt_nfkc"))
    parts["model"]["vocab"] = [[name, max(score, -20.0)] for name, score in parts["model"]["vocab"]]
    tokenizer = Tokenizer.from_str(orjson.dumps(parts).decode())
    tokenizer.normalizer = tokenizer.normalizer[0]  # pyright: ignore[reportIndexIssue]
    mark = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    return tokenizer.to_str()


def word_level() -> str:
    """Words between white space, special tokens among them."""
    names = ["[UNK]", "[PAD]", "<s>", "</s>", "[MASK]", "a", "b"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[MASK]", "<s>"])
    return tokenizer.to_str()


def like_llama2() -> str:
    """BPE with bytes to fall back on, without words, whose merges spell a special token."""
    letters = ["▁", "<", "s", ">", "/", "a", "b", "<s", "<s>", "</", "</s", "</s>"]
    entries = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("<", "s"), ("<s", ">"), ("<", "/"), ("</", "s"), ("</s", ">")]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


FAST = {
    "byte-level BPE": lambda: ByteLevelBPE(vocab_size=700, min_frequency=1).train(TEXTS)[0],
    "wordpiece": lambda: WordPiece(vocab_size=800).train(TEXTS)[0],
    "cased wordpiece": lambda: WordPiece(vocab_size=800, lowercase=False).train(TEXTS)[0],
    "unigram": lambda: sentencepiece("unigram", "nmt_nfkc"),
    "unigram, folded": lambda: sentencepiece("unigram", "nfkc_cf"),
    "unigram, as it is": lambda: sentencepiece("unigram", "identity"),
    "T5": like_t5,
}
SLOW = {
    "word lexicon": lambda: WordLexicon(vocab_size=1024).train(TEXTS)[0],
    "SentencePiece BPE": lambda: sentencepiece("bpe", "nmt_nfkc"),
    "word level": word_level,
    "Llama 2": like_llama2,
}


@pytest.fixture(scope="module")
def trained():
    return {kind: make() for kind, make in (FAST | SLOW).items()}


@pytest.fixture(scope="module", params=[*FAST, "BERT", "GPT-2"])
def encoders(request, trained):
    """(tokie, the reference)"""
    if request.param in trained:
        tokenizer_json = trained[request.param]
    else:
        name = {"BERT": "bert-base-uncased", "GPT-2": "gpt2"}[request.param]
        path = request.getfixturevalue("corpora") / "tokenizers" / name
        tokenizer_json = read_tokenizer(find_tokenizer(path))
    fast = make_fast_encoder(tokenizer_json)
    assert fast is not None
    return fast, ReferenceEncoder(tokenizer_json)


def assert_equal(encoders, texts, cuts):
    ours, theirs = (encoder.encode(pa.array(texts, pa.string()), cuts) for encoder in encoders)
    for mine, true in zip(ours, theirs, strict=True):
        assert [row.tolist() for row in mine] == [row.tolist() for row in true]


@st.composite
def texts_with_cuts(draw):
    """Texts and any character boundaries in them, or the sentences that are found there."""
    texts = draw(st.lists(materials.texts | st.text(" \n.a\xa0\u0301▁", max_size=12), max_size=3))
    if draw(st.booleans()):
        return texts, cut_sentences(pa.array(texts, pa.string()), pa.array(["en"] * len(texts)), "blingfire")
    cuts = []
    for text in texts:
        places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)))
        cuts.append([len(text[:place].encode()) for place in places if place < len(text)])
    return texts, Ragged.of([np.array(own, dtype=np.int64) for own in cuts])


def cuts_of(*rows):
    return Ragged.of([np.array(row, dtype=np.int64) for row in rows])


@given(case=texts_with_cuts())
@example(case=(["", " ", "a"], cuts_of([], [], [])))
@example(case=(["One. Two.", "x.\n\n  日本。日本 y"], cuts_of([4, 5], [3, 4, 5, 6, 9])))
@example(case=(["a \u0301\u0308b", "\u0600 \u0301x", "▁ ▁a▁ b"], cuts_of([1, 2, 4], [2, 3, 5], [3, 4, 7])))
@example(case=(["\ue000\r\n\xad", "A.\r\nB"], cuts_of([4], [3])))
@example(case=(["  … 007", " the\t", "\x1c\u3000x"], cuts_of([1, 6], [1], [1])))
def test_ids_and_sentence_starts_are_those_of_the_reference_on_any_text(encoders, case):
    assert_equal(encoders, *case)


def test_files_of_every_source_are_equal(encoders):
    texts = [*INPUTS, *LETTERS.values()]
    cuts = cut_sentences(pa.array(texts), pa.array(["en"] * len(texts)), "blingfire")
    assert_equal(encoders, texts, cuts)


@pytest.mark.parametrize("kind", ["byte-level BPE", "wordpiece", "unigram", "T5"])
def test_plain_sentences_need_no_reference(trained, kind, monkeypatch):
    fast = make_fast_encoder(trained[kind])
    assert fast is not None
    monkeypatch.setattr(ReferenceEncoder, "encode", None)
    texts = pa.array(["The river runs past the city. It is old, and long."])
    _, starts = fast.encode(texts, cut_sentences(texts, pa.array(["en"]), "blingfire"))
    assert len(starts[0]) == 2


@pytest.mark.parametrize("kind", [*FAST, *SLOW])
def test_no_text_becomes_a_control_id(trained, kind):
    tokenizer_json = trained[kind]
    reference = ReferenceEncoder(tokenizer_json)
    plain = Tokenizer.from_str(tokenizer_json)
    names = [name for name in control_names(plain) if name not in ("<unk>", "[UNK]")]
    control = {plain.token_to_id(name) for name in names}
    if kind in ("T5", "word level", "Llama 2"):
        plain.encode_special_tokens = True
        assert control & {
            number for name in names for number in plain.encode(f"a {name} b", add_special_tokens=False).ids
        }
    forms = ("{}", "a{}b", "a {} b", "{0}{0}", "{} 1.")
    texts = pa.array([form.format(name) for name in names for form in forms])
    none = no_cuts(len(texts))
    # Bytes that letters fall back on are no control ids.
    control -= {number for name in names if name.startswith("<0x") for number in [plain.token_to_id(name)]}
    for encoder in filter(None, (reference, make_fast_encoder(tokenizer_json))):
        assert not control & set(encoder.encode(texts, none)[0].values.tolist())
    text = "a b ba"
    assert reference.tokenizer.encode(text).ids == Tokenizer.from_str(tokenizer_json).encode(text).ids


@pytest.mark.parametrize("kind", SLOW)
def test_tokenizers_that_tokie_reads_otherwise_are_left_to_the_reference(trained, kind):
    assert make_fast_encoder(trained[kind]) is None


@pytest.mark.parametrize("kind", ["unigram", "byte-level BPE"])
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", normalizers.Replace("a b", "c")),
        ("added_token", AddedToken("two words")),
        ("pre_tokenizer", pre_tokenizers.Metaspace(prepend_scheme="never", split=False)),
        ("pre_tokenizer", None),
    ],
)
def test_tokenizers_that_look_across_words_or_lose_bytes_are_left_to_the_reference(
    trained, kind, part, value
):
    tokenizer = Tokenizer.from_str(trained[kind])
    if part == "added_token":
        tokenizer.add_tokens([value])
    else:
        setattr(tokenizer, part, value)
    assert not is_byte_level(tokenizer.to_str())
    assert not encodes_words_apart(tokenizer.to_str())


def test_a_unigram_model_whose_text_is_first_changed_across_words_is_left_to_the_reference(trained):
    parts = orjson.loads(trained["unigram"])
    assert encodes_words_apart(trained["unigram"])
    parts["normalizer"]["normalizers"].insert(
        0, {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}
    )
    assert not encodes_words_apart(orjson.dumps(parts).decode())


def test_any_tokenizer_gets_sentence_starts_from_the_reference():
    vocabulary = {"[UNK]": 0, "One": 1, ".": 2, "Two": 3, "words": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = pa.array(["One.  Two words.\n\nOne."])
    cuts = cut_sentences(texts, pa.array(["en"]), "blingfire")
    ids, starts = ReferenceEncoder(tokenizer.to_str()).encode(texts, cuts)
    assert (ids[0].tolist(), starts[0].tolist()) == ([1, 2, 3, 4, 2, 1, 2], [0, 2, 5])
