"""A run continues under the configuration that it was saved with, or under changes that somebody allowed by name; and
damage is told wherever it is met: a lost manifest, an altered export, configuration, run or log."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest
import yaml

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    CorruptCheckpointError,
    ResumeRefusedError,
)
from cluster.group import GroupSize, Rank, worker_environment
from pipeline.checkpoint.checkpoint import list_checkpoints, read_trainer_state
from pipeline.checkpoint.references import resolve_model
from pipeline.inspect.lineage import trace
from pipeline.pretrain.assembly import device_of
from pipeline.pretrain.resume_checks import check_resume
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.events import Event
from pipeline.run.history import changed_packages
from pipeline.run.log.log import RunLog, damage_of_log
from pipeline.run.tracking import tracking_uri
from tests.conftest import write_store
from tests.pipeline.command import cloze, invoke
from tests.pipeline.one_rank import train_alone
from tests.pipeline.ranks import make_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, store: Path) -> RunDirectory:
    settings = ("steps=4", "checkpoint.every_steps=2")
    run = make_run(tmp_path_factory.mktemp("trained"), store, "trained", *settings)
    assert train_alone([run]) == ["ended"]
    return run


@pytest.fixture
def run(trained: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(trained.path, tmp_path / "runs" / "run")
    return RunDirectory(tmp_path / "runs" / "run")


def newest_of(run: RunDirectory) -> Path:
    return list_checkpoints(run.checkpoints)[-1]


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


def flip(path: Path, place: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_stage_without_its_manifest_is_damage_and_not_left_out(tmp_path: Path) -> None:
    write_store(tmp_path / "out" / "tokens")
    shutil.copytree(tmp_path / "out" / "tokens", tmp_path / "out" / "documents")
    assert invoke("data", "verify", tmp_path / "out").exit_code == 0
    (tmp_path / "out" / "documents" / "manifest.json").unlink()
    for place in (tmp_path / "out", tmp_path / "out" / "documents"):
        error = invoke("data", "verify", place).exception
        assert isinstance(error, CorruptArtefactError)
        assert "documents/manifest.json" in str(error)


def test_an_export_is_verified_before_it_is_taken_for_a_model(run: RunDirectory, tmp_path: Path) -> None:
    directory = tmp_path / "export"
    assert invoke("export", run.path, directory).exit_code == 0
    assert resolve_model(str(directory), tmp_path).step is None
    sound = (directory / "model.safetensors").read_bytes()
    flip(directory / "model.safetensors")
    with pytest.raises(CorruptArtefactError, match=r"model\.safetensors"):
        resolve_model(str(directory), tmp_path)
    (directory / "model.safetensors").write_bytes(sound)
    (directory / "manifest.json").write_bytes(b"{" + (directory / "manifest.json").read_bytes()[:50])
    with pytest.raises(CorruptArtefactError, match=r"manifest\.json"):
        resolve_model(str(directory), tmp_path)
    # Other tools call files of theirs so, too.
    (directory / "manifest.json").write_text('{"name": "model", "files": []}')
    assert resolve_model(str(directory), tmp_path).step is None


def test_lineage_inspect_and_stats_mark_what_is_damaged(
    run: RunDirectory, tmp_path: Path, store: Path
) -> None:
    flip(newest_of(run) / "model.safetensors")
    node = trace(str(run.path), run.path.parent).inputs[0]
    assert node.problem.startswith("damaged: model.safetensors")
    copy = tmp_path / "tokens"
    shutil.copytree(store, copy)
    assert trace(str(copy), tmp_path).problem == ""
    assert "damaged" not in invoke("data", "inspect", copy).stderr
    flip(copy / "state.json")
    assert trace(str(copy), tmp_path).problem.startswith("damaged: state.json")
    for verb in (["lineage", copy, "--json"], ["data", "inspect", copy], ["data", "stats", copy]):
        done = invoke(*verb)
        assert done.exit_code == 0
        assert "damaged: state.json" in done.output + done.stderr


def test_a_configuration_that_was_edited_by_hand_is_answered_with_what_to_type(run: RunDirectory) -> None:
    file = run.config_file
    before = run.config()
    file.write_text(file.read_text().replace("steps: 4\n", "steps: 80\n"))
    with pytest.raises(CorruptArtefactError) as told:
        run.config()
    assert "cloze resume" in told.value.next_step
    assert "last line" in told.value.next_step
    listed = invoke("runs", "--runs-dir", run.path.parent, "--json")
    assert json.loads(listed.stdout)[0]["state"] == "unreadable"
    # Who means it.
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert run.config().steps == 80
    run.reconfigure(before)
    assert run.config() == before
    assert run.config(name="config.yaml.1").steps == 80
    with pytest.raises(CorruptArtefactError, match=r"other.yaml"):
        run.config(name="../../other.yaml")


def test_the_same_settings_in_another_order_are_no_change_of_a_run(run: RunDirectory) -> None:
    config = run.config()
    run.config_file.write_text(yaml.safe_dump(run.settings(), sort_keys=True))
    before = run.config_file.read_bytes()
    run.reconfigure(config)
    assert run.config_file.read_bytes() == before
    assert not run.events(Event.RECONFIGURED)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"trained"', b'"drained"'),
        lambda data: data[: len(data) // 2],
        lambda data: b"[]",
        lambda data: b"\x80\x04",
    ],
    ids=["another name", "half", "a list", "a pickle"],
)
def test_a_damaged_run_file_is_a_typed_error_and_hides_no_other_run(
    run: RunDirectory, damage: Callable[[bytes], bytes]
) -> None:
    shutil.copytree(run.path, run.path.with_name("sound"))
    file = run.info_file
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CorruptArtefactError, match=r"run\.json"):
        _ = run.info
    rows = json.loads(invoke("runs", "--runs-dir", run.path.parent, "--json").stdout)
    assert {row["run"]: row["state"] for row in rows} == {"run": "unreadable", "sound": "finished"}
    assert len(list_runs(run.path.parent)) == 2
    for verb in (["resume", run.path, "--dry-run"], ["lineage", run.path], ["checkpoints", run.path]):
        done = invoke(*verb)
        assert done.exit_code == 0 or isinstance(done.exception, ClozeError)


def test_a_resumption_refuses_a_log_that_was_altered_until_it_is_allowed(run: RunDirectory) -> None:
    log, newest = run.log, newest_of(run)
    assert check_resume(run, run.config()) == newest
    log.write_bytes(log.read_bytes().replace(b'"loss":', b'"loss":1', 1))
    with pytest.raises(ResumeRefusedError, match=r"log\.jsonl") as refused:
        check_resume(run, run.config())
    assert "--allow-changed log.jsonl" in refused.value.next_step
    error = invoke("checkpoints", run.path, "--verify").exception
    assert isinstance(error, CorruptCheckpointError)
    assert "log.jsonl" in str(error)
    assert check_resume(run, run.config(), ["log.jsonl"]) == newest
    assert check_resume(run, run.config()) == newest


def test_a_log_that_was_cut_is_noticed_and_a_killed_one_is_not_blamed(run: RunDirectory) -> None:
    log = run.log
    with log.open("ab") as stream:
        stream.write(b'{"kind": "train", "step": 5, "ti')
    assert damage_of_log(run) == ""
    os.truncate(log, log.stat().st_size // 2)
    assert "when it was sealed" in damage_of_log(run)


def test_stretches_follow_each_other_over_kills_and_torn_seals(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    log = RunLog(run)
    log.write("train", 1, {"loss": 1.0})
    log.sync()
    log.write("train", 2, {"loss": 2.0})  # and killed
    with run.log_seals.open("ab") as stream:
        stream.write(b'\n{"start": 5, "e')
    again = RunLog(run, since=1)
    again.write("train", 3, {"loss": 3.0})
    again.close()
    assert damage_of_log(run) == ""
    lines = run.log_seals.read_bytes().split(b"\n")[1:]
    stretches = [orjson.loads(line) for line in lines if b"}" in line]
    assert [stretch["start"] for stretch in stretches[1:]] == [stretch["end"] for stretch in stretches[:-1]]
    assert stretches[-1]["end"] == run.log.stat().st_size
    run.log.write_bytes(run.log.read_bytes().replace(b"2.0", b"2.5"))
    assert "altered" in damage_of_log(run)
