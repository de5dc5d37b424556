"""A dry run of fine-tuning reads, encodes and checks everything."""

from __future__ import annotations

import pytest

from cluster.artefacts.errors import MismatchError, MissingInputError
from pipeline.tune.preview import preview


def test_preview_counts_examples_tokens_updates_and_parameters(make_config, checkpoint, tmp_path):
    before = set(tmp_path.rglob("*"))
    config = make_config(
        search={"lr": [1e-3, 5e-3]}, training={"epochs": 3, "batch_size": 8, "max_length": 16}
    )
    found = preview(config, checkpoint)
    (task,) = found["tasks"]
    assert (found["reference"], task["task"], task["kind"]) == ("tiny@5", "reviews", "sst2")
    assert (task["train_examples"], task["evaluation_examples"], task["test_examples"]) == (64, 45, 0)
    # `<s> WORDS good film </s>` with one to five words.
    assert task["tokens"] == sum(4 + 1 + n % 5 for n in range(64))
    assert (task["trainings"], task["updates"], task["full_share"]) == (4, 24, 0.0)
    assert task["trained_parameters"] == found["parameters"]
    assert found["seconds"] > 0
    assert set(tmp_path.rglob("*")) == before


def test_preview_tells_how_many_texts_are_cut_and_what_a_method_trains(make_config, checkpoint):
    training = {"epochs": 1, "batch_size": 8, "max_length": 8, "peft": {"kind": "bitfit"}}
    found = preview(make_config(training=training), checkpoint)
    assert 0.3 < found["tasks"][0]["full_share"] < 0.5
    assert 0 < found["tasks"][0]["trained_parameters"] < found["parameters"] / 4


def test_preview_refuses_what_the_run_would_refuse(make_config, checkpoint, tmp_path):
    with pytest.raises(MismatchError, match=r"training\.max_length"):
        preview(make_config(training={"max_length": 64}), checkpoint)
    with pytest.raises(MissingInputError, match=r"train\.tsv"):
        preview(make_config(tasks={"reviews": {"kind": "sst2", "path": tmp_path / "none"}}), checkpoint)
