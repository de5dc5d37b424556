"""What a submitted verb is: checked before anything is sent, with an id that follows from what it does.

The job's identity is the verb with its arguments, the configuration they resolve to, and the directory that
relative paths start from. The same work has the same id, and so is not started twice by mistake.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.credentials import has_credentials, split_tracking_credentials
from cluster.artefacts.errors import ConfigError
from cluster.signals import JOB_VARIABLE

if TYPE_CHECKING:
    import typer

    from cluster.jobs import Job

PASSED_ON = ("CLOZE_DATA", "MLFLOW_TRACKING_URI")
"""Variables that a job gets from its submitter when they are set."""
CODE = ("pipeline", "data_prep", "models", "cluster", "pyproject.toml")
"""What travels with a job, from beside this package."""
CONTROL_VERBS = frozenset({"submit", "jobs", "logs", "stop"})
"""Verbs that act on jobs and are none."""
CONFIG_KINDS = {
    "pretrain": ("pipeline.runs.config", "PretrainConfig"),
    "finetune": ("pipeline.demo.tasks", "FinetuneConfig"),
    "data prepare": ("data_prep.config", "PreparationConfig"),
}
"""Module and class of the configuration that a verb reads."""
SAVING_VERBS = frozenset({"pretrain", "resume"})
"""Verbs that answer SIGTERM by saving."""
_LEAVE_S = 30
"""Seconds that they have besides, to take leave of their workers and of tracking."""
_ID_DIGITS = 10
_END_STATUS = {"STOPPED": "KILLED", "FAILED": "FAILED"}


@dataclass(frozen=True, slots=True)
class Submission:
    """A verb that is ready to be handed to a cluster."""

    verb: str
    """Such as `pretrain` or `data prepare`."""
    arguments: tuple[str, ...]
    """The verb and what follows it, as typed."""
    base_id: str
    """Submission id of the first attempt."""
    config_hash: str | None
    """hash_json of the resolved configuration; None for verbs without one."""
    runs_dir: Path | None
    """Where the verb's run is tracked; None for verbs that this does not know of."""
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

    def give_back(self, run_id: str | None) -> None:
        """End the reserved run, because its job was not accepted."""
        if self.new_run and self.runs_dir and run_id:
            from pipeline.runs.tracking import end_run

            end_run(run_id, "KILLED", runs_dir=self.runs_dir, only_from=("SCHEDULED",))

    def stopping(self) -> dict[str, Any]:
        """How a job with this verb is stopped, as `JobRequest` has it."""
        return {"stop_signal": "SIGTERM", "stop_grace_s": math.ceil(self.grace_s or 0) + _LEAVE_S}

    def metadata(self, run_id: str | None) -> dict[str, str]:
        """What the cluster stores with the job."""
        known = {
            "cloze_verb": self.verb,
            "config_hash": self.config_hash,
            "mlflow_run_id": run_id,
            "runs_dir": str(self.runs_dir.resolve()) if self.runs_dir else None,
        }
        return {name: value for name, value in known.items() if value is not None}


def environment_of(submission: Submission, submission_id: str, run_id: str | None) -> dict[str, str]:
    """The environment of the job, besides what the submitter asks for by name."""
    from pipeline.runs.tracking import RESERVED_RUN_VARIABLE

    split_tracking_credentials()
    # All who may look at the cluster see a job's environment: what lets in, the machines have in theirs.
    passed = {
        name: value for name in PASSED_ON if (value := os.environ.get(name)) and not has_credentials(value)
    }
    reserved = {RESERVED_RUN_VARIABLE: run_id} if submission.new_run and run_id else {}
    return passed | reserved | {JOB_VARIABLE: submission_id}


def code_to_ship() -> tuple[Path, ...]:
    """The packages that a job runs, wherever this one was imported from."""
    root = Path(__file__).resolve().parents[2]
    return tuple(path for path in map(root.joinpath, CODE) if path.exists())


