"""Training of the byte-level BPE tokenizer, and tokenizers that are taken as they are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.tokenizers.byte_level_bpe import train
from data_prep.tokenizers.config import ByteLevelBPE
from data_prep.tokenizers.pretrained import ConversionSplit, Published, convert_tokenizer, find_tokenizer
from data_prep.tokenizers.special import SPECIAL_TOKENS, find_special_tokens, vocabulary_size


def texts():
    generator = random.Random(3)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 7))) for _ in range(400)]
    return [" ".join(generator.choices(words, k=200)) for _ in range(20)]


@pytest.fixture(scope="module")
def trained():
    return train(texts(), ByteLevelBPE(vocab_size=700))


def test_the_same_texts_give_the_same_bytes(trained):
    assert train(iter(texts()), ByteLevelBPE(vocab_size=700)) == trained


def test_special_tokens_come_first_as_in_roberta(trained):
    tokenizer = Tokenizer.from_str(trained)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert find_special_tokens(tokenizer) == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    assert vocabulary_size(tokenizer) == 700
    assert [tokenizer.encode("some text").ids[end] for end in (0, -1)] == [0, 2]


@given(text=st.text(max_size=50))
def test_every_text_can_be_encoded_and_decoded_back(trained, text):
    tokenizer = Tokenizer.from_str(trained)
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert 3 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def copy(path, target):
    convert_tokenizer(ConversionSplit(Published("tokenizer.json", (path,)), "auto"), target)


def test_a_pretrained_tokenizer_is_copied_byte_for_byte(trained, tmp_path):
    (tmp_path / "tokenizer.json").write_text(trained)
    assert find_tokenizer(tmp_path) == find_tokenizer(tmp_path / "tokenizer.json")
    copy(tmp_path / "tokenizer.json", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == trained


def test_unusable_tokenizers_are_refused_with_the_reason(trained, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(MissingInputError):
        find_tokenizer(tmp_path)
    for contents, reason in (
        ("{}", "cannot be loaded"),
        (trained.replace('"dropout": null', '"dropout": 0.1'), "dropout"),
        (trained.replace("<s>", "<one>").replace("</s>", "<two>"), "no bos and no eos"),
    ):
        path.write_text(contents)
        with pytest.raises(ConfigError, match=reason):
            copy(path, tmp_path / "copy")
