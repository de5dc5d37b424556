"""`cloze submit`, `jobs`, `logs` and `stop`, with a real local Ray cluster that `submit` itself starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError, MissingInputError, ReferenceNotFoundError
from cluster.jobs import STOP_SIGNAL
from cluster.local_cluster import resolve_address
from pipeline.commands.verbs import app
from pipeline.run import submission
from tests.pipeline.ranks import make_config


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    """Invokes the verbs; the local cluster that the first submission starts is stopped at the end."""
    runner = CliRunner()

    def invoke(*arguments: str):
        return runner.invoke(app, list(arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOZE_LOCAL_CLUSTER", str(tmp_path_factory.mktemp("state") / "cluster.json"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.chdir(tmp_path_factory.mktemp("work"))
        try:
            yield invoke
        finally:
            assert "Stopped the cluster" in invoke("stop", "--cluster").output
            assert "No local cluster" in invoke("stop", "--cluster").output


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_config(tmp_path, Path("tokens"))
    return tmp_path / "tiny.yaml"


def test_submitted_verb_outlives_the_command_and_is_listed_with_its_log(cli):
    submitted = cli("submit", "--wait", "--", "doctor", "--json")
    assert submitted.exit_code == 0, submitted.output
    assert '"ok": true' in submitted.output
    (job,) = json.loads(cli("jobs", "--json").stdout)
    assert (job["verb"], job["status"], job["exit_code"]) == ("doctor", "SUCCEEDED", 0)
    assert job["submission_id"] in cli("jobs").output
    assert '"ok": true' in cli("logs", job["submission_id"]).output
    assert "SUCCEEDED" in cli("stop", job["submission_id"]).output


def test_job_starts_after_another_has_succeeded_and_not_after_a_failure(cli):
    first = json.loads(cli("submit", "--json", "--", "doctor", "--runs-dir", "first").stdout)["submission_id"]
    then = ("--after", first, "--retries", "1", "--", "doctor", "--runs-dir", "later", "--json")
    later = cli("submit", "--wait", *then)
    assert later.exit_code == 0, later.output
    assert '"ok": true' in later.output
    failing = ("--env", "MLFLOW_TRACKING_URI=http://127.0.0.1:1", "--", "doctor", "--runs-dir", "failing")
    failed = json.loads(cli("submit", "--json", *failing).stdout)["submission_id"]
    refused = cli("submit", "--wait", "--after", failed, "--", "doctor", "--runs-dir", "never")
    assert refused.exit_code == 1
    assert f"{failed}, which is FAILED" in refused.output
    unknown = cli("submit", "--after", "cloze-doctor-0000000000", "--", "doctor")
    assert isinstance(unknown.exception, ReferenceNotFoundError)


def test_group_of_nodes_becomes_settings_of_the_verb(config):
    sized, resume = submission.with_group_size, ["resume", "run"]
    for group, settings in (
        ((2, 4, None), ["cluster.workers=8", "cluster.gpus_per_worker=1"]),
        ((3, None, None), ["cluster.workers=3", "cluster.gpus_per_worker=0"]),
        ((None, 1, "2:8"), ["cluster.workers=8", "cluster.gpus_per_worker=1", "cluster.min_workers=2"]),
    ):
        assert sized(resume, *group) == resume + settings
    for wrong in ("8", "a:b", ":"):
        with pytest.raises(ConfigError):
            sized(resume, None, None, wrong)
    assert sized(["doctor"], None, None) == ["doctor"]
    with pytest.raises(ConfigError):
        sized(["doctor"], 2, None)
    with pytest.raises(ConfigError, match=r"batch\.samples"):
        submission.prepare(app, sized(["pretrain", str(config)], 3, None))


def test_failed_job_gives_its_exit_code_and_is_attempt_2_when_it_is_submitted_again(cli):
    failing = ("--env", "MLFLOW_TRACKING_URI=http://127.0.0.1:1", "--", "doctor")
    failed = cli("submit", "--wait", *failing)
    job = failed.stdout.splitlines()[0]
    assert failed.exit_code == 1
    assert json.loads(cli("submit", "--json", *failing).stdout)["submission_id"] == f"{job}-2"
    described = json.loads(cli("describe", job, "--json").stdout)
    assert (described["job"]["status"], described["ending"]["error"]) == ("FAILED", "ClozeError")
    assert (described["job"]["verb"], described["run"]) == ("doctor", None)
    told = json.loads(cli("top", "--json", "--address", resolve_address(None)).stdout)
    (node,) = told["nodes"]
    assert (node["of"], node["is_alive"]) == ("cluster", True)
    assert {row["verb"] for row in told["jobs"]} == {"doctor"}
    assert isinstance(cli("logs", "cloze-doctor-0000000000").exception, ReferenceNotFoundError)
    assert cli("stop").exit_code == 2


def test_a_job_that_trains_is_stopped_by_sigterm_and_gets_its_grace_time(config):
    job = submission.prepare(app, ["pretrain", str(config), "guards.grace_s=90"])
    assert (STOP_SIGNAL, job.stop_grace_s) == ("SIGTERM", 120)
    assert submission.prepare(app, ["doctor"]).stop_grace_s == 30


def test_submission_id_follows_from_arguments_configuration_and_directory(config, tmp_path, monkeypatch):
    def prepared(steps: int = 4) -> str:
        return submission.prepare(app, ["pretrain", str(config), f"steps={steps}"]).base_id

    found = [prepared(), prepared(5)]
    assert found[0] == prepared()
    assert found[0].startswith("cloze-pretrain-")
    config.write_text(config.read_text().replace("1e-3", "2e-3"))
    found.append(prepared())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found.append(prepared())
    assert len(set(found)) == 4


def test_mistakes_are_reported_before_anything_is_submitted(config):
    for error, said, words in (
        (ConfigError, "did you mean steps", ["pretrain", str(config), "stepz=4"]),
        (ConfigError, "Did you mean pretrain", ["pretrian", str(config)]),
        (ConfigError, "submit", ["submit", "--", "doctor"]),
        (MissingInputError, "nowhere", ["pretrain", "nowhere.yaml"]),
        (ReferenceNotFoundError, "no-such-run", ["resume", "no-such-run"]),
    ):
        with pytest.raises(error, match=said):
            submission.prepare(app, words)
    assert "No such option" in CliRunner().invoke(app, ["submit", "--", "doctor", "--no-such"]).output


def test_what_is_passed_on_is_named_or_refused(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/cache")
    assert submission.given_variables(["A=b=c", "HF_HOME"]) == {"A": "b=c", "HF_HOME": "/cache"}
    for refused in ("NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE=https://user:planted@host"):
        with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE") as caught:
            submission.given_variables([refused])
        assert "planted" not in str(caught.value)


def test_the_code_that_a_job_gets_finds_the_configurations_that_come_with_cloze(tmp_path: Path):
    root = Path(__file__).parents[2]
    for name in submission.CODE:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, tmp_path / name)
    script = "from pipeline.config import shipped; print(shipped.require_shipped('bert-tiny'))"
    found = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, text=True)
    assert found.strip() == str(tmp_path / "configs" / "pretrain" / "bert-tiny.yaml")
