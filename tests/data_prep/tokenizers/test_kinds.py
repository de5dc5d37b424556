"""Kinds of tokenizers: published vocabularies give the published ids; pieces of words, and words of a lexicon."""

import json
import re
import shutil
import unicodedata
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers import ByteLevelBPE, WordLexicon, WordPiece
from data_prep.tokenizers.byte_level_bpe import byte_alphabet
from data_prep.tokenizers.fast import make_fast_encoder
from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from data_prep.tokenizers.word_lexicon import Lexicon
from data_prep.tokenizers.wordpiece import SPECIAL_TOKENS
from tests.data_prep.tokenizers.materials import corpus, encode, settled_texts, texts
from tests.golden.tokens import LETTERS

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END = "<|endoftext|>"


@pytest.fixture(scope="module", params=["small", "published"])
def directory(request, tmp_path_factory):
    if request.param == "published":
        return request.getfixturevalue("corpora") / "tokenizers" / "gpt2"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*corpus(), *LETTERS.values()] * 2, trainer)
    folder = tmp_path_factory.mktemp("small")
    vocabulary, merges = map(Path, tokenizer.model.save(str(folder)))
    entries = json.loads(vocabulary.read_text(encoding="utf-8")) | {END: tokenizer.get_vocab_size()}
    (folder / "encoder.json").write_text(json.dumps(entries), encoding="utf-8")
    vocabulary.unlink()
    merges.rename(folder / "vocab.bpe")
    return folder


