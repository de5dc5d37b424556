"""GPT-2's published vocabulary: the ids of tiktoken, on any text, from every encoder."""

import json
import shutil

import pytest
from hypothesis import given
from tokenizers import Tokenizer

from data_prep.tokenizers.byte_level_bpe import byte_alphabet
from data_prep.tokenizers.fast import make_fast_encoder
from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from tests.data_prep.tokenizers.materials import encode, texts

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@pytest.fixture(scope="module")
def directory(corpora):
    return corpora / "tokenizers" / "gpt2"


@pytest.fixture(scope="module")
def converted(directory):
    return read_tokenizer(find_tokenizer(directory))


@pytest.fixture(scope="module")
def encoders(converted):
    return ReferenceEncoder(converted), make_fast_encoder(converted)


@pytest.fixture(scope="module")
def oracle(directory):
    import tiktoken

    to_byte = {character: byte for byte, character in enumerate(byte_alphabet())}
    vocabulary = json.loads((directory / "encoder.json").read_text(encoding="utf-8"))
    ranks = {
        bytes(to_byte[character] for character in token): number
        for token, number in vocabulary.items()
        if token != "<|endoftext|>"
    }
    special = {"<|endoftext|>": 50256}
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special)


@given(text=texts)
def test_ids_are_those_of_tiktoken_on_any_text(encoders, oracle, text):
    expected = oracle.encode_ordinary(text)
    for encoder in encoders:
        assert encode(encoder, text).tolist() == expected, encoder.name


def test_ids_are_those_of_tiktoken_on_every_character(encoders, oracle):
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    for start in range(0, len(characters), 1 << 16):
        # Between a letter, a space and a figure, each character shows which class it belongs to.
        text = "".join(f"a{each} {each}1" for each in characters[start : start + (1 << 16)][::7])
        assert encode(encoders[1], text).tolist() == oracle.encode_ordinary(text)


def test_text_is_given_back_byte_for_byte(converted, oracle):
    tokenizer = Tokenizer.from_str(converted)
    tokenizer.encode_special_tokens = True
    text = "  naïve\u0301 👩‍👩‍👧\x00 <|endoftext|>\r\n\t"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_the_only_special_token_serves_all_roles_but_mask(converted):
    tokenizer = Tokenizer.from_str(converted)
    assert vocabulary_size(tokenizer) == 50257
    assert find_special_tokens(tokenizer) == dict.fromkeys(("bos", "pad", "eos", "unk"), 50256)
    assert tokenizer.encode("<|endoftext|>").ids == [50256]


def test_both_pairs_of_file_names_are_known(directory, converted, tmp_path):
    shutil.copy(directory / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(directory / "vocab.bpe", tmp_path / "merges.txt")
    assert read_tokenizer(find_tokenizer(tmp_path)) == converted
    (tmp_path / "tokenizer.json").write_text(converted, encoding="utf-8")
    assert find_tokenizer(tmp_path).files == (tmp_path / "tokenizer.json",)