def prepare(app: typer.Typer, arguments: Sequence[str]) -> Submission:
    """Parse a verb as the command line would, resolve its configuration and derive its id; starts nothing.

    Raises:
        ConfigError, MissingInputError: no such verb, or its configuration is wrong.
        ReferenceNotFoundError: the run to be resumed does not exist.
    """
    if any(map(has_credentials, arguments)):
        raise ConfigError(
            "An argument has a URI with credentials, and a job's command line is shown to all who may look at the"
            " cluster.",
            next_step="put the URI into the YAML file, or into a variable that the cluster's machines have:"
            " ${oc.env:NAME}",
        )
    verb, values = _parse(app, arguments)
    from cluster.artefacts.manifest import hash_json

    config = _config_of(verb, values)
    config_hash = None if config is None else hash_json(config.model_dump(mode="json"))
    digest = hash_json([list(arguments), config_hash, os.getcwd()])[:_ID_DIGITS]
    resumed = _resumed_run(values) if verb == "resume" else None
    return Submission(
        verb=verb,
        arguments=tuple(arguments),
        base_id=f"cloze-{verb.replace(' ', '-')}-{digest}",
        config_hash=config_hash,
        runs_dir=Path(values["runs_dir"]) if resumed else getattr(config, "runs_dir", None),
        run_id=resumed,
        grace_s=config.guards.grace_s if verb in SAVING_VERBS and config is not None else None,
        new_run=_run_to_reserve(verb, config, values),
    )


def settle_run(job: Job, *, only_reserved: bool) -> bool:
    """End the MLflow run of a job that ended without doing so itself; says whether there was something to do.

    Args:
        only_reserved: leave a run alone that was ever started, because another job may have resumed it.

    Raises:
        TrackingUnreachableError: the tracking store does not answer, or does not have the run.
    """
    run_id, runs_dir = job.metadata.get("mlflow_run_id"), job.metadata.get("runs_dir")
    if not run_id or not runs_dir or job.status not in _END_STATUS:
        return False
    from pipeline.runs.tracking import end_run

    # FAILED too: an interrupted driver reports its interruption as a failure.
    only_from = ("SCHEDULED",) if only_reserved else ("SCHEDULED", "RUNNING", "FAILED")
    return end_run(run_id, _END_STATUS[job.status], runs_dir=Path(runs_dir), only_from=only_from)


def _parse(app: typer.Typer, arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The verb and its parameters. Wrong options are reported as if the verb had been called itself."""
    import typer.main

    command: Any = typer.main.get_command(app)
    names: list[str] = []
    rest = list(arguments)
    while hasattr(command, "commands"):
        allowed = sorted(set(command.commands) - CONTROL_VERBS)
        name = rest.pop(0) if rest else ""
        if name not in allowed:
            from pipeline.config.problems import nearest

            near = nearest(name, allowed)
            hint = f" Did you mean {' '.join([*names, near])}?" if near else ""
            raise ConfigError(
                f"{' '.join([*names, name]) or 'Nothing'} is no verb that can be submitted.{hint}",
                next_step=f"cloze submit -- {' '.join(names)} one of: {', '.join(allowed)}".replace(
                    "  ", " "
                ),
            )
        names.append(name)
        command = command.commands[name]
    verb = " ".join(names)
    with command.make_context(f"cloze {verb}", rest) as context:
        return verb, dict(context.params)


def _config_of(verb: str, values: dict[str, Any]) -> Any:
    if verb == "resume":
        return _resumed_directory(values).config(tuple(values.get("overrides") or ()))
    if verb not in CONFIG_KINDS or not values.get("config"):
        return None
    from pipeline.config.loading import load_config

    module, name = CONFIG_KINDS[verb]
    kind = getattr(import_module(module), name)
    return load_config(kind, Path(values["config"]), tuple(values.get("overrides") or ()))


def _run_to_reserve(verb: str, config: Any, values: dict[str, Any]) -> tuple[str, str] | None:
    return (config.experiment, config.name) if verb == "pretrain" and not values.get("dry_run") else None


def _resumed_directory(values: dict[str, Any]) -> Any:
    from pipeline.runs.directory import find_run

    return find_run(values["reference"].partition("@")[0], Path(values["runs_dir"]))


def _resumed_run(values: dict[str, Any]) -> str:
    return str(_resumed_directory(values).info.run_id)
