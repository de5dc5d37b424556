"""The lineage of a Hugging Face directory, and of what was made from one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub import constants

from cluster.artefacts.manifest import InputEntry, hash_file
from cluster.artefacts.storage import commit
from pipeline.checkpoint.references import resolve_model
from pipeline.inspect.lineage import trace
from tests.pipeline.command import cloze
from tests.pipeline.materials import ANY_TOKENIZER

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BertForMaskedLM(config).save_pretrained(directory)
    (directory / "pytorch_model.bin").write_bytes(b"not read")
    (directory / "tokenizer.json").write_bytes(ANY_TOKENIZER)
    return directory


def commit_scores(place: Path, reference: str, fingerprint: str) -> Path:
    """Scores as fine-tuning from this model records them."""
    staging = place.with_name("staging")
    staging.mkdir()
    (staging / "scores.json").write_text("[]")
    entry = InputEntry(kind="checkpoint", uri=reference, fingerprint=fingerprint)
    commit(staging, place, "scores", config={}, inputs=[entry])
    return place


def test_directory_tells_network_weights_and_that_its_training_is_unknown(directory: Path):
    node = trace(str(directory), Path("runs"))
    network = transformers.BertForMaskedLM.from_pretrained(directory)
    assert node.facts["architecture"] == "BertForMaskedLM"
    assert node.facts["parameters"] == sum(each.numel() for each in network.parameters())
    assert node.facts["precision"] == "F32"
    assert node.fingerprint == hash_file(directory / "model.safetensors")[0]
    assert "training" in node.facts["unknown"]
    assert node.facts["unknown"] in cloze("lineage", directory)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"model.safetensors": b"{"}, "is damaged"),
        ({"model.safetensors": None}, "has its weights only in pytorch_model.bin"),
        ({"config.json": b"[1]"}, ""),
    ],
)
def test_damaged_directory_tells_the_rest_and_what_is_wrong(
    directory: Path, tmp_path: Path, damage: dict[str, Any], told: str
):
    place = tmp_path / "model"
    shutil.copytree(directory, place)
    for name, contents in damage.items():
        (place / name).unlink()
        if contents is not None:
            (place / name).write_bytes(contents)
    node = trace(str(place), tmp_path)
    assert told in node.problem
    assert bool(told) == bool(node.problem)
    assert node.facts["unknown"]


def test_scores_lead_to_the_directory_that_they_were_fine_tuned_from_and_to_no_other(
    directory: Path, tmp_path: Path
):
    fingerprint = resolve_model(str(directory), tmp_path).fingerprint
    for used, problem in ((fingerprint, ""), ("0" * 32, f"{directory} now holds other weights")):
        (node,) = trace(str(commit_scores(tmp_path / used, str(directory), used)), tmp_path).inputs
        assert node.problem == problem
        assert problem or (node.kind, node.facts["architecture"]) == (
            "hugging-face-directory",
            "BertForMaskedLM",
        )


def test_model_of_the_hub_tells_its_commit_wherever_it_lies(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "cache" / "models--org--small"
    snapshot = shutil.copytree(directory, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    fingerprint = trace(str(snapshot), tmp_path).fingerprint
    scores = commit_scores(tmp_path / "scores", f"org/small@{COMMIT}", fingerprint)
    (of_scores,) = trace(str(scores), tmp_path).inputs
    for node in (trace("org/small", tmp_path), trace(str(snapshot), tmp_path), of_scores):
        assert (node.facts["hub_model"], node.facts["hub_commit"]) == ("org/small", COMMIT)
