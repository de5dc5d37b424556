"""The demo, made small: the verb goes from source files to scores on tasks that it writes itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.artefacts.manifest import read_manifest
from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.commands.verbs import app
from pipeline.road import demo
from pipeline.run.directory import RunDirectory

DATA = """
sources:
  - {kind: python_docs, name: docstrings, stdlib: false, packages: [click, jinja2], max_bytes: 500000}
tokenizer: {vocab_size: 512}
"""
PRETRAIN = """
data: {held_out: 0.5}
model: {num_layers: 1, hidden_size: 32, num_heads: 2, intermediate_size: 32}
cluster: {workers: 1}
steps: 4
schedule: {warmup_steps: 1}
evaluation: {every_steps: 4, samples: 16}
checkpoint: {every_steps: 4}
"""
FINETUNE = """
training: {epochs: 1}
seeds: [1]
compare_random: false
side_by_side: 1
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a demo of few documents, steps and rows, with the shipped settings otherwise."""
    configs = tmp_path / "configs"
    configs.mkdir()
    for name, changes in (("data", DATA), ("pretrain", PRETRAIN), ("finetune", FINETUNE)):
        (configs / f"{name}.yaml").write_text(f"base: {demo.CONFIGS / name}.yaml\n{changes}")
    monkeypatch.setattr(demo, "CONFIGS", configs)
    monkeypatch.setattr(demo, "SIZES", dict.fromkeys(demo.SIZES, (16, 8)))
    return tmp_path / "demo"


def test_demo_ends_with_a_checkpoint_and_a_score_for_each_task(small: Path):
    done = CliRunner().invoke(app, ["demo", "--out", str(small), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["steps"], report["held_out"]["steps"]) == (4, [0, 4])
    name = report["reference"].partition("@")[0]
    run = RunDirectory(small / "runs" / name)
    assert run.config().evaluation.samples == 16
    (checkpoint,) = list_checkpoints(run.checkpoints)
    assert step_of(checkpoint) == 4
    scores = {score["task"]: score["metrics"] for score in report["scores"]}
    assert set(scores) == {"code", "word_order"}
    assert 0 <= scores["word_order"]["accuracy"] <= 1
    (directory,) = (small / "scores").glob("*/*@4")
    assert read_manifest(directory).kind == "scores"
    assert Path(report["page"]).is_file()

    again = CliRunner().invoke(app, ["demo", "--out", str(small)], catch_exceptions=False)
    assert again.exit_code == 0, again.output
    first, last = report["held_out"]["values"]
    assert f"{first:.3f} first, {last:.3f} ± 0." in again.stdout
    assert "exact duplicates dropped" in again.stdout
    assert f"cloze resume {name} " in again.stdout
    assert again.stdout.rstrip().endswith(Path(report["page"]).resolve().as_uri())
