"""WordPiece: BERT's published vocabulary gives BERT's ids; training is reproducible and greedy matching finds it."""

import unicodedata

import pytest
from hypothesis import given
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers import WordPiece
from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from data_prep.tokenizers.wordpiece import SPECIAL_TOKENS
from tests.data_prep.tokenizers.materials import corpus, encode, settled_texts
from tests.golden.tokens import LETTERS

_CASED = "The the na ##ïve ##ive Word word İ ##s ß Å e E ##\u0301 1 ##9 ##8 ##4 日 本 語 ! ' s $ 5 . 0 ##0 x"
CASED = [*SPECIAL_TOKENS, *_CASED.split(), "한국어", "한", "##국"]


@pytest.fixture(scope="module", params=["small", "published"])
def uncased(request, tmp_path_factory):
    """A folder with BERT's vocabulary, or a small one."""
    if request.param == "published":
        return request.getfixturevalue("corpora") / "tokenizers" / "bert-base-uncased"
    folder = tmp_path_factory.mktemp("small")
    entries = Tokenizer.from_str(
        WordPiece(vocab_size=700).train([*corpus(), *LETTERS.values()])[0]
    ).get_vocab()
    lines = [*sorted(entries, key=entries.__getitem__), "hello", "world"]
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def cased(tmp_path_factory):
    path = tmp_path_factory.mktemp("cased") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in CASED), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(uncased, cased):
    """(our encoder, BERT's own algorithm) for an uncased and a cased vocabulary."""
    from transformers import BertTokenizerLegacy

    made = []
    for path, file, lowercase in ((uncased, uncased / "vocab.txt", True), (cased, cased, False)):
        oracle = BertTokenizerLegacy(str(file), do_lower_case=lowercase)
        made.append((ReferenceEncoder(read_tokenizer(find_tokenizer(path))), oracle))
    return made


def oracle_ids(oracle, text):
    # What text spells is never a special token, so the oracle must not look for them either.
    tokens = [
        piece
        for word in oracle.basic_tokenizer.tokenize(text)
        for piece in oracle.wordpiece_tokenizer.tokenize(word)
    ]
    return oracle.convert_tokens_to_ids(tokens)


@given(text=settled_texts)
def test_ids_are_those_of_bert_on_any_text(pairs, text):
    # The oracle composes characters, which BERT's published code (tokenization.py of google-research/bert) does not. It
    # makes no difference to a text that is composed already, nor where accents are removed.
    visible = "".join(each for each in text if not unicodedata.category(each).startswith("C"))
    composed = unicodedata.is_normalized("NFC", visible)
    for ours, oracle in pairs:
        if composed or oracle.do_lower_case:
            assert encode(ours, text).tolist() == oracle_ids(oracle, text)


def test_characters_are_not_composed(pairs):
    ours, _ = pairs[1]
    assert encode(ours, "e\u0301").tolist() == [CASED.index("e"), CASED.index("##\u0301")]


def test_case_is_read_off_the_vocabulary_unless_it_is_given(uncased, cased):
    def lowercases(path, **choice):
        return '"lowercase": true' in read_tokenizer(find_tokenizer(path), **choice)

    assert [lowercases(uncased), lowercases(cased)] == [True, False]
    assert [lowercases(uncased, lowercase=False), lowercases(cased, lowercase=True)] == [False, True]


def test_sequences_get_berts_special_tokens(uncased):
    tokenizer = Tokenizer.from_str(read_tokenizer(find_tokenizer(uncased)))
    lines = (uncased / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert vocabulary_size(tokenizer) == len(lines)
    roles = {"bos": "[CLS]", "pad": "[PAD]", "eos": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    assert find_special_tokens(tokenizer) == {role: lines.index(token) for role, token in roles.items()}
    assert tokenizer.encode("hello", "world").tokens == ["[CLS]", "hello", "[SEP]", "world", "[SEP]"]


@pytest.mark.parametrize(("entries", "reason"), [("a\nb\n", r"no \[UNK\]"), ("[UNK]\na\na\n", "once")])
def test_a_damaged_vocabulary_is_refused_with_the_reason(tmp_path, entries, reason):
    (tmp_path / "vocab.txt").write_text(entries)
    with pytest.raises(ConfigError, match=reason):
        read_tokenizer(find_tokenizer(tmp_path / "vocab.txt"))


def test_training_finds_the_pieces_of_words():
    trained = WordPiece(vocab_size=512).train(corpus())[0]
    tokenizer = Tokenizer.from_str(trained)
    assert [tokenizer.token_to_id(name) for name in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert {"##ing", "##ness"} <= set(tokenizer.get_vocab())
    assert tokenizer.token_to_id("▁") is None
    ids = encode(ReferenceEncoder(trained), " ".join(corpus()))
    assert 1 not in ids
    assert len(set(ids.tolist())) > 300


def test_training_keeps_case_when_it_is_told_to():
    tokenizer = Tokenizer.from_str(WordPiece(vocab_size=600, lowercase=False).train(corpus())[0])
    assert any(entry[:1].isupper() for entry in tokenizer.get_vocab())
    assert tokenizer.normalizer.normalize_str("É") == "É"


def test_characters_that_text_needs_are_in_the_alphabet_of_a_large_vocabulary():
    syllables = [chr(0xAC00 + number) for number in range(0, 11_172, 8)]
    config = WordPiece(vocab_size=8000, lowercase=False)
    tokenizer = Tokenizer.from_str(config.train([" ".join(syllables)] * 3)[0])
    assert "[UNK]" not in tokenizer.encode(" ".join(syllables)).tokens


def test_rare_characters_become_unknown():
    config = WordPiece(vocab_size=512, limit_alphabet=10)
    tokenizer = Tokenizer.from_str(config.train([*corpus(), "ж"])[0])
    assert tokenizer.encode("ж", add_special_tokens=False).tokens == ["[UNK]"]
