"""Token ids of single sentences and pairs."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from cluster.errors import CorruptArtefactError, MismatchError, MissingInputError
from pipeline.finetune.encoding import SequenceEncoder, longest_first
from pipeline.finetune.tasks.base import Example

S, PAD, E, GOOD, BAD, FILM = 0, 1, 2, 4, 5, 6


def rows(encoded):
    return [encoded.values[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]


def test_single_sentence_stands_between_s_and_end(tokenizer_path):
    encoded = SequenceEncoder(tokenizer_path).encode([Example("1", "good film", None, 1)], 16)
    assert rows(encoded) == [[S, GOOD, FILM, E]]
    assert encoded.labels.tolist() == [1]


def test_pair_has_two_separators_between_its_texts(tokenizer_path):
    encoded = SequenceEncoder(tokenizer_path).encode([Example("1", "good", "bad film", 0)], 16)
    assert rows(encoded) == [[S, GOOD, E, E, BAD, FILM, E]]


def test_singles_and_pairs_keep_their_places_in_one_list(tokenizer_path):
    examples = [Example("1", "good", None, 0), Example("2", "bad", "film", 1), Example("3", "film", None, 0)]
    encoded = SequenceEncoder(tokenizer_path).encode(examples, 16)
    assert rows(encoded) == [[S, GOOD, E], [S, BAD, E, E, FILM, E], [S, FILM, E]]


def test_long_inputs_are_cut_but_keep_their_special_tokens(tokenizer_path):
    encoder = SequenceEncoder(tokenizer_path)
    single = encoder.encode([Example("1", "good " * 30, None, 0)], 8)
    pair = encoder.encode([Example("1", "good " * 30, "bad film", 0)], 9)
    assert rows(single) == [[S, *[GOOD] * 6, E]]
    assert rows(pair) == [[S, GOOD, GOOD, GOOD, E, E, BAD, FILM, E]]


@pytest.mark.parametrize("budget", range(12))
def test_closed_form_truncation_equals_removing_one_token_at_a_time(budget):
    for first in range(10):
        for second in range(10):
            a, b = first, second
            while a + b > budget:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            assert longest_first(first, second, budget) == (a, b)


def test_truncation_and_padding_stored_in_the_tokenizer_file_are_ignored(tokenizer_path):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(tokenizer_path))
    encoded = SequenceEncoder(tokenizer_path).encode([Example("1", "good bad film", None, 0)], 16)
    assert rows(encoded) == [[S, GOOD, BAD, FILM, E]]


def test_empty_text_is_only_special_tokens(tokenizer_path):
    encoded = SequenceEncoder(tokenizer_path).encode([Example("1", "", "", 0)], 16)
    assert rows(encoded) == [[S, E, E, E]]
    assert encoded.values.dtype == np.int64


def test_tokenizer_problems_are_named(tokenizer_path, tmp_path):
    with pytest.raises(MissingInputError, match=r"no tokenizer .*absent\.json"):
        SequenceEncoder(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CorruptArtefactError, match=r"broken\.json cannot be read"):
        SequenceEncoder(tmp_path / "broken.json")
    tokenizer_path.write_text(tokenizer_path.read_text().replace("<pad>", "[PAD]"))
    with pytest.raises(MismatchError, match="has no <pad>"):
        SequenceEncoder(tokenizer_path)
