"""Occurrences of a word are compared by hidden states; probes find what these tell, control tasks what a probe
remembers."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cluster.artefacts.errors import (
    ConfigError,
    CorruptArtefactError,
    MismatchError,
    MissingInputError,
    StorageError,
)
from pipeline.ask.config import ProbeConfig
from pipeline.ask.probing.features import (
    Passage,
    control_labels,
    find_form,
    tagged_words,
    word_pairs,
    word_vectors,
)
from pipeline.ask.probing.neighbors import find_neighbors, find_occurrences
from pipeline.ask.probing.run import probe, read_result
from pipeline.config.loading import validate
from pipeline.tasks.forms import Example, TaggedSentence
from tests.pipeline.ask.conftest import KINDS
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
    ("word", "occurrence", "layer"),
    [("zebra", 1, -1), (" ", 1, -1), ("plot", 1, -1), ("play", 9, -1), ("play", 1, 7)],
    ids=["absent", "empty", "once only", "no such occurrence", "no such layer"],
)
def test_what_has_no_neighbors_is_refused(word: str, occurrence: int, layer: int, text: Path, reader):
    with pytest.raises((ConfigError, MismatchError)):
        find_neighbors(reader("bert"), find_occurrences(text, word), occurrence, layer)
    with pytest.raises(MissingInputError):
        find_occurrences(text.with_name("absent.txt"), word)


def test_neighbors_prints_a_table_or_json(text: Path, directory_of):
    asked = ["neighbors", "--word", "play", "--text", text, "--from", directory_of("bert"), "--occurrence", 5]
    assert "occurrence 5 of 5: They *play* in the park." in invoke(*asked).stdout
    assert json.loads(invoke(*asked, "--json").stdout)["nearest"][0]["occurrence"]["number"] == 4


TAGS = {"the": "DET", "a": "DET", "film": "NOUN", "plot": "NOUN", "was": "AUX", "great": "ADJ", "bad": "ADJ"}


@pytest.fixture
def treebank(tmp_path: Path) -> dict[str, str]:
    """Sentences whose words have one class each, so that the embeddings tell it."""
    draw = random.Random(1)
    for name, count in (("train", 60), ("dev", 20)):
        lines = []
        for _ in range(count):
            words = draw.choices(list(TAGS), k=draw.randint(1, 6))
            lines += [
                "\t".join([str(n), word, "_", TAGS[word], *"______"]) for n, word in enumerate(words, 1)
            ] + [""]
        (tmp_path / f"{name}.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {
        "kind": "conllu_pos",
        "train": str(tmp_path / "train.conllu"),
        "evaluation": str(tmp_path / "dev.conllu"),
    }


def settings(task: dict[str, str], tmp_path: Path, **changes: Any) -> ProbeConfig:
    return validate(ProbeConfig, {"task": task, "out": str(tmp_path / "probes"), **changes}, "test")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5"])
def test_words_that_have_one_class_are_told_by_the_embeddings(
    kind: str, treebank: dict[str, str], tmp_path: Path, reader
):
    config = settings(treebank, tmp_path, probes=["linear", "mlp"])
    directory, found = probe(config, reader(kind))
    assert [(each.layer, each.probe) for each in found.scores] == [
        (layer, kind) for layer in (0, 1, 2) for kind in ("linear", "mlp")
    ]
    assert found.scores[0].accuracy == 1.0
    # The control task gives each word one label too, so that a probe can learn it by heart.
    assert found.scores[0].control is not None
    assert found.scores[0].control > 0.9
    assert found.scores[0].selectivity == found.scores[0].accuracy - found.scores[0].control
    assert found.majority < 0.5
    assert read_result(directory) == found


def test_a_finished_result_is_read_and_another_is_not_written_over(
    treebank: dict[str, str], tmp_path: Path, reader
):
    network = reader("bert")
    config = settings(treebank, tmp_path, layers=[0, -1], control=False)
    directory, found = probe(config, network)
    written = (directory / "manifest.json").stat().st_mtime_ns
    assert probe(config, network) == (directory, found)
    assert (directory / "manifest.json").stat().st_mtime_ns == written
    other = settings(treebank, tmp_path, layers=[1])
    with pytest.raises(StorageError, match="--replace"):
        probe(other, network)
    assert [each.layer for each in probe(other, network, replace=True)[1].scores] == [1]
    (directory / "probes.json").write_text("{}")
    with pytest.raises(CorruptArtefactError, match=r"probes\.json"):
        probe(other, network)


def test_control_labels_belong_to_words_and_follow_the_frequencies():
    words = [f"word{n % 500}" for n in range(1000)]
    labels = control_labels(words, np.array([80, 0, 20]), seed=1)
    assert (labels[:500] == labels[500:]).all()
    counts = np.bincount(labels, minlength=3)
    assert counts[1] == 0
    assert 0.7 < counts[0] / 1000 < 0.9
    assert (labels != control_labels(words, np.array([80, 0, 20]), seed=2)).any()


def test_pairs_of_words_are_compared_where_they_occur(reader):
    assert find_form("They plays and play", "play") == (15, 19)
    assert find_form("She plays it", "play") == (4, 9)
    assert find_form("xyz", "play") == (0, 3)
    example = Example("dev-1", "play: they play in the park", "she plays a play", 1)
    network = reader("bert")
    same = Example("dev-2", "play: they play", "they play", 0)
    features = word_pairs(network, [example, same], ("different", "same"), [0, 2])
    assert features.vectors.shape == (2, 2, 32)
    assert (features.words, features.labels.tolist()) == (("play", "play"), [1, 0])
    np.testing.assert_allclose(features.vectors[:, 1, :16], 0, atol=1e-5)


def test_words_that_the_network_does_not_read_are_left_out(reader):
    network = reader("bert")
    long = TaggedSentence("dev-1", ("film",) * 100, ("NOUN",) * 100)
    strange = TaggedSentence("dev-2", ("\u200b", "film"), ("NOUN", "NOUN"))
    features = tagged_words(network, [long, strange], ("NOUN",), [1])
    assert features.vectors.shape[1] == 62 + 1


def test_probe_prints_a_table_json_and_a_page(
    treebank: dict[str, str], tmp_path: Path, directory_of, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("probe.yaml").write_text(json.dumps({"task": treebank}))
    arguments = ["probe", "probe.yaml", "--from", directory_of("bert")]
    assert "selectivity" in invoke(*arguments, "--html", "page.html").stdout
    text = Path("page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg") == 1
    assert "linear, control task" in text
    assert not re.search(r"href=[\"'](?!#)|<script|<img", text)
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert len(found["scores"]) == 3
    assert json.loads(invoke("lineage", found["directory"], "--json").stdout)["kind"] == "probes"
