"""A job or a run is described with the meaning of its end, and its bundle holds what explains it, in any state of the
run: no secret, no weight, no text. Messages as JSON name run, rank and step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import logs
from cluster.artefacts.errors import (
    ClusterUnreachableError,
    MissingInputError,
    NonFiniteError,
    ReferenceNotFoundError,
    exit_codes,
)
from pipeline.pretrain.progress import log_events
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.lifecycle import record_failure, record_launch
from pipeline.run.submission import JOB_VARIABLE
from pipeline.watch.description import describe, ending_of, parts_of_run, write_bundle
from tests.pipeline.command import cloze, invoke
from tests.pipeline.process_group import Group
from tests.pipeline.ranks import make_run
from tests.pipeline.watch.conftest import HOST, contents

ROOT = Path(__file__).parents[3]
PLANTED = "pl4nted"
"""Part of every secret of these tests."""


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A user without a cluster, and with a home directory of their own."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "RAY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOZE_LOCAL_CLUSTER", str(tmp_path / "no-cluster.json"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_every_documented_exit_code_has_a_meaning_and_a_page_that_exists():
    for code, error in exit_codes().items():
        ending = ending_of(code)
        assert (ending["error"], bool(ending["meaning"])) == (error.__name__, True)
        assert not ending["runbook"] or (ROOT / ending["runbook"]).is_file()
    assert all(ending_of(other)["meaning"] for other in (0, 2, 99, 130))
    for killed in (-9, 137):
        assert ending_of(killed)["meaning"] == f"killed by {signal.SIGKILL.name}"
        assert (ROOT / ending_of(killed)["runbook"]).is_file()


def test_failed_run_is_described_with_its_error_and_the_command_that_continues_it(run: RunDirectory):
    record_failure(run, NonFiniteError("100 losses were NaN", next_step="lower the learning rate"))
    printed = cloze("describe", "watched")
    told = ("36", "NonFiniteError", "not-a-number.md", "100 losses were NaN", "cloze resume", HOST, "7 of 12")
    assert [text for text in told if text not in printed] == []
    found = json.loads(cloze("describe", "watched", "--json"))
    assert (found["ending"]["exit_code"], found["run"]["restarts"], found["nodes"]) == (36, 1, [HOST])
    assert len(found["config_hash"]) == 32
    run.info_file.write_bytes(b"{")
    assert "unreadable" in cloze("describe", "watched")


def test_run_is_found_by_every_job_that_drove_it(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    jobs = ("cloze-pretrain-1", "cloze-resume-2")
    for job in jobs:
        monkeypatch.setenv(JOB_VARIABLE, job)
        record_launch(run)
    for job in jobs:
        found = describe(job, run.path.parent, None)["run"]
        assert (found["name"], found["submission_id"]) == ("watched", "cloze-resume-2")
    with pytest.raises(ReferenceNotFoundError, match="mean watched"):
        describe("watchd", run.path.parent, None)


@pytest.mark.usefixtures("run")
def test_cluster_that_does_not_answer_keeps_no_run_from_being_described(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    printed = invoke("describe", "watched")
    assert printed.exit_code == 0, printed.output
    assert "Without its job: No Ray cluster answers" in printed.stderr
    named = invoke("describe", "watched", "--address", "http://127.0.0.1:1")
    assert isinstance(named.exception, ClusterUnreachableError)


def test_driver_reports_each_new_event_once_with_its_rank_and_node(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    said: list[Any] = []
    monkeypatch.setattr(logs, "say", lambda message, level, **members: said.append((message, level, members)))
    before = len(run.events())
    run.record_event(Event.STALLED, rank=3, host="gpu-7", step=5, message="no heartbeat for 900 s")
    run.record_event(Event.RESTARTS_RENEWED, step=9)
    assert log_events(run, log_events(run, before)) == before + 2
    (stalled, level, members), (_, renewed_level, renewed) = said
    assert (stalled, level) == ("stalled: no heartbeat for 900 s", "warning")
    assert (members["rank"], members["node"], members["step"]) == (3, "gpu-7", 5)
    assert (renewed_level, renewed["event"]) == ("info", "restarts-renewed")


def test_rank_that_fails_says_so_as_json_with_run_rank_and_step(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    monkeypatch.chdir(ROOT)
    run = make_run(tmp_path, store, "failing", "optimizer.lr=1e38", "guards.max_skipped_updates=2")
    group = Group("pipeline.pretrain", [run.path], 1)
    assert group.wait() == NonFiniteError.exit_code, group.output
    found = [json.loads(line) for line in group.output.splitlines() if line.startswith('{"time"')]
    (error,) = [one for one in found if one["level"] == "error"]
    expected = {"run": "failing", "rank": 0, "error": "NonFiniteError", "exit_code": 36}
    assert {name: error[name] for name in expected} == expected
    assert error["step"] > 0


def entries(file: Path) -> dict[str, str]:
    """The texts of a bundle by their names in its folder."""
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == sorted(member.name for member in members)
        assert all(member.isreg() and not member.mtime and not member.uid for member in members)
        assert len({member.name.partition("/")[0] for member in members}) == 1
        texts: Any = ((member.name.partition("/")[2], archive.extractfile(member)) for member in members)
        return {name: stream.read().decode() for name, stream in texts}


@pytest.fixture
def bundle(run: RunDirectory, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """What `cloze support-bundle` writes of a run with weights."""
    weights = run.checkpoints / "step-00000004" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights-of-the-run" * 100_000)

    def write(*arguments: str) -> dict[str, str]:
        done = invoke("support-bundle", run.path, "--out", tmp_path / "bundle.tar.gz", *arguments)
        assert done.exit_code == 0, done.output
        assert PLANTED not in done.output
        return entries(tmp_path / "bundle.tar.gz")

    return write


def test_bundle_has_settings_events_logs_versions_plan_checks_and_heartbeats(
    run: RunDirectory, bundle: Callable[..., dict[str, str]]
):
    run.heartbeats.mkdir()
    run.heartbeat(0).write_text('{"rank":0}\n')
    before = contents(run.path)
    found = bundle()
    assert contents(run.path) == before
    names = ("last-metrics", "description", "status", "versions", "doctor", "plan")
    metrics, description, status, versions, doctor, plan = (
        json.loads(found[f"{name}.json"]) for name in names
    )
    assert metrics["train"]["data"]["loss"] == 2.0
    assert (description["nodes"], status["restarts"]) == ([HOST], 1)
    assert "torch" in versions["installed"]
    assert {check["name"] for check in doctor} > {"python", "memory"}
    assert plan["parameters"] > 0
    copies = {"config.yaml": run.config_file, "events.jsonl": run.history, "log-tail.jsonl": run.log}
    copies["heartbeats/rank-00000"] = run.heartbeat(0)
    assert {name: found[f"run/{name}"] for name in copies} == {
        n: file.read_text() for n, file in copies.items()
    }
    assert "checkpoints/step-00000004/model.safetensors" in found["run/files.txt"]
    assert all(name in found["README.txt"] for name in found if name != "README.txt")
    assert sum(map(len, found.values())) < 200_000
    assert not any("weights-of-the-run" in text for text in found.values())


def test_secrets_that_were_planted_everywhere_are_in_no_bundle(
    run: RunDirectory, bundle: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri = f"postgresql://user:{PLANTED}-in-uri@host/mlflow?token={PLANTED}-in-query"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", f"{PLANTED}-in-variable")
    monkeypatch.setenv("CUDA_API_KEY", f"{PLANTED}-in-cuda-variable")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (tmp_path / ".netrc").write_text(f"machine host login me password {PLANTED}-in-netrc\n")
    (tmp_path / ".env").write_text(f"WANDB_API_KEY={PLANTED}-in-dotenv\n")
    for place in (run.config_file, run.path / "config.yaml.1"):
        # An earlier version of the file, as an editor left it.
        text = run.config_file.read_text().rpartition("# xxh3")[0]
        place.write_text(f"{text}db_password: {PLANTED}-in-settings\nstore: {uri}\n")
    with run.log.open("a") as log:
        data = {"message": f"refused {PLANTED}-in-netrc", "note": f"Authorization: Bearer {PLANTED}x"}
        print(json.dumps({"kind": "spike", "step": 7, "time_ms": 1, "data": data}), file=log)
    run.record_event(Event.FAILED, error="ValueError", message=f"{uri} with {PLANTED}-in-dotenv")
    run.record_event(Event.LAUNCHED, submission_id="j", env={"X_TOKEN": f"{PLANTED}-in-job"})
    run.log_errors.write_text(f"Traceback\nmlflow --password {PLANTED}-in-option {PLANTED}-in-variable\n")
    run.stacks.mkdir()
    run.stack_file(0, "host", 1).write_text(f"File x\n  api_key='{PLANTED}-in-stack'\n")
    found = bundle("--no-plan")
    assert {name: text for name, text in found.items() if PLANTED in text} == {}
    assert "refused ***" in found["run/log-tail.jsonl"]
    assert "mlflow --password ***" in found["run/log.errors"]


def test_same_run_gives_the_same_bytes_and_a_long_log_its_end(run: RunDirectory, tmp_path: Path):
    with run.log.open("a") as log:
        log.writelines(f'{{"kind":"train","step":{n},"time_ms":1,"data":{{}}}}\n' for n in range(8, 5000))
    with run.history.open("a") as history:
        history.write(f'{{"event":"{Event.SPIKE}","note":"{"x" * (2 << 20)}"}}\n')
    parts = [part for part in parts_of_run(run, None) if part[0] != "description.json"]
    files = [tmp_path / name for name in ("a.tar.gz", "b.tar.gz")]
    for file in files:
        write_bundle(run, parts, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    found = entries(files[0])
    assert len(found["run/log-tail.jsonl"].splitlines()) == 1000
    assert '"step":4999' in found["run/log-tail.jsonl"]
    assert found["run/events.jsonl"].startswith("[the first ")


def test_damaged_directory_gives_a_bundle_that_says_what_could_not_be_read(
    run: RunDirectory, bundle: Callable[..., dict[str, str]], tmp_path: Path
):
    run.info_file.unlink()
    run.config_file.write_bytes(b"\xff\xfe not yaml: [")
    run.history.write_bytes(b'{"event":"started"}\nnonsense\n')
    os.mkfifo(run.path / "stop.json")
    (tmp_path / "secret.txt").write_text("not of the run")
    run.skipped.symlink_to(tmp_path / "secret.txt")
    shutil.rmtree(run.checkpoints)
    found = bundle()
    assert "plan.json" in found["problems.txt"]
    assert json.loads(found["status.json"])["state"] == "unreadable"
    assert "nonsense" in found["run/events.jsonl"]
    assert "skipped.json" in found["run/files.txt"]
    assert not any("not of the run" in text for text in found.values())


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    # A directory of others is no run, and is not even listed.
    ("arguments", "error"),
    [
        (["nosuch"], ReferenceNotFoundError),
        (["runs"], ReferenceNotFoundError),
        (["watched", "--out", "no/dir/x.tar.gz"], MissingInputError),
    ],
)
def test_what_cannot_be_found_or_written_is_said_at_once(arguments: list[str], error: type[Exception]):
    assert isinstance(invoke("support-bundle", *arguments).exception, error)
