"""Verbs as jobs: checked before anything is sent, with an id that follows from the work.

The id hashes the verb with its arguments, the configuration that they resolve to, and the directory that relative
paths start from. So the same work has the same id, and is not started twice by mistake.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.credentials import has_credentials, split_tracking_credentials
from cluster.artefacts.errors import ConfigError
from cluster.signals import JOB_VARIABLE

if TYPE_CHECKING:
    import typer
    from ray.job_submission import JobDetails, JobSubmissionClient

PASSED_ON = ("CLOZE_DATA", "MLFLOW_TRACKING_URI")
"""Environment variables that a job gets from its submitter when they are set."""
CODE = ("pipeline", "data_prep", "models", "cluster", "pyproject.toml")
"""Shipped with a job, from beside this package."""
CONTROL_VERBS = frozenset({"submit", "jobs", "logs", "stop"})
"""Verbs that act on jobs and cannot be jobs."""
CONFIG_KINDS = {
    "pretrain": ("pipeline.runs.config", "PretrainConfig"),
    "finetune": ("pipeline.demo.tasks", "FinetuneConfig"),
    "data prepare": ("data_prep.config", "PreparationConfig"),
}
"""Module and class of the configuration that a verb reads."""
SAVING_VERBS = frozenset({"pretrain", "resume"})
"""Verbs that answer SIGTERM by saving."""
_LEAVE_S = 30
"""Seconds that a stopped verb has, besides those for saving, to end its workers and its tracking."""
_ID_DIGITS = 10
_END_STATUS = {"STOPPED": "KILLED", "FAILED": "FAILED"}
"""Status of the MLflow run by status of the job that died."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A verb that is ready to be submitted to a cluster."""

    verb: str
    """Such as `pretrain` or `data prepare`."""
    arguments: tuple[str, ...]
    """The verb and its arguments, as typed."""
    base_id: str
    """Submission id of the first attempt."""
    config_hash: str | None
    """hash_json of the resolved configuration; None for verbs without one."""
    runs_dir: Path | None
    """Where the verb's run is tracked; None for verbs that track none."""
    run_id: str | None
    """MLflow run that a resumption continues."""
    grace_s: float | None
    """Seconds that the verb has for saving when SIGTERM stops it; None for verbs that do not save then."""
    new_run: tuple[str, str] | None
    """Experiment and name of the MLflow run to reserve for a new pre-training run."""

    def reserve_run(self) -> str | None:
        """Reserve the MLflow run of a new pre-training run; returns the id of the run that the job writes to.

        Raises:
            TrackingUnreachableError: the tracking store does not answer.
        """
        if self.new_run is None or self.runs_dir is None:
            return self.run_id
        from pipeline.runs.tracking import reserve_run

        experiment, name = self.new_run
        return reserve_run(experiment, name, runs_dir=self.runs_dir).run_id

    def release_run(self, run_id: str | None) -> None:
        """End the reserved run, because its job was not accepted."""
        if self.new_run and self.runs_dir and run_id:
            from pipeline.runs.tracking import end_run

            end_run(run_id, "KILLED", runs_dir=self.runs_dir, only_from=("SCHEDULED",))

    def stopping(self) -> dict[str, Any]:
        """Signal and grace period of the job, as fields of `JobRequest`."""
        return {"stop_signal": "SIGTERM", "stop_grace_s": math.ceil(self.grace_s or 0) + _LEAVE_S}

    def metadata(self, run_id: str | None) -> dict[str, str]:
        """The metadata that the cluster stores with the job."""
        known = {
            "cloze_verb": self.verb,
            "config_hash": self.config_hash,
            "mlflow_run_id": run_id,
            "runs_dir": str(self.runs_dir.resolve()) if self.runs_dir else None,
        }
        return {name: value for name, value in known.items() if value is not None}


def prepare(app: typer.Typer, arguments: Sequence[str]) -> Submission:
    """Parse a verb as the command line would, resolve its configuration and derive its id; starts nothing.

    Raises:
        ConfigError, MissingInputError: no such verb, or its configuration is wrong.
        ReferenceNotFoundError: the run to be resumed does not exist.
    """
    if any(map(has_credentials, arguments)):
        raise ConfigError(
            "An argument has a URI with credentials, and all who may look at the cluster see a job's command line.",
            next_step="put the URI into the YAML file, or into a variable that the cluster's machines have:"
            " ${oc.env:NAME}",
        )
    verb, values = _parse(app, arguments)
    from cluster.artefacts.manifest import hash_json

    config, runs_dir, run_id = _config_of(verb, values)
    config_hash = None if config is None else hash_json(config.model_dump(mode="json"))
    digest = hash_json([list(arguments), config_hash, os.getcwd()])[:_ID_DIGITS]
    starts_run = verb == "pretrain" and not values.get("dry_run")
    return Submission(
        verb=verb,
        arguments=tuple(arguments),
        base_id=f"cloze-{verb.replace(' ', '-')}-{digest}",
        config_hash=config_hash,
        runs_dir=runs_dir,
        run_id=run_id,
        grace_s=config.guards.grace_s if config is not None and verb in SAVING_VERBS else None,
        new_run=(config.experiment, config.name) if config is not None and starts_run else None,
    )


