"""A run continues under the configuration that it was saved with, or under changes that somebody allowed by name; and
damage is told wherever it is met: a lost manifest, an altered export, configuration, run or log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import torch

from cluster.artefacts.errors import (
    ClozeError,
    ConfigError,
    CorruptArtefactError,
    CorruptCheckpointError,
    ResumeRefusedError,
)
from cluster.group import GroupSize, Rank, worker_environment
from models.config import TransformerConfig
from pipeline.checkpoint.checkpoint import list_checkpoints, read_trainer_state
from pipeline.checkpoint.references import resolve_model
from pipeline.engine.device import deterministic_algorithms, prepare_network
from pipeline.inspect.lineage import trace
from pipeline.pretrain.assembly import device_of
from pipeline.pretrain.launch import find_same_run, settled
from pipeline.pretrain.resume_checks import check_resume
from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import RunLog, damage_of_log
from pipeline.run.tracking import tracking_uri
from tests.conftest import write_store
from tests.pipeline.command import cloze, invoke
from tests.pipeline.ranks import make_config, make_run, train_alone
from tests.surroundings import flip_bit


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


def test_places_of_a_run_are_kept_by_their_absolute_paths(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(run.checkpoints, tmp_path / "ckpts" / run.info.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.pretrain.launch.execute", lambda run, held: None)
    cloze("resume", run.path, "checkpoint.directory=ckpts", "steps=5", "--allow-changed", "steps")
    assert (run.config().checkpoint.directory, run.config().steps) == (tmp_path / "ckpts", 5)
    for given, kept in (
        ("sqlite:///track.db", f"sqlite:///{tmp_path}/track.db"),
        ("sqlite:////abs/track.db", "sqlite:////abs/track.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("", f"sqlite:///{tmp_path}/runs/mlflow.db"),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
        assert tracking_uri(Path("runs")) == kept


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
    flip_bit(directory / "model.safetensors")
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
    flip_bit(newest_of(run) / "model.safetensors")
    node = trace(str(run.path), run.path.parent).inputs[0]
    assert node.problem.startswith("damaged: model.safetensors")
    copy = tmp_path / "tokens"
    shutil.copytree(store, copy)
    assert trace(str(copy), tmp_path).problem == ""
    assert "damaged" not in invoke("data", "inspect", copy).stderr
    flip_bit(copy / "state.json")
    assert trace(str(copy), tmp_path).problem.startswith("damaged: state.json")
    for verb in (["lineage", copy, "--json"], ["data", "inspect", copy], ["data", "stats", copy]):
        done = invoke(*verb)
        assert done.exit_code == 0
        assert "damaged: state.json" in done.output + done.stderr


def test_a_configuration_that_was_edited_by_hand_is_damage_until_its_seal_is_removed(run: RunDirectory):
    file, before = run.config_file, run.config()
    file.write_text(file.read_text().replace("steps: 4\n", "steps: 80\n"))
    with pytest.raises(CorruptArtefactError, match=r"config\.yaml"):
        run.config()
    (row,) = json.loads(cloze("runs", "--runs-dir", run.path.parent, "--json"))
    assert row["state"] == "unreadable"
    # Who means it.
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert run.config().steps == 80
    run.reconfigure(before)
    assert run.config() == before
    assert run.config(name="config.yaml.1").steps == 80
    with pytest.raises(CorruptArtefactError, match=r"other.yaml"):
        run.config(name="../../other.yaml")


@pytest.mark.parametrize("damage", ["another name", "half", "a list", "a pickle"])
def test_a_damaged_run_file_is_a_typed_error_and_hides_no_other_run(run: RunDirectory, damage: str) -> None:
    shutil.copytree(run.path, run.path.with_name("sound"))
    data = run.info_file.read_bytes()
    damaged = {"another name": data.replace(b'"trained"', b'"drained"'), "half": data[: len(data) // 2]}
    run.info_file.write_bytes(damaged.get(damage, b"[]" if damage == "a list" else b"\x80\x04"))
    with pytest.raises(CorruptArtefactError, match=r"run\.json"):
        _ = run.info
    rows = json.loads(invoke("runs", "--runs-dir", run.path.parent, "--json").stdout)
    assert {row["run"]: row["state"] for row in rows} == {"run": "unreadable", "sound": "finished"}
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
    os.truncate(run.log, run.log.stat().st_size // 2)
    assert "when it was sealed" in damage_of_log(run)


def test_settings_of_a_run_keep_a_uri_as_it_is_and_refuse_credentials(tmp_path: Path):
    config = make_config(tmp_path, "s3://bucket/data/tokens")
    assert settled(config).data.stores[0].path == "s3://bucket/data/tokens"
    with pytest.raises(ConfigError, match="credentials") as caught:
        make_config(tmp_path, "'s3://user:planted@bucket/tokens'")
    assert "planted" not in str(caught.value)


def test_same_run_has_the_same_name_settings_and_data_and_any_machines(tmp_path: Path):
    store = write_store(tmp_path / "tokens")
    run = make_run(tmp_path, store, "tiny-1")
    config = run.config()
    assert find_same_run(config) == run
    machines = {"checkpoint": config.checkpoint.model_copy(update={"every_steps": 3})}
    assert find_same_run(config.model_copy(update=machines)) == run
    for changed in ({"name": "another"}, {"seed": 7}, {"steps": (config.steps or 0) + 1}):
        assert find_same_run(config.model_copy(update=changed)) is None


def test_compilation_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    config = make_config(tmp_path, tmp_path, "compute.compile=true")
    with pytest.raises(ConfigError):
        prepare_network(torch.nn.Linear(1, 1), TransformerConfig(vocab_size=9), config, torch.device("cpu"))


VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def test_algorithms_are_deterministic_inside_the_block_only_and_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(VARIABLE, raising=False)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
        assert VARIABLE not in os.environ
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        assert os.environ[VARIABLE] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == filled
    monkeypatch.setenv(VARIABLE, ":16:8")
    refused = "some_kernel_cuda does not have a deterministic implementation, but you set"
    with pytest.raises(ConfigError, match="some_kernel_cuda") as caught, deterministic_algorithms(True):
        raise RuntimeError(refused)
    assert os.environ[VARIABLE] == ":16:8"
    assert "compute.deterministic=false" in str(caught.value.next_step)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="other"), deterministic_algorithms(True):
        raise RuntimeError("other")


@pytest.mark.parametrize(
    ("variables", "arguments", "code", "message"),
    [
        ({"RANK": "1"}, ["runs/none"], 10, "RANK=1 WORLD_SIZE= LOCAL_RANK="),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, ["runs/none"], 10, "LOCAL_RANK=x"),
        ({}, [], 2, "RUN_DIRECTORY"),
    ],
)
def test_processes_that_no_launcher_started_are_refused(
    variables: dict[str, str], arguments: list[str], code: int, message: str
):
    command = [sys.executable, "-m", "pipeline.pretrain", *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
