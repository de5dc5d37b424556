"""`cloze submit`, `jobs`, `logs` and `stop`, with a real local Ray cluster that `submit` itself starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError, MissingInputError, ReferenceNotFoundError
from cluster.jobs import connect as connect_jobs
from cluster.jobs import submit
from cluster.local_cluster import resolve_address, start_local_cluster
from pipeline.commands.verbs import app
from pipeline.run import submission
from tests.pipeline.ranks import make_config

SLEEPING = """
import sys, time, typer
from pipeline import cli
from pipeline.commands import verbs
verbs.app = typer.Typer()
@verbs.app.command()
def verb(words: list[str], data_dir: str = ""):
    print("a" + "wake", flush=True)
    time.sleep(600)
sys.argv = ["cloze", "doctor", "--data-dir", "."]
cli.main()
"""


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


def test_same_work_is_not_started_twice_while_it_runs_and_is_attempt_2_after_it_ended(cli):
    prepared = submission.prepare(app, ["doctor", "--data-dir", "."])
    base_id = prepared.base_id
    start_local_cluster()
    submit(
        connect_jobs(resolve_address(None)),
        base_id,
        (sys.executable, "-c", SLEEPING),
        root=Path(submission.__file__).parents[2],
        code=submission.CODE,
        metadata={submission.VERB_KEY: "doctor"},
        environment=submission.environment_of(base_id),
        stop_grace_s=prepared.stop_grace_s,
    )
    while "awake" not in cli("logs", base_id).output:
        time.sleep(0.1)
    answer = json.loads(cli("submit", "--json", "--", "doctor", "--data-dir", ".").stdout)
    assert (answer["submission_id"], answer["started"]) == (base_id, False)
    assert base_id in cli("submit", "--", "doctor", "--data-dir", ".").stderr.splitlines()[0]
    assert "STOPPED" in cli("stop", base_id).output
    assert "Next: cloze doctor --data-dir ." in cli("logs", base_id).output
    assert "STOPPED" in cli("jobs").output
    answer = json.loads(cli("submit", "--json", "--", "doctor", "--data-dir", ".").stdout)
    assert (answer["submission_id"], answer["started"]) == (f"{base_id}-2", True)


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


def test_failed_job_gives_its_exit_code(cli):
    failed = cli("submit", "--wait", "--env", "MLFLOW_TRACKING_URI=http://127.0.0.1:1", "--", "doctor")
    assert failed.exit_code == 1
    assert "exit code 1" in failed.output
    job = failed.stdout.splitlines()[0]
    described = json.loads(cli("describe", job, "--json").stdout)
    assert (described["job"]["status"], described["ending"]["error"]) == ("FAILED", "ClozeError")
    assert (described["job"]["verb"], described["run"]) == ("doctor", None)


def test_top_shows_the_nodes_and_jobs_of_a_cluster(cli):
    told = json.loads(cli("top", "--json", "--address", resolve_address(None)).stdout)
    (node,) = told["nodes"]
    assert (node["of"], node["is_alive"]) == ("cluster", True)
    assert 0 < node["memory_ratio"] < 1
    assert {row["verb"] for row in told["jobs"]} == {"doctor"}


def test_unknown_job_and_missing_names_are_explained(cli):
    result = cli("logs", "cloze-doctor-0000000000")
    assert isinstance(result.exception, ReferenceNotFoundError)
    assert cli("stop").exit_code == 2


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
    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE"):
        submission.given_variables(["NO_SUCH_VARIABLE"])


def test_the_code_that_a_job_gets_finds_the_configurations_that_come_with_cloze(tmp_path: Path):
    root = Path(__file__).parents[2]
    for name in submission.CODE:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, tmp_path / name)
    script = "from pipeline.config import shipped; print(shipped.require_shipped('bert-tiny'))"
    found = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, text=True)
    assert found.strip() == str(tmp_path / "configs" / "pretrain" / "bert-tiny.yaml")
