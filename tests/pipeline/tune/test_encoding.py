"""Token ids of single sentences and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cluster.artefacts.errors import CorruptArtefactError, MismatchError, MissingInputError
from models.config import TransformerConfig
from pipeline.tasks.forms import Example
from pipeline.tasks.tokenizer import TextTokenizer, generation_format, sequence_format
from pipeline.tune.encoding import encode_examples, longest_first

S, PAD, E, GOOD, BAD, FILM = 0, 1, 2, 4, 5, 6


ROBERTA = TransformerConfig()
BERT = TransformerConfig(num_segments=2)
GPT = TransformerConfig(network="decoder")


def encode(tokenizer, *texts, max_length=16, network=ROBERTA) -> tuple[list, list | None]:
    """The ids and the segments of texts, each a sentence or a pair."""
    examples = [Example("", *(text if isinstance(text, tuple) else (text, None)), 0) for text in texts]
    encoded = encode_examples(tokenizer, sequence_format(network, tokenizer), examples, max_length)
    rows = range(len(examples))
    segments = encoded.segment_ids
    return (
        [encoded.input_ids[row].tolist() for row in rows],
        None if segments is None else [segments[row].tolist() for row in rows],
    )


@pytest.mark.parametrize(
    ("network", "text", "max_length", "ids", "segments"),
    [
        pytest.param(ROBERTA, "good film", 16, [S, GOOD, FILM, E], None, id="single"),
        pytest.param(ROBERTA, ("good", "bad film"), 16, [S, GOOD, E, E, BAD, FILM, E], None, id="pair"),
        pytest.param(ROBERTA, ("", ""), 16, [S, E, E, E], None, id="empty"),
        pytest.param(BERT, "film", 16, [S, FILM, E], [0, 0, 0], id="single with segments"),
        pytest.param(
            BERT,
            ("good", "bad film"),
            16,
            [S, GOOD, E, BAD, FILM, E],
            [0, 0, 0, 1, 1, 1],
            id="pair with segments",
        ),
        pytest.param(GPT, ("good", "bad film"), 16, [S, GOOD, E, BAD, FILM, E], None, id="pair of a decoder"),
        pytest.param(ROBERTA, "good " * 30, 8, [S, *[GOOD] * 6, E], None, id="long"),
        pytest.param(
            ROBERTA,
            ("good " * 30, "bad film"),
            9,
            [S, GOOD, GOOD, GOOD, E, E, BAD, FILM, E],
            None,
            id="long pair",
        ),
    ],
)
def test_texts_stand_between_their_special_tokens(tokenizer, network, text, max_length, ids, segments):
    # Other rows around it change nothing.
    rows, marked = encode(tokenizer, "a", text, ("a", "the"), max_length=max_length, network=network)
    assert rows[1] == ids
    assert (marked and marked[1]) == segments


def test_written_texts_follow_the_habit_of_their_system(tokenizer):
    bart = TransformerConfig(network="encoder_decoder")
    t5 = TransformerConfig(network="encoder_decoder", positions="relative_bias")
    found = generation_format(bart, tokenizer, None)
    assert (found.source.first, found.source.last, found.target.first, found.start) == ((S,), (E,), (S,), E)
    found = generation_format(t5, tokenizer, None)
    assert (found.source.first, found.target.last, found.start) == ((), (E,), PAD)
    found = generation_format(bart, tokenizer, "film")
    assert (found.source.last, found.target.last, found.start) == ((E, FILM), (E,), FILM)
    with pytest.raises(MismatchError, match="en_XX"):
        generation_format(bart, tokenizer, "en_XX")


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
    assert encode(TextTokenizer(tokenizer_path), "good bad film")[0] == [[S, GOOD, BAD, FILM, E]]


def test_tokenizer_problems_are_named(tokenizer_path, tmp_path):
    with pytest.raises(MissingInputError, match=r"absent\.json"):
        TextTokenizer(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CorruptArtefactError, match=r"broken\.json"):
        TextTokenizer(tmp_path / "broken.json")
    tokenizer_path.write_text(tokenizer_path.read_text().replace("</s>", "<end>"))
    with pytest.raises(MismatchError, match=r"eos: </s>, \[SEP\]"):
        TextTokenizer(tokenizer_path)