def submit(
    client: JobSubmissionClient,
    submission: Submission,
    *,
    python: str | None,
    variables: Mapping[str, str],
    **resources: Any,
) -> tuple[str, bool]:
    """Submit a verb unless the same work runs already; returns the submission id, and whether it was started.

    Args:
        python: interpreter on the cluster; None takes `python`, and this one on the local cluster.
        variables: environment variables of the job, besides those of `environment_of`.
        resources: `memory_bytes` and `num_gpus` of `JobRequest`.
    """
    from cluster import jobs
    from cluster.local_cluster import own_cluster_at

    earlier = jobs.attempts(client, submission.base_id)
    if earlier and not earlier[-1].status.is_terminal():
        return str(earlier[-1].submission_id), False
    if earlier:
        settle_run(earlier[-1], only_reserved=True)
    submission_id = jobs.next_id(submission.base_id, earlier)
    run_id = submission.reserve_run()
    python = python or (sys.executable if own_cluster_at(client.get_address()) else "python")
    request = jobs.JobRequest(
        arguments=(python, "-m", "pipeline.cli", *submission.arguments),
        metadata=submission.metadata(run_id),
        environment={**environment_of(submission, submission_id, run_id), **variables},
        packages=code_to_ship(),
        start_directory=Path.cwd(),
        **submission.stopping(),
        **resources,
    )
    started = False
    try:
        started = jobs.submit(client, submission_id, request)
    finally:
        if not started:
            submission.release_run(run_id)
    return submission_id, started


def environment_of(submission: Submission, submission_id: str, run_id: str | None) -> dict[str, str]:
    """The environment of the job, besides the variables that the submitter names."""
    from pipeline.runs.tracking import RESERVED_RUN_VARIABLE

    split_tracking_credentials()
    # All who may look at the cluster see a job's environment; credentials are set on the cluster's machines.
    passed = {
        name: value for name in PASSED_ON if (value := os.environ.get(name)) and not has_credentials(value)
    }
    reserved = {RESERVED_RUN_VARIABLE: run_id} if submission.new_run and run_id else {}
    return passed | reserved | {JOB_VARIABLE: submission_id}


def code_to_ship() -> tuple[Path, ...]:
    """The packages that a job runs, wherever this one was imported from."""
    root = Path(__file__).resolve().parents[2]
    return tuple(path for path in map(root.joinpath, CODE) if path.exists())


def settle_run(job: JobDetails, *, only_reserved: bool = False) -> None:
    """End the MLflow run of a job that died without ending it. A tracking store that is down is only reported.

    Args:
        only_reserved: leave a run alone that was ever started, because another job may have resumed it.
    """
    metadata = job.metadata or {}
    run_id, runs_dir = metadata.get("mlflow_run_id"), metadata.get("runs_dir")
    if not run_id or not runs_dir or job.status not in _END_STATUS:
        return
    from cluster.artefacts.errors import TrackingUnreachableError
    from cluster.progress import announce
    from pipeline.runs.tracking import end_run

    # FAILED too: an interrupted driver reports its interruption as a failure.
    only_from = ("SCHEDULED",) if only_reserved else ("SCHEDULED", "RUNNING", "FAILED")
    try:
        end_run(run_id, _END_STATUS[job.status], runs_dir=Path(runs_dir), only_from=only_from)
    except TrackingUnreachableError as error:
        announce(f"The status of MLflow run {run_id} stays: {error}")


def _parse(app: typer.Typer, arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The verb and its parameters. Wrong options are reported as if the verb had been called itself."""
    import typer.main

    command: Any = typer.main.get_command(app)
    names: list[str] = []
    rest = list(arguments)
    while hasattr(command, "commands"):
        allowed = sorted(set(command.commands) - CONTROL_VERBS)
        names.append(rest.pop(0) if rest else "")
        if names[-1] not in allowed:
            from pipeline.config.problems import nearest

            *group, name = names
            near = nearest(name, allowed)
            hint = f" Did you mean {' '.join([*group, near])}?" if near else ""
            raise ConfigError(
                f"{' '.join(names).strip() or 'Nothing'} is not a verb that can be submitted.{hint}",
                next_step=f"{' '.join(['cloze submit --', *group])} one of: {', '.join(allowed)}",
            )
        command = command.commands[names[-1]]
    verb = " ".join(names)
    with command.make_context(f"cloze {verb}", rest) as context:
        return verb, dict(context.params)


def _config_of(verb: str, values: dict[str, Any]) -> tuple[Any, Path | None, str | None]:
    """The configuration that a verb resolves to, its `runs_dir`, and the MLflow run that it continues; None without."""
    overrides = tuple(values.get("overrides") or ())
    if verb == "resume":
        from pipeline.runs.directory import find_run

        run = find_run(values["reference"].partition("@")[0], Path(values["runs_dir"]))
        return run.config(overrides), Path(values["runs_dir"]), str(run.info.run_id)
    if verb not in CONFIG_KINDS or not values.get("config"):
        return None, None, None
    from pipeline.config.loading import load_config

    module, name = CONFIG_KINDS[verb]
    config: Any = load_config(getattr(import_module(module), name), Path(values["config"]), overrides)
    return config, getattr(config, "runs_dir", None), None
