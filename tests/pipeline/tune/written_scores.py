"""Committed artefacts of scores, written without a training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.manifest import InputEntry
from cluster.artefacts.storage import commit
from pipeline.tune.scores import KIND, SCORES_FILE, EpochScore, Score

Lines = Sequence[Mapping[str, Any]]


def write_artefact(
    directory: Path,
    trainings: Sequence[tuple[Score, Lines]],
    *,
    labels: Mapping[str, Sequence[str]] | None = None,
    kinds: Mapping[str, str] | None = None,
    reference: str = "tiny@5",
    losses: Sequence[float | None] = (1.2, 0.9, 0.7, 0.6, 0.5),
) -> Path:
    """An artefact with these scores and predictions, and the same losses for each."""
    staging = directory.with_name(f".{directory.name}.staged")
    staging.mkdir(parents=True)
    tasks = dict.fromkeys(score.task for score, _ in trainings)
    content = {
        "scores": [score.model_dump(mode="json", exclude={"reference"}) for score, _ in trainings],
        "labels": {task: list((labels or {}).get(task, ())) for task in tasks},
    }
    (staging / SCORES_FILE).write_bytes(orjson.dumps(content))
    seconds, runs = {}, {}
    for number, (score, lines) in enumerate(trainings):
        trial = score.trial
        text = "".join(json.dumps(dict(line)) + "\n" for line in lines)
        (staging / trial.file("predictions.jsonl")).write_text(text)
        (staging / trial.file("losses.json")).write_bytes(orjson.dumps(list(losses)))
        seconds[trial.name], runs[trial.name] = 2.5 + number, f"run-{number}"
    commit(
        staging,
        directory,
        KIND,
        config={"tasks": {task: {"kind": (kinds or {}).get(task, "")} for task in tasks}},
        inputs=[
            InputEntry(kind="checkpoint", uri=reference, fingerprint="c" * 32),
            InputEntry(kind="source-file", uri="data/train.tsv", fingerprint="d" * 32),
        ],
        stats={"trainings": len(trainings), "tracked_runs": runs, "seconds": seconds},
    )
    return directory


def score_of(
    task: str,
    metrics: Mapping[str, float],
    count: int,
    *,
    seed: int = 1,
    initial: Any = "pretrained",
    **more: Any,
) -> Score:
    """A score after three epochs; the first metric is the main one."""
    main = next(iter(metrics))
    epochs = tuple(
        EpochScore(update=10 * epoch, loss=1.0 / epoch, metrics={main: metrics[main] * epoch / 3})
        for epoch in (1, 2, 3)
    )
    return Score(
        task=task,
        initial=initial,
        seed=seed,
        main_metric=main,
        metrics=dict(metrics),
        num_train_examples=100,
        num_evaluation_examples=count,
        epochs=epochs,
        **more,
    )


def label_lines(pairs: Sequence[tuple[str, str]], names: Sequence[str], **texts: str) -> list[dict[str, Any]]:
    """Lines of a classification from (right, predicted) labels; later lines are surer."""
    return [
        {
            "id": f"dev-{number}",
            "label": right,
            "prediction": predicted,
            "logits": [1.0 + number if name == predicted else 0.0 for name in names],
            **{key: f"{text} {number}" for key, text in texts.items()},
        }
        for number, (right, predicted) in enumerate(pairs)
    ]
