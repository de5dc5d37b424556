"""Settings of a fine-tuning run, and which of them are refused."""

from __future__ import annotations

import pytest

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import validate
from pipeline.tune.config import FinetuneConfig

TASKS = {"reviews": {"kind": "sst2", "path": "SST-2", "training": {"lr": 1e-3}}}


def test_task_overrides_only_the_training_settings_it_names():
    config = validate(FinetuneConfig, {"tasks": TASKS, "training": {"epochs": 7}}, "here")
    assert config.training_of("reviews").lr == 1e-3
    assert config.training_of("reviews").epochs == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [-1]}, "seeds"),
        ({"tasks": {"a/b": TASKS["reviews"]}}, "'a/b'"),
        ({"tasks": {"a": {"kind": "mrcp", "path": "x"}}}, "mean mrpc"),
        ({"tasks": {"a": {"kind": "cola", "path": "x", "training": {"epoch": 3}}}}, "mean epochs"),
        ({"training": {"features": {}, "peft": {"kind": "lora"}}}, "features.*peft"),
    ],
)
def test_unusable_values_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        validate(FinetuneConfig, {"tasks": TASKS} | changes, "here")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"zero": {"stage": 2, "offload_parameters": {}}}, r"offload_parameters .*zero\.stage 3"),
        ({"zero": {"stage": 0, "offload_optimizer": {}}}, r"offload_optimizer .*zero\.stage 1"),
        ({"zero": {"stage": 1}, "precision": "fp16"}, "fp16 .*zero"),
        (
            {"zero": {"stage": 3}, "training": {"peft": {"kind": "lora", "rank": 2}}},
            r"training\.peft .*reviews.*zero\.stage 3",
        ),
    ],
    ids=["parameters", "optimizer", "fp16", "peft"],
)
def test_zero_is_refused_where_it_cannot_work(make_config, changes, told):
    with pytest.raises(ValueError, match=told):
        make_config(**changes)