@pytest.fixture(scope="module")
def vocabulary(directory):
    return json.loads((directory / "encoder.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def converted(directory):
    return read_tokenizer(find_tokenizer(directory))


@pytest.fixture(scope="module")
def encoders(converted):
    return ReferenceEncoder(converted), make_fast_encoder(converted)


@pytest.fixture(scope="module")
def oracle(vocabulary):
    import tiktoken

    to_byte = {character: byte for byte, character in enumerate(byte_alphabet())}
    ranks = {
        bytes(to_byte[character] for character in token): number
        for token, number in vocabulary.items()
        if token != END
    }
    special = {END: vocabulary[END]}
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special)


@given(text=texts)
def test_ids_are_those_of_tiktoken_on_any_text(encoders, oracle, text):
    expected = oracle.encode_ordinary(text)
    for encoder in encoders:
        assert encode(encoder, text).tolist() == expected, encoder.name


def test_ids_are_those_of_tiktoken_on_characters_of_all_planes(encoders, oracle):
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    for start in range(0, len(characters), 1 << 16):
        # Between a letter, a space and a figure, each character shows which class it belongs to.
        # The planes behind the third hold hardly any, and the encoder is tried with each before it is used.
        step = 13 if start < 3 << 16 else 389
        text = "".join(f"a{each} {each}1" for each in characters[start : start + (1 << 16)][::step])
        assert encode(encoders[1], text).tolist() == oracle.encode_ordinary(text)


def test_the_only_special_token_serves_all_roles_but_mask(converted, vocabulary):
    tokenizer = Tokenizer.from_str(converted)
    assert vocabulary_size(tokenizer) == len(vocabulary) == vocabulary[END] + 1
    assert find_special_tokens(tokenizer) == dict.fromkeys(("bos", "pad", "eos", "unk"), vocabulary[END])
    assert tokenizer.encode(END).ids == [vocabulary[END]]


def test_both_pairs_of_file_names_are_known(directory, converted, tmp_path):
    shutil.copy(directory / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(directory / "vocab.bpe", tmp_path / "merges.txt")
    assert read_tokenizer(find_tokenizer(tmp_path)) == converted
    (tmp_path / "tokenizer.json").write_text(converted, encoding="utf-8")
    assert find_tokenizer(tmp_path).files == (tmp_path / "tokenizer.json",)


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


@pytest.mark.parametrize("lowercase", [True, False])
def test_training_finds_the_pieces_of_words_in_the_case_that_is_asked_for(lowercase):
    tokenizer = Tokenizer.from_str(WordPiece(vocab_size=600, lowercase=lowercase).train(corpus())[0])
    vocabulary = tokenizer.get_vocab()
    assert {"##ing", "##ness"} <= vocabulary.keys()
    assert "▁" not in vocabulary
    assert any(entry[:1].isupper() for entry in vocabulary) != lowercase
    ids = tokenizer.encode(" ".join(corpus()), add_special_tokens=False).ids
    assert 1 not in ids
    assert len(set(ids)) > 300


def test_characters_that_text_needs_are_in_the_alphabet_of_a_large_vocabulary():
    syllables = [chr(0xAC00 + number) for number in range(0, 11_172, 8)]
    config = WordPiece(vocab_size=8000, lowercase=False)
    tokenizer = Tokenizer.from_str(config.train([" ".join(syllables)] * 3)[0])
    assert "[UNK]" not in tokenizer.encode(" ".join(syllables)).tokens


def test_rare_characters_become_unknown():
    config = WordPiece(vocab_size=512, limit_alphabet=10)
    tokenizer = Tokenizer.from_str(config.train([*corpus(), "ж"])[0])
    assert tokenizer.encode("ж", add_special_tokens=False).tokens == ["[UNK]"]


TEXTS = ["The river, the city and the naïve river.", "the city naïve river 日本 日本", "rare 日本"]


@pytest.fixture(scope="module")
def trained():
    return WordLexicon(vocab_size=1024).train(iter(TEXTS))[0]


@pytest.fixture(scope="module")
def lexicon(trained):
    return Lexicon.read(trained)


@pytest.fixture(scope="module")
def ids_of(trained):
    """Gives the ids of a text."""
    return partial(encode, ReferenceEncoder(trained))


def test_words_are_ids_by_frequency_and_others_are_spelled(trained, lexicon, ids_of):
    tokenizer = Tokenizer.from_str(trained)
    names = [tokenizer.id_to_token(number) for number in range(517, vocabulary_size(tokenizer))]
    assert names[:2] == ["river", "the"]
    assert set(names) == {"the", "river", "city", "naÃ¯ve", "æĹ¥æľ¬"}
    ids = ids_of("the rare naïve")
    assert lexicon.words(ids) == ["the", "rare", "naïve"]
    assert lexicon.word_starts(ids).tolist() == [0, 1, 5]
    known = [tokenizer.token_to_id("the"), 3, tokenizer.token_to_id("naÃ¯ve")]
    assert lexicon.word_ids(ids, 3).tolist() == known


@given(text=texts)
def test_every_character_but_white_space_is_kept(trained, lexicon, ids_of, text):
    ids = ids_of(text)
    words = lexicon.words(ids)
    # Python alone takes these separators for white space; Unicode does not.
    kept = [character for character in text if not character.isspace() or character in "\x1c\x1d\x1e\x1f"]
    assert "".join(words) == "".join(kept)
    assert not any(re.search(r"[ \t\n\u3000]", word) for word in words)
    spelled = lexicon.spell(ids)
    assert [row.tobytes().decode() for row in (spelled[n] for n in range(len(spelled)))] == words
    tokenizer = Tokenizer.from_str(trained)
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == " ".join(words)


def test_a_single_byte_is_a_word_and_the_first_byte_of_a_longer_character_is_not(lexicon, ids_of):
    ids = ids_of("a é")
    assert lexicon.words(ids) == ["a", "é"]
    assert lexicon.word_ids(ids, 3).tolist() == [ids[0], 3]


def test_a_sample_may_begin_and_end_inside_a_word(lexicon, ids_of):
    ids = ids_of("rare words")[2:-1].astype(np.uint16)
    assert lexicon.words(ids) == ["re", "word"]
    assert lexicon.word_ids(ids, 3).tolist() == [3, 3]
    assert lexicon.word_ids(ids_of("rare")[3:], 3).tolist() == [3]
    cut = ids_of("é")
    assert lexicon.word_ids(cut[:1], 3).tolist() == [3]
    assert lexicon.words(cut[:1]) == ["\ufffd"]
    assert lexicon.words(ids[:0]) == []


def test_text_never_becomes_a_special_token(lexicon, ids_of):
    ids = ids_of("<s> <mask> ##a")
    assert ids.min() >= 5
    assert lexicon.words(ids) == ["<", "s", ">", "<", "mask", ">", "#", "#", "a"]


def test_another_tokenizer_is_no_lexicon():
    with pytest.raises(ValueError, match="word lexicon"):
        Lexicon.read(ByteLevelBPE(vocab_size=600).train(TEXTS)[0])
