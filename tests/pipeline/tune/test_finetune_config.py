"""The configuration, and the files that are shipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import load_config, validate
from pipeline.tune.config import FinetuneConfig, with_tasks
from pipeline.tune.config import FinetuneConfig as PublishedConfig
from pipeline.tune.tasks import TASKS as PUBLISHED_TASKS
from pipeline.tune.tasks.forms import ClassificationTaskConfig

CONFIGS = Path(__file__).parents[3] / "configs" / "finetune"
TASKS = {"reviews": {"kind": "sst2", "path": "SST-2", "training": {"lr": 1e-3}}}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configuration_is_valid(path, monkeypatch):
    monkeypatch.setenv("CLOZE_DATA", "/data")
    assert load_config(FinetuneConfig, path).name == path.stem


def test_task_overrides_only_the_training_settings_it_names():
    config = validate(FinetuneConfig, {"tasks": TASKS, "training": {"epochs": 7}}, "here")
    assert config.training_of("reviews").lr == 1e-3
    assert config.training_of("reviews").epochs == 7


def test_unknown_task_is_answered_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean mrpc"):
        validate(FinetuneConfig, {"tasks": {"a": {"kind": "mrcp", "path": "x"}}}, "here")


def test_unknown_setting_of_a_task_is_answered_with_the_nearest_name():
    task = {"kind": "cola", "path": "x", "training": {"epoch": 3}}
    with pytest.raises(ConfigError, match="did you mean epochs"):
        validate(FinetuneConfig, {"tasks": {"a": task}}, "here")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "must be different"),
        ({"seeds": [-1]}, "not negative"),
        ({"tasks": {"a/b": TASKS["reviews"]}}, "task name 'a/b'"),
        ({"tasks": {}}, "at least 1 item"),
        ({"name": "../up"}, "pattern"),
    ],
)
def test_unusable_values_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        validate(FinetuneConfig, {"tasks": TASKS} | changes, "here")


def test_configuration_is_read_without_heavy_imports():
    heavy = ("torch", "accelerate", "sklearn", "pyarrow", "mlflow", "ray")
    code = f"import sys, pipeline.tune.config; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONFIGS.parents[1])
    assert ran.stdout.strip() == "[]"


class OwnConfig(ClassificationTaskConfig):
    """A kind of task that is registered outside of the package."""

    kind: Literal["own"] = "own"
    metrics = ("accuracy",)
    evaluation_sets = ()


def test_kinds_of_tasks_can_be_added_without_touching_the_published_ones():
    config = validate(
        with_tasks({**PUBLISHED_TASKS, "own": OwnConfig}), {"tasks": {**TASKS, "mine": {"kind": "own"}}}, "x"
    )
    assert [type(task) for task in config.tasks.values()] == [PUBLISHED_TASKS["sst2"], OwnConfig]
    assert isinstance(config, PublishedConfig)
    with pytest.raises(ConfigError, match="own"):
        validate(PublishedConfig, {"tasks": {"mine": {"kind": "own"}}}, "here")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"zero": {"stage": 2, "offload_parameters": {}}}, "offload_parameters needs zero.stage 3, not 2"),
        ({"zero": {"stage": 0, "offload_optimizer": {}}}, "offload_optimizer needs zero.stage 1, 2 or 3"),
        ({"zero": {"stage": 1}, "precision": "fp16"}, "fp16 does not work with zero"),
        (
            {"zero": {"stage": 3}, "training": {"peft": {"kind": "lora", "rank": 2}}},
            "training.peft of the task reviews does not work with zero.stage 3",
        ),
    ],
    ids=["parameters", "optimizer", "fp16", "peft"],
)
def test_zero_is_refused_where_it_cannot_work(make_config, changes, told):
    with pytest.raises(ValueError, match=told):
        make_config(**changes)
