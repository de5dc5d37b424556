"""GPT-2's published vocabulary, and a small one in its files: the ids of tiktoken, on any text, from every encoder."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from data_prep.tokenizers.byte_level_bpe import byte_alphabet
from data_prep.tokenizers.fast import make_fast_encoder
from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from tests.data_prep.tokenizers.materials import corpus, encode, texts
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


def test_text_is_given_back_byte_for_byte(converted, oracle):
    tokenizer = Tokenizer.from_str(converted)
    tokenizer.encode_special_tokens = True
    text = "  naïve\u0301 👩‍👩‍👧\x00 <|endoftext|>\r\n\t"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


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
