"""A lexicon of words: frequent words are ids, other words are spelled, and all can be put together again."""

import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from tokenizers import Tokenizer

from data_prep.tokenizers import ByteLevelBPE, WordLexicon
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from data_prep.tokenizers.word_lexicon import Lexicon
from tests.data_prep.tokenizers.materials import encode, texts

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
    assert lexicon.word_ids(ids, 3).tolist() == [
        tokenizer.token_to_id("the"),
        3,
        tokenizer.token_to_id("naÃ¯ve"),
    ]
    assert find_special_tokens(tokenizer) == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}


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
