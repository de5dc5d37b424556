"""The lineage of a Hugging Face directory, and of what was made from one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub import constants
from typer.testing import CliRunner

from cluster.artefacts.manifest import InputEntry, hash_file
from cluster.artefacts.storage import commit
from pipeline.checkpoint.references import resolve_model
from pipeline.commands.verbs import app
from pipeline.inspect.lineage import trace
from tests.pipeline.test_hub import bert

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"))


def commit_scores(place: Path, reference: str, fingerprint: str) -> Path:
    """Scores as fine-tuning from this model records them."""
    staging = place.with_name("staging")
    staging.mkdir()
    (staging / "scores.json").write_text("[]")
    entry = InputEntry(kind="checkpoint", uri=reference, fingerprint=fingerprint)
    commit(staging, place, "scores", config={}, inputs=[entry])
    return place


def in_cache(directory: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the directory as a model of the Hub's cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    model = cache / "models--org--small"
    snapshot = model / "snapshots" / COMMIT
    shutil.copytree(directory, snapshot)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_directory_tells_network_weights_and_that_its_training_is_unknown(directory: Path):
    node = trace(str(directory), Path("runs"))
    network = transformers.BertForMaskedLM.from_pretrained(directory)
    assert node.facts["architecture"] == "BertForMaskedLM"
    assert node.facts["parameters"] == sum(each.numel() for each in network.parameters())
    assert node.facts["precision"] == "F32"
    assert node.fingerprint == hash_file(directory / "model.safetensors")[0]
    printed = CliRunner().invoke(app, ["lineage", str(directory)], catch_exceptions=False).output
    assert "unknown: the texts, settings and code of its training" in printed
    assert "hub model: unknown, because the directory is not in the Hub's cache" in printed


def test_scores_lead_to_the_directory_that_they_were_fine_tuned_from(directory: Path, tmp_path: Path):
    fingerprint = resolve_model(str(directory), tmp_path).fingerprint
    (node,) = trace(str(commit_scores(tmp_path / "scores", str(directory), fingerprint)), tmp_path).inputs
    assert (node.kind, node.problem) == ("hugging-face-directory", "")
    assert node.facts["architecture"] == "BertForMaskedLM"


def test_directory_with_other_weights_is_not_taken_for_the_one_that_was_used(directory: Path, tmp_path: Path):
    (node,) = trace(str(commit_scores(tmp_path / "scores", str(directory), "0" * 32)), tmp_path).inputs
    assert node.problem == f"{directory} now holds other weights"


def test_model_of_the_hub_tells_its_commit_by_name_by_path_and_from_scores(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshot = in_cache(directory, tmp_path / "cache", monkeypatch)
    scores = commit_scores(
        tmp_path / "scores", f"org/small@{COMMIT}", trace(str(snapshot), tmp_path).fingerprint
    )
    found = [
        trace("org/small", tmp_path),
        trace(str(snapshot), tmp_path),
        *trace(str(scores), tmp_path).inputs,
    ]
    assert [node.facts["hub_model"] for node in found] == ["org/small"] * 3
    assert [node.facts["hub_commit"] for node in found] == [COMMIT] * 3


def test_download_into_a_directory_tells_its_commit(directory: Path, tmp_path: Path):
    place = tmp_path / "model"
    shutil.copytree(directory, place)
    record = place / ".cache" / "huggingface" / "download" / "config.json.metadata"
    record.parent.mkdir(parents=True)
    record.write_text(f"{COMMIT}\netag\n1760000000.0\n")
    assert trace(str(place), tmp_path).facts["hub_commit"] == COMMIT


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
