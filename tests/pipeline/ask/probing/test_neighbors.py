"""Occurrences of a word are compared by the hidden states of their tokens, in networks of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from cluster.artefacts.errors import ClozeError
from models.elmo.config import ElmoConfig
from models.elmo.language_model import ElmoLanguageModel
from models.initialization import init_weights
from pipeline.ask.probing.features import Passage, load_features, word_vectors
from pipeline.ask.probing.neighbors import find_neighbors, find_occurrences
from pipeline.checkpoint.store import CheckpointStore
from pipeline.commands.verbs import app
from tests.pipeline.ask.prompting import networks_of_transformers as theirs
from tests.pipeline.small_checkpoints import state_at, write_files

NOWHERE = Path("no-runs")
LINES = [
    "Now they play two films. The play was long.",
    "the plot was good",
    "Play the film! They play in the park.",
    "They play in the park.",
]
MAKERS = [theirs.bert, theirs.roberta, theirs.electra_generator, theirs.gpt2, theirs.bart, theirs.t5]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def elmo(directory: Path) -> Path:
    """A checkpoint of a tiny ELMo."""
    from safetensors.torch import save

    tokenizer = theirs.byte_level(directory / "tokenizer").backend_tokenizer.to_str()
    config = ElmoConfig(
        vocab_size=400,
        character_size=4,
        filters=((1, 8), (2, 8)),
        num_highway_layers=1,
        projection_size=8,
        cell_size=16,
    )
    network = ElmoLanguageModel(config)
    init_weights(network, seed=1)
    store = CheckpointStore(directory / "checkpoints")
    files = {"model.safetensors": save(network.state_dict())}
    write_files(store, state_at(5), files, network=config, tokenizer_json=tokenizer)
    return store.local(5)


@pytest.mark.parametrize("make", [*MAKERS, elmo], ids=lambda make: make.__name__)
def test_the_same_sentence_is_the_nearest_neighbor(make, text: Path, tmp_path: Path):
    network = load_features(str(make(tmp_path / "model")), NOWHERE)
    occurrences = find_occurrences(text, "play")
    assert [each.place for each in occurrences] == ["text-1", "text-1", "text-3", "text-3", "text-4"]
    found = find_neighbors(network, occurrences, chosen=5)
    assert found.nearest[0].occurrence.number == 4
    assert found.nearest[0].cosine == pytest.approx(1.0, abs=1e-5)
    assert found.nearest[0].occurrence.marked == "They *play* in the park."
    assert len(found.nearest) == 4


def test_vectors_are_means_over_the_tokens_of_a_word_in_transformers(tmp_path: Path):
    directory = theirs.bert(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    sentence = "she partook the players"
    inputs = tokenizer(sentence, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    own = [n for n, (start, stop) in enumerate(offsets) if start >= 4 and stop <= 11 and stop > start]
    assert len(own) > 1, "the word has several tokens"
    vectors = word_vectors(load_features(str(directory), NOWHERE), [Passage(sentence, ((4, 11),))])
    expected = [layer[0, own].mean(0).numpy() for layer in states]
    np.testing.assert_allclose(vectors[:, 0], expected, atol=1e-5)


def test_a_long_text_is_read_around_the_word(tmp_path: Path):
    network = load_features(str(theirs.bert(tmp_path / "model")), NOWHERE)
    long = "the film was " * 100
    passage = Passage(f"{long}they play {long}", ((len(long) + 5, len(long) + 9),))
    assert np.isfinite(word_vectors(network, [passage])).all()


@pytest.mark.parametrize(
    ("word", "occurrence", "layer", "message"),
    [
        ("zebra", 1, -1, "does not occur"),
        (" ", 1, -1, "word is empty"),
        ("plot", 1, -1, "once only"),
        ("play", 9, -1, "from 1 to 5"),
        ("play", 1, 7, "has no layer 7"),
    ],
)
def test_mistakes_are_answered_in_words(
    word: str, occurrence: int, layer: int, message: str, text: Path, tmp_path: Path
):
    network = load_features(str(theirs.bert(tmp_path / "model")), NOWHERE)
    with pytest.raises(ClozeError, match=message):
        find_neighbors(network, find_occurrences(text, word), occurrence, layer)
    with pytest.raises(ClozeError, match="no text file"):
        find_occurrences(tmp_path / "absent.txt", "play")


def test_the_verb_prints_a_table_or_json(text: Path, tmp_path: Path):
    directory = str(theirs.bert(tmp_path / "model"))
    arguments = ["neighbors", "--word", "play", "--text", str(text), "--from", directory, "--occurrence", "5"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "occurrence 5 of 5: They *play* in the park." in shown
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert found["nearest"][0]["occurrence"]["number"] == 4
