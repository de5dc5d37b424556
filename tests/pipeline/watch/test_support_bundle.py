"""A support bundle has what is needed to understand a run in any state, and no secret, no weight, no text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.watch.description import parts_of_run, write_bundle
from tests.pipeline.watch.materials import HOST, contents, watched_run

CLOZE = Path(sys.executable).with_name("cloze")
PLANTED = "pl4nted"
"""Part of every secret of these tests."""


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    run = watched_run(tmp_path, store)
    weights = run.checkpoints / "step-00000004" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights-of-the-run" * 100_000)
    return run


def entries(file: Path) -> dict[str, str]:
    """The texts of a bundle by their names in its folder."""
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == sorted(member.name for member in members)
        assert all(member.isreg() and not member.mtime and not member.uid for member in members)
        assert len({member.name.partition("/")[0] for member in members}) == 1
        texts = ((member.name.partition("/")[2], archive.extractfile(member)) for member in members)
        return {name: stream.read().decode() for name, stream in texts if stream is not None}


def bundle(run: RunDirectory, *arguments: str, **variables: str) -> dict[str, str]:
    """What `cloze support-bundle` writes, without the plan."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "RAY_"))}
    home = run.path.parents[1]
    environment = kept | {"HOME": str(home), "CLOZE_LOCAL_CLUSTER": str(home / "none.json")} | variables
    command = [str(CLOZE), "support-bundle", str(run.path), "--out", str(home / "bundle.tar.gz"), *arguments]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert PLANTED not in done.stdout + done.stderr
    return entries(home / "bundle.tar.gz")


def test_bundle_has_settings_events_logs_versions_plan_checks_and_heartbeats(run: RunDirectory):
    run.heartbeats.mkdir()
    run.heartbeat(0).write_text('{"rank":0}\n')
    before = contents(run.path)
    found = bundle(run)
    assert contents(run.path) == before
    assert json.loads(found["last-metrics.json"])["train"]["data"]["loss"] == 2.0
    assert json.loads(found["description.json"])["nodes"] == [HOST]
    assert json.loads(found["status.json"])["restarts"] == 1
    assert "torch" in json.loads(found["versions.json"])["installed"]
    assert {check["name"] for check in json.loads(found["doctor.json"])} > {"python", "memory"}
    assert json.loads(found["plan.json"])["parameters"] > 0
    assert found["run/config.yaml"] == run.config_file.read_text()
    assert found["run/events.jsonl"] == run.history.read_text()
    assert found["run/log-tail.jsonl"] == run.log.read_text()
    assert found["run/heartbeats/rank-00000"] == '{"rank":0}\n'
    assert "checkpoints/step-00000004/model.safetensors" in found["run/files.txt"]
    assert all(name in found["README.txt"] for name in found if name != "README.txt")
    assert sum(map(len, found.values())) < 200_000
    assert not any("weights-of-the-run" in text for text in found.values())


def test_secrets_that_were_planted_everywhere_are_in_no_bundle(run: RunDirectory):
    home = run.path.parents[1]
    uri = f"postgresql://user:{PLANTED}-in-uri@host/mlflow?token={PLANTED}-in-query"
    (home / ".netrc").write_text(f"machine host login me password {PLANTED}-in-netrc\n")
    (home / ".env").write_text(f"WANDB_API_KEY={PLANTED}-in-dotenv\n")
    for place in (run.config_file, run.path / "config.yaml.1"):
        # An earlier version of the file, as an editor left it.
        text = run.config_file.read_text().rpartition("# xxh3")[0]
        place.write_text(f"{text}db_password: {PLANTED}-in-settings\nstore: {uri}\n")
    with run.log.open("a") as log:
        log.write(
            f'{{"kind":"spike","step":7,"time_ms":1,"data":{{"message":"refused {PLANTED}-in-netrc"}}}}\n'
        )
        log.write(
            f'{{"kind":"spike","step":7,"time_ms":1,"data":{{"note":"Authorization: Bearer {PLANTED}x"}}}}\n'
        )
    with run.history.open("a") as history:
        history.write(
            f'{{"event":"failed","error":"ValueError","message":"{uri} with {PLANTED}-in-dotenv"}}\n'
        )
        history.write(f'{{"event":"launched","submission_id":"j","env":{{"X_TOKEN":"{PLANTED}-in-job"}}}}\n')
    run.log_errors.write_text(f"Traceback\nmlflow --password {PLANTED}-in-option {PLANTED}-in-variable\n")
    run.stacks.mkdir()
    run.stack_file(0, "host", 1).write_text(f"File x\n  api_key='{PLANTED}-in-stack'\n")
    found = bundle(
        run,
        "--no-plan",
        MLFLOW_TRACKING_PASSWORD=f"{PLANTED}-in-variable",
        CUDA_API_KEY=f"{PLANTED}-in-cuda-variable",
        MLFLOW_TRACKING_URI=uri,
    )
    leaks = {name: text for name, text in found.items() if PLANTED in text}
    assert leaks == {}
    assert "refused ***" in found["run/log-tail.jsonl"]
    assert "mlflow --password ***" in found["run/log.errors"]


def test_same_run_gives_the_same_bytes_and_a_long_log_its_end(run: RunDirectory, tmp_path: Path):
    with run.log.open("a") as log:
        log.writelines(f'{{"kind":"train","step":{n},"time_ms":1,"data":{{}}}}\n' for n in range(8, 5000))
    with run.history.open("a") as history:
        history.write(f'{{"event":"{Event.SPIKE}","note":"{"x" * (2 << 20)}"}}\n')
    parts = [part for part in parts_of_run(run, None) if part[0] != "description.json"]
    made = [write_bundle(run, parts, tmp_path / name) for name in ("a.tar.gz", "b.tar.gz")]
    files = [Path(one["file"]).read_bytes() for one in made]
    assert files[0] == files[1]
    found = entries(tmp_path / "a.tar.gz")
    assert len(found["run/log-tail.jsonl"].splitlines()) == 1000
    assert '"step":4999' in found["run/log-tail.jsonl"]
    assert found["run/events.jsonl"].startswith("[the first ")


def test_damaged_directory_gives_a_bundle_that_says_what_could_not_be_read(run: RunDirectory):
    run.info_file.unlink()
    run.config_file.write_bytes(b"\xff\xfe not yaml: [")
    run.history.write_bytes(b'{"event":"started"}\nnonsense\n')
    os.mkfifo(run.path / "stop.json")
    outside = run.path.parents[1] / "secret.txt"
    outside.write_text("not of the run")
    run.skipped.symlink_to(outside)
    shutil.rmtree(run.checkpoints)
    found = bundle(run)
    assert "plan.json" in found["problems.txt"]
    assert json.loads(found["status.json"])["state"] == "unreadable"
    assert "nonsense" in found["run/events.jsonl"]
    assert "skipped.json" in found["run/files.txt"]
    assert not any("not of the run" in text for text in found.values())


@pytest.mark.parametrize(
    ("arguments", "code"), [(["nosuch"], 23), (["no-run"], 23), (["watched", "--out", "no/dir/x.tar.gz"], 11)]
)
def test_what_cannot_be_found_or_written_is_said_at_once(run: RunDirectory, arguments: list[str], code: int):
    # A directory of others is no run, and is not even listed.
    arguments = [str(run.path.parent) if name == "no-run" else name for name in arguments]
    command = [str(CLOZE), "support-bundle", *arguments, "--runs-dir", str(run.path.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Next: " in done.stderr
