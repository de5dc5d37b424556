"""A copy of each training in Weights & Biases, written by its real client where that is installed."""

from __future__ import annotations

import dataclasses

import pytest

from cluster.artefacts.errors import MissingInputError
from pipeline.tune.run import finetune
from tests.pipeline.test_wandb import IS_INSTALLED, attempts, needs_client, rows, started


@needs_client
def test_each_training_is_a_run_there_with_the_id_that_it_has_in_mlflow(make_config, checkpoint, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = make_config(wandb={"offline": True}, log_every_updates=8)
    scores = finetune(config, dataclasses.replace(checkpoint, model_id=None))
    copies = sorted(attempts(config.runs_dir), key=lambda attempt: started(attempt).display_name)
    assert [started(copy).display_name for copy in copies] == [
        f"small/tiny@5/reviews-pretrained-{seed}" for seed in (1, 2)
    ]
    for copy, score in zip(copies, scores, strict=True):
        logged = rows(copy)
        assert [row["step"] for row in logged if "reviews/loss" in row] == [8, 16, 24]
        assert logged[-1] == {"step": 24, "reviews/accuracy": score.metrics["accuracy"]}
        assert next(r.exit.exit_code for r in copy if r.WhichOneof("record_type") == "exit") == 0


@pytest.mark.skipif(IS_INSTALLED, reason="the client is installed")
def test_a_missing_client_is_told_before_tasks_are_read(make_config, checkpoint, recorder):
    with pytest.raises(MissingInputError, match="client"):
        finetune(make_config(wandb={}, tasks={"x": {"kind": "sst2", "path": "nowhere"}}), checkpoint)
    assert not recorder.runs
