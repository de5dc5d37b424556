"""Occurrences of a word are compared by the hidden states of their tokens, in networks of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from cluster.artefacts.errors import ClozeError
from pipeline.ask.probing.features import Passage, word_vectors
from pipeline.ask.probing.neighbors import find_neighbors, find_occurrences
from tests.pipeline.ask.networks import KINDS
from tests.pipeline.command import invoke

LINES = [
    "Now they play two films. The play was long.",
    "the plot was good",
    "Play the film! They play in the park.",
    "They play in the park.",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", [*KINDS, "elmo"])
def test_the_same_sentence_is_the_nearest_neighbor(kind, text: Path, reader):
    occurrences = find_occurrences(text, "play")
    assert [each.place for each in occurrences] == ["text-1", "text-1", "text-3", "text-3", "text-4"]
    found = find_neighbors(reader(kind), occurrences, chosen=5)
    assert found.nearest[0].occurrence.number == 4
    assert found.nearest[0].cosine == pytest.approx(1.0, abs=1e-5)
    assert found.nearest[0].occurrence.marked == "They *play* in the park."
    assert len(found.nearest) == 4


def test_vectors_are_means_over_the_tokens_of_a_word_in_transformers(directory_of, reader):
    directory, sentence = directory_of("bert"), "she partook the players"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(sentence, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    own = [n for n, (start, stop) in enumerate(offsets) if start >= 4 and stop <= 11 and stop > start]
    assert len(own) > 1, "the word has several tokens"
    vectors = word_vectors(reader("bert"), [Passage(sentence, ((4, 11),))])
    expected = [layer[0, own].mean(0).numpy() for layer in states]
    np.testing.assert_allclose(vectors[:, 0], expected, atol=1e-5)


def test_a_long_text_is_read_around_the_word(reader):
    long = "the film was " * 100
    passage = Passage(f"{long}they play {long}", ((len(long) + 5, len(long) + 9),))
    assert np.isfinite(word_vectors(reader("bert"), [passage])).all()


@pytest.mark.parametrize(
    ("word", "occurrence", "layer", "message"),
    [
        ("zebra", 1, -1, "does not occur"),
        (" ", 1, -1, "empty"),
        ("plot", 1, -1, "once only"),
        ("play", 9, -1, "from 1 to 5"),
        ("play", 1, 7, "layer 7"),
    ],
)
def test_mistakes_are_answered_in_words(
    word: str, occurrence: int, layer: int, message: str, text: Path, reader
):
    with pytest.raises(ClozeError, match=message):
        find_neighbors(reader("bert"), find_occurrences(text, word), occurrence, layer)


def test_text_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(ClozeError, match=r"absent\.txt"):
        find_occurrences(tmp_path / "absent.txt", "play")


def test_the_verb_prints_a_table_or_json(text: Path, directory_of):
    asked = ["neighbors", "--word", "play", "--text", text, "--from", directory_of("bert"), "--occurrence", 5]
    assert "occurrence 5 of 5: They *play* in the park." in invoke(*asked).stdout
    assert json.loads(invoke(*asked, "--json").stdout)["nearest"][0]["occurrence"]["number"] == 4
