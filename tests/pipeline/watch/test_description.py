"""A job or a run is described with the meaning of its end, and every documented exit code has one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from cluster.artefacts.errors import (
    ClusterUnreachableError,
    NonFiniteError,
    ReferenceNotFoundError,
    exit_codes,
)
from pipeline.run.directory import RunDirectory
from pipeline.run.lifecycle import record_failure, record_launch
from pipeline.run.submission import JOB_VARIABLE
from pipeline.watch.description import describe, ending_of
from tests.pipeline.command import cloze, invoke
from tests.pipeline.watch.materials import HOST

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOZE_LOCAL_CLUSTER", str(tmp_path / "no-cluster.json"))


def test_every_documented_exit_code_has_a_meaning_and_a_page_that_exists():
    for code, error in exit_codes().items():
        ending = ending_of(code)
        assert (ending.error, bool(ending.meaning)) == (error.__name__, True)
        assert not ending.runbook or (ROOT / ending.runbook).is_file()
    assert [ending_of(code).meaning[:7] for code in (0, 2, 130)] == ["success", "a comma", "Ctrl-C"]
    for killed in (-9, 137):
        assert ending_of(killed).meaning == f"killed by {signal.SIGKILL.name}"
        assert (ROOT / ending_of(killed).runbook).is_file()
    assert "no documented exit code" in ending_of(99).meaning


def test_failed_run_is_described_with_its_error_and_the_command_that_continues_it(run: RunDirectory):
    record_failure(run, NonFiniteError("100 losses were NaN", next_step="lower the learning rate"))
    printed = cloze("describe", "watched", "--runs-dir", run.path.parent)
    for text in (
        "36",
        "NonFiniteError",
        "not-a-number.md",
        "100 losses were NaN",
        "cloze resume",
        HOST,
        "7 of 12",
    ):
        assert text in printed, text
    found = json.loads(cloze("describe", "watched", "--runs-dir", run.path.parent, "--json"))
    assert (found["ending"]["exit_code"], found["run"]["restarts"], found["nodes"]) == (36, 1, [HOST])
    assert len(found["config_hash"]) == 32
    run.info_file.write_bytes(b"{")
    assert "unreadable" in cloze("describe", "watched", "--runs-dir", run.path.parent)


def test_run_is_found_by_every_job_that_drove_it(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    for job in ("cloze-pretrain-1", "cloze-resume-2"):
        monkeypatch.setenv(JOB_VARIABLE, job)
        record_launch(run)
    for job in ("cloze-pretrain-1", "cloze-resume-2"):
        found = describe(job, run.path.parent, None)["run"]
        assert (found["name"], found["submission_id"]) == ("watched", "cloze-resume-2")
    with pytest.raises(ReferenceNotFoundError, match="mean watched"):
        describe("watchd", run.path.parent, None)


def test_cluster_that_does_not_answer_keeps_no_run_from_being_described(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    asked = ["describe", "watched", "--runs-dir", str(run.path.parent)]
    printed = invoke(*asked)
    assert printed.exit_code == 0, printed.output
    assert "Without its job: No Ray cluster answers" in printed.stderr
    named = invoke(*asked, "--address", "http://127.0.0.1:1")
    assert isinstance(named.exception, ClusterUnreachableError)
