"""Training of the byte-level BPE tokenizer, and the draw of its training text."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cluster.errors import ConfigError, MissingInputError
from data_prep.dedup.index import ENTRY
from data_prep.tokenizers.byte_level_bpe import SPECIAL_TOKENS, draw_documents, train_bpe
from data_prep.tokenizers.pretrained import CopySplit, copy_tokenizer, find_tokenizer
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size


def texts():
    generator = random.Random(3)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 7))) for _ in range(400)]
    return [" ".join(generator.choices(words, k=200)) for _ in range(20)]


@pytest.fixture(scope="module")
def trained():
    return train_bpe(texts(), 700, 2)


def test_the_same_texts_give_the_same_bytes(trained):
    assert train_bpe(iter(texts()), 700, 2) == trained


def test_special_tokens_come_first_as_in_roberta(trained):
    tokenizer = Tokenizer.from_str(trained)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert find_special_tokens(tokenizer) == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    assert vocabulary_size(tokenizer) == 700
    assert [tokenizer.encode("some text").ids[end] for end in (0, -1)] == [0, 2]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=50))
def test_every_text_can_be_encoded_and_decoded_back(trained, text):
    tokenizer = Tokenizer.from_str(trained)
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert 3 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def make_index(sizes):
    generator = np.random.default_rng(5)
    shards = []
    for own in sizes:
        entries = np.zeros(len(own), dtype=ENTRY)
        entries["text_bytes"] = own
        entries["draw"] = generator.integers(0, 2**64, len(own), dtype=np.uint64)
        shards.append(entries)
    return shards


def test_training_text_is_drawn_evenly_from_the_corpus():
    index = make_index([[100] * 1000, [100] * 1000, [100] * 2000])
    chosen, num_bytes = draw_documents(index, [np.arange(len(shard)) for shard in index], 100_000)
    assert num_bytes == 100_000
    counts = np.array([len(rows) for rows in chosen])
    assert np.abs(counts - [250, 250, 500]).max() < 60


def test_the_draw_does_not_depend_on_the_shards():
    (index,) = make_index([list(range(1, 101))])
    chosen, num_bytes = draw_documents([index], [np.arange(100)], 1500)
    halves, same_bytes = draw_documents([index[:30], index[30:]], [np.arange(30), np.arange(70)], 1500)
    assert num_bytes == same_bytes <= 1500
    assert chosen[0].tolist() == [*halves[0].tolist(), *(halves[1] + 30).tolist()]


def test_dropped_documents_are_never_drawn_and_one_document_always_is():
    index = make_index([[10, 10, 10], [10]])
    chosen, num_bytes = draw_documents(index, [np.array([1]), np.array([], dtype=np.int64)], 1)
    assert [rows.tolist() for rows in chosen] == [[1], []]
    assert num_bytes == 10


def test_a_pretrained_tokenizer_is_copied_byte_for_byte(trained, tmp_path):
    (tmp_path / "tokenizer.json").write_text(trained)
    assert find_tokenizer(tmp_path) == find_tokenizer(tmp_path / "tokenizer.json")
    copy_tokenizer(CopySplit(tmp_path / "tokenizer.json"), tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == trained


def test_unusable_tokenizers_are_refused_with_the_reason(trained, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(MissingInputError, match=r"tokenizer\.json"):
        find_tokenizer(tmp_path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        copy_tokenizer(CopySplit(path), tmp_path / "copy")
    path.write_text(trained.replace('"dropout": null', '"dropout": 0.1'))
    with pytest.raises(ConfigError, match="dropout"):
        copy_tokenizer(CopySplit(path), tmp_path / "copy")
    bare = trained.replace("<s>", "<one>").replace("</s>", "<two>")
    path.write_text(bare)
    with pytest.raises(ConfigError, match="no bos and no eos"):
        copy_tokenizer(CopySplit(path), tmp_path / "copy")
