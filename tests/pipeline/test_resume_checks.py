"""A run continues under the configuration that it was saved with, or under changes that somebody allowed by name."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest

from cluster.artefacts.errors import ResumeRefusedError
from cluster.group import GroupSize, Rank, worker_environment
from pipeline.checkpoint.checkpoint import (
    list_checkpoints,
    read_trainer_state,
)
from pipeline.pretrain.assembly import device_of
from pipeline.pretrain.resume_checks import check_resume
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import changed_packages
from pipeline.run.tracking import tracking_uri
from tests.conftest import write_store
from tests.pipeline.command import cloze, invoke
from tests.pipeline.one_rank import train_alone
from tests.pipeline.ranks import make_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, store: Path) -> RunDirectory:
    run = make_run(tmp_path_factory.mktemp("trained"), store, "trained", "steps=4")
    assert train_alone([run]) == ["ended"]
    return run


@pytest.fixture
def run(trained: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(trained.path, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def changes_of(run: RunDirectory) -> list[dict[str, str]]:
    return [event["differences"] for event in run.events() if event["event"] == "changed"]


@pytest.mark.parametrize(
    "override",
    ["objective.rate=0.2", "model.dropout=0.2", "batch.micro_batch_size=8", "data.held_out=0.2", "seed=5"],
)
def test_a_change_is_refused_by_name_allowed_by_name_and_allowed_once(run: RunDirectory, override: str):
    key, config, newest = override.partition("=")[0], run.config((override,)), newest_of(run)
    assert check_resume(run, run.config()) == newest
    with pytest.raises(ResumeRefusedError, match=key) as refused:
        check_resume(run, config)
    assert f"cloze resume {run.typed} --allow-changed {key}" in refused.value.next_step
    assert check_resume(run, config, [key.partition(".")[0]], look_only=True) == newest
    assert changes_of(run) == []
    assert check_resume(run, config, [key]) == newest
    (recorded,) = changes_of(run)
    assert list(recorded) == [key]
    assert check_resume(run, config) == newest
    assert changes_of(run) == [recorded]


def test_other_data_is_refused_until_it_is_allowed(run: RunDirectory, tmp_path: Path):
    other = write_store(tmp_path / "other", seed=4)
    config = run.config((f"data.stores=[{{path: {other}}}]",))
    with pytest.raises(ResumeRefusedError, match=r"data\.tokens"):
        check_resume(run, config)
    assert check_resume(run, config, ["data"]) is not None


@pytest.mark.parametrize(
    ("override", "unlike"),
    [
        ("model.hidden_size=64", "shape"),
        ("model.num_layers=3", "not there"),
        ("objective={kind: rtd}", "not there"),
    ],
)
def test_a_network_that_cannot_take_over_the_weights_is_refused_whatever_is_allowed(
    run: RunDirectory, override: str, unlike: str
):
    with pytest.raises(ResumeRefusedError, match=unlike):
        check_resume(run, run.config((override,)), ["model", "objective"])
    assert changes_of(run) == []


def test_a_group_without_gpus_computes_on_cpus_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    environment = worker_environment(GroupSize((1,), cpus_per_worker=1, gpus_per_worker=0))
    monkeypatch.setenv("DS_ACCELERATOR", environment["DS_ACCELERATOR"])
    assert device_of(Rank(0, 1, 0, 1)).type == "cpu"
    monkeypatch.delenv("DS_ACCELERATOR")
    assert device_of(Rank(0, 1, 0, 1)).type == "cuda"


def test_a_resumption_keeps_absolute_places(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(run.checkpoints, tmp_path / "ckpts" / run.info.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.pretrain.launch.execute", lambda run, held: None)
    arguments = ["resume", str(run.path), "checkpoint.directory=ckpts", "steps=5"]
    cloze(*arguments, "--allow-changed", "steps")
    assert run.config().checkpoint.directory == tmp_path / "ckpts"
    assert run.config().steps == 5


def test_a_relative_tracking_store_is_kept_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for given, kept in (
        ("sqlite:///track.db", f"sqlite:///{tmp_path}/track.db"),
        ("sqlite:////abs/track.db", "sqlite:////abs/track.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("", f"sqlite:///{tmp_path}/runs/mlflow.db"),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
        assert tracking_uri(Path("runs")) == kept


def test_packages_that_changed_since_the_last_attempt_are_told_before_the_run_continues(run: RunDirectory):
    (started,) = run.events(Event.STARTED)
    assert changed_packages(run) == []
    details = {name: value for name, value in started.items() if name not in ("event", "time")}
    packages = dict(started["environment"]["packages"], torch="1.0", cupy="12.3")
    del packages["numpy"]
    environment = started["environment"] | {"packages": packages, "host": "another"}
    run.record_event(Event.STARTED, **details | {"environment": environment})
    run.record_event(Event.FINISHED, step=4)
    told = [
        "cupy was 12.3, is not installed",
        f"numpy was not installed, is {version('numpy')}",
        f"torch was 1.0, is {version('torch')}",
    ]
    assert changed_packages(run) == told
    dry = orjson.loads(cloze("resume", run.path, "--dry-run", "--json"))
    assert dry["packages that changed"] == "; ".join(told)
    done = invoke("resume", run.path, catch_exceptions=False)
    assert "; ".join(told) in done.stderr


def test_tokens_are_what_was_read_and_will_be_read_after_the_batch_was_changed(run: RunDirectory):
    before, allowed = run.config().batch, ("--allow-changed=batch", "--allow-changed=steps")

    def planned(*overrides: str) -> dict[str, int]:
        return orjson.loads(cloze("resume", run.path, *overrides, *allowed, "--dry-run", "--json"))

    assert planned()["updates left"] == 0
    changes = ("steps=6", f"batch.samples={2 * before.samples}")
    tokens = (4 + 2 * 2) * before.samples * before.sequence_length
    assert planned(*changes)["tokens"] == tokens
    config = run.config(changes)
    check_resume(run, config, ["batch", "steps"])
    run.reconfigure(config)
    assert train_alone([run]) == ["ended"]
    state = read_trainer_state(newest_of(run))
    assert (state.tokens, state.samples) == (tokens, 8 * before.samples)
    assert planned()["tokens"] == tokens


def newest_of(run: RunDirectory) -> Path:
    return list_checkpoints(run.checkpoints)[-1]
