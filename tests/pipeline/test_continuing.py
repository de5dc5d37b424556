"""Which run a configuration, or a job, goes on with."""

from __future__ import annotations

from pathlib import Path

from pipeline.pretrain.continuing import find_same_run, run_of_job
from pipeline.runs.directory import RunDirectory, RunInfo
from tests.conftest import write_store
from tests.pipeline.ranks import make_run


def test_run_of_a_job_is_found_by_its_submission_id(tmp_path: Path):
    other = make_run(tmp_path, tmp_path / "none", "other")
    assert run_of_job(other.path.parent, "job-1") is None
    own = RunDirectory(other.path.parent / "own")
    own.create(RunInfo(name="own", run_id="r", tracking_uri="", submission_id="job-1"), other.config())
    assert run_of_job(other.path.parent, "job-1") == own
    (own.path / "run.json").write_text("torn")
    assert run_of_job(other.path.parent, "job-1") is None


def test_same_run_has_the_same_name_settings_and_data_and_any_machines(tmp_path: Path):
    store = write_store(tmp_path / "tokens")
    run = make_run(tmp_path, store, "run")
    config = run.config()
    assert find_same_run(config) == run
    machines = {"checkpoint": config.checkpoint.model_copy(update={"every_steps": 3})}
    assert find_same_run(config.model_copy(update=machines)) == run
    for changed in ({"name": "another"}, {"seed": 7}, {"steps": (config.steps or 0) + 1}):
        assert find_same_run(config.model_copy(update=changed)) is None
