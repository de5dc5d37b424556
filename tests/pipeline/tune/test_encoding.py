"""Token ids of single sentences and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cluster.artefacts.errors import CorruptArtefactError, MismatchError, MissingInputError
from models.config import TransformerConfig
from pipeline.tune.encoding import EncodedExamples, encode_examples, longest_first
from pipeline.tune.tasks.forms import Example
from pipeline.tune.tokenizer import TextTokenizer, generation_format, sequence_format

S, PAD, E, GOOD, BAD, FILM = 0, 1, 2, 4, 5, 6


ROBERTA = TransformerConfig()
BERT = TransformerConfig(num_segments=2)
GPT = TransformerConfig(network="decoder")


def rows(encoded):
    return [encoded.input_ids[number].tolist() for number in range(len(encoded))]


def encode(tokenizer_path, examples, max_length, network=ROBERTA) -> EncodedExamples:
    tokenizer = TextTokenizer(tokenizer_path)
    return encode_examples(tokenizer, sequence_format(network, tokenizer), examples, max_length)


def test_single_sentence_stands_between_s_and_end(tokenizer_path):
    encoded = encode(tokenizer_path, [Example("1", "good film", None, 1)], 16)
    assert rows(encoded) == [[S, GOOD, FILM, E]]
    assert encoded.labels.tolist() == [1]


def test_pair_has_two_separators_between_its_texts(tokenizer_path):
    encoded = encode(tokenizer_path, [Example("1", "good", "bad film", 0)], 16)
    assert rows(encoded) == [[S, GOOD, E, E, BAD, FILM, E]]


def test_network_with_segments_reads_pairs_as_bert_does(tokenizer_path):
    examples = [Example("1", "good", "bad film", 0), Example("2", "film", None, 0)]
    encoded = encode(tokenizer_path, examples, 16, BERT)
    assert rows(encoded) == [[S, GOOD, E, BAD, FILM, E], [S, FILM, E]]
    assert encoded.segment_ids is not None
    assert [encoded.segment_ids[number].tolist() for number in range(2)] == [[0, 0, 0, 1, 1, 1], [0, 0, 0]]


def test_decoder_reads_pairs_with_one_delimiter_and_no_segments(tokenizer_path):
    encoded = encode(tokenizer_path, [Example("1", "good", "bad film", 0)], 16, GPT)
    assert rows(encoded) == [[S, GOOD, E, BAD, FILM, E]]
    assert encoded.segment_ids is None


def test_written_texts_follow_the_habit_of_their_system(tokenizer_path):
    tokenizer = TextTokenizer(tokenizer_path)
    bart = TransformerConfig(network="encoder_decoder")
    t5 = TransformerConfig(network="encoder_decoder", positions="relative_bias")
    found = generation_format(bart, tokenizer, None)
    assert (found.source.first, found.source.last, found.target.first, found.start) == ((S,), (E,), (S,), E)
    found = generation_format(t5, tokenizer, None)
    assert (found.source.first, found.target.last, found.start) == ((), (E,), PAD)
    found = generation_format(bart, tokenizer, "film")
    assert (found.source.last, found.target.last, found.start) == ((E, FILM), (E,), FILM)
    with pytest.raises(MismatchError, match="no language tag en_XX"):
        generation_format(bart, tokenizer, "en_XX")


def test_singles_and_pairs_keep_their_places_in_one_list(tokenizer_path):
    examples = [Example("1", "good", None, 0), Example("2", "bad", "film", 1), Example("3", "film", None, 0)]
    encoded = encode(tokenizer_path, examples, 16)
    assert rows(encoded) == [[S, GOOD, E], [S, BAD, E, E, FILM, E], [S, FILM, E]]


def test_long_inputs_are_cut_but_keep_their_special_tokens(tokenizer_path):
    single = encode(tokenizer_path, [Example("1", "good " * 30, None, 0)], 8)
    pair = encode(tokenizer_path, [Example("1", "good " * 30, "bad film", 0)], 9)
    assert rows(single) == [[S, *[GOOD] * 6, E]]
    assert rows(pair) == [[S, GOOD, GOOD, GOOD, E, E, BAD, FILM, E]]


@pytest.mark.parametrize("budget", range(1, 12))
def test_pairs_are_cut_as_transformers_cuts_them(budget, tokenizer_path):
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path))
    for first in range(10):
        for second in range(10):
            cut = theirs("good " * first, "bad " * second, truncation=True, max_length=budget)["input_ids"]
            kept = cut.count(GOOD), cut.count(BAD)
            assert longest_first(np.array(first), np.array(second), np.array(budget)) == kept


def test_truncation_and_padding_stored_in_the_tokenizer_file_are_ignored(tokenizer_path):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(tokenizer_path))
    encoded = encode(tokenizer_path, [Example("1", "good bad film", None, 0)], 16)
    assert rows(encoded) == [[S, GOOD, BAD, FILM, E]]


def test_empty_text_is_only_special_tokens(tokenizer_path):
    encoded = encode(tokenizer_path, [Example("1", "", "", 0)], 16)
    assert rows(encoded) == [[S, E, E, E]]
    assert encoded.input_ids.values.dtype == np.int64


def test_tokenizer_problems_are_named(tokenizer_path, tmp_path):
    with pytest.raises(MissingInputError, match=r"no tokenizer .*absent\.json"):
        TextTokenizer(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CorruptArtefactError, match=r"broken\.json cannot be read"):
        TextTokenizer(tmp_path / "broken.json")
    tokenizer_path.write_text(tokenizer_path.read_text().replace("</s>", "<end>"))
    with pytest.raises(MismatchError, match=r"has no eos token.\n.*eos: </s>, \[SEP\]"):
        TextTokenizer(tokenizer_path)
