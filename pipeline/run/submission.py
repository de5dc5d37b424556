"""Verbs as jobs: checked before anything is sent, with an id that follows from the work.

The id hashes the verb with its arguments, the configuration that they resolve to, and the working directory. So the
same work has the same id, and is not started twice by mistake.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.credentials import has_credentials, split_tracking_credentials
from cluster.artefacts.errors import ConfigError
from cluster.artefacts.signatures import KEY_VARIABLE, TRUST_VARIABLE
from cluster.stopping import LEAVE_S

if TYPE_CHECKING:
    import typer
    from ray.job_submission import JobSubmissionClient

PASSED_ON = ("CLOZE_DATA", "CLOZE_LOG", "MLFLOW_TRACKING_URI", KEY_VARIABLE, TRUST_VARIABLE)
"""Environment variables that a job gets from its submitter when they are set; those of keys are paths."""
CODE = ("pipeline", "data_prep", "models", "cluster", "configs", "pyproject.toml")
"""Packages and files of this installation that a job gets a copy of; configurations name shipped ones as `base`."""
CONTROL_VERBS = frozenset({"submit", "jobs", "logs", "stop"})
"""Verbs that act on jobs and cannot be jobs."""
GROUP_SETTINGS = {
    "pretrain": "cluster",
    "resume": "cluster",
    "road": "pretrain.settings.cluster",
}
"""Key of the settings of the training group, by verb."""
CONFIG_KINDS = {
    "pretrain": "pretrain",
    "finetune": "finetune",
    "data prepare": "data",
    "road": "road",
}
"""Kind of the YAML file that a verb reads."""
SAVING_VERBS = frozenset({"pretrain", "resume", "road"})
"""Verbs that answer SIGTERM by saving."""
JOB_VARIABLE = "CLOZE_SUBMISSION_ID"
"""Environment variable of a job, with its submission id."""
VERB_KEY, CONFIG_KEY = "cloze_verb", "cloze_config"
"""Keys of a job's metadata: the verb, and the hash of the configuration that it resolves to, if it reads one."""
_ID_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Submission:
    """A verb that is ready to be submitted to a cluster."""

    verb: str
    """Such as `pretrain` or `data prepare`."""
    arguments: tuple[str, ...]
    """The verb and its arguments, as typed."""
    base_id: str
    """Submission id of the verb's first job; the ids of its later jobs end in `-2`, `-3`, ..."""
    stop_grace_s: int
    """Seconds between the signal that stops it and the kill."""
    config_hash: str | None = None
    """Hash of the configuration that it resolves to; None for a verb without one."""

    @property
    def metadata(self) -> dict[str, str]:
        """For the job."""
        return {VERB_KEY: self.verb} | ({CONFIG_KEY: self.config_hash} if self.config_hash else {})


def with_group_size(
    arguments: Sequence[str], nodes: int | None, gpus_per_node: int | None, elastic: str | None = None
) -> list[str]:
    """The verb with the settings of a group of so many workers: one for each GPU, or without GPUs for each node.

    Args:
        elastic: least and most workers, `MIN:MAX`, in place of `nodes`.

    Raises:
        ConfigError: the verb trains no such group, or `elastic` cannot be read.
    """
    if nodes is None and gpus_per_node is None and elastic is None:
        return list(arguments)
    verb = arguments[0] if arguments else ""
    if verb not in GROUP_SETTINGS:
        raise ConfigError(
            f"--nodes, --gpus-per-node and --elastic size a training group, and `{verb}` starts none.",
            next_step=f"leave them out; they fit {', '.join(GROUP_SETTINGS)}",
        )
    gpus = gpus_per_node or 0
    sizes = {"workers": str((nodes or 1) * max(gpus, 1)), "gpus_per_worker": str(min(gpus, 1))}
    if elastic is not None:
        least, _, most = elastic.partition(":")
        if nodes is not None or not (least.isdecimal() and most.isdecimal()):
            raise ConfigError(
                f"--elastic {elastic} {'and --nodes exclude each other' if nodes else 'cannot be read'}.",
                next_step="name least and most workers, such as --elastic 2:8 --gpus-per-node 1, without --nodes",
            )
        sizes |= {"min_workers": least, "workers": most}
    return [*arguments, *(f"{GROUP_SETTINGS[verb]}.{name}={value}" for name, value in sizes.items())]


def prepare(app: typer.Typer, arguments: Sequence[str]) -> Submission:
    """Parse a verb as the command line would, resolve its configuration and derive its id; starts nothing.

    Raises:
        ConfigError, MissingInputError: no such verb, or its configuration is wrong.
        ReferenceNotFoundError: the run to be resumed does not exist.
    """
    if any(map(has_credentials, arguments)):
        raise ConfigError(
            "An argument has a URI with credentials, and all users of the cluster see a job's command line.",
            next_step="put the URI into the YAML file, or into a variable that the cluster's machines have:"
            " ${oc.env:NAME}",
        )
    verb, values = _parse(app, arguments)
    from cluster.artefacts.manifest import hash_json

    config = _config_of(verb, values)
    config_hash = None if config is None else hash_json(config.model_dump(mode="json"))
    digest = hash_json([list(arguments), config_hash, os.getcwd()])[:_ID_DIGITS]
    saving_s = math.ceil(config.guards.grace_s) if config is not None and verb in SAVING_VERBS else 0
    return Submission(
        verb=verb,
        arguments=tuple(arguments),
        base_id=f"cloze-{verb.replace(' ', '-')}-{digest}",
        stop_grace_s=saving_s + LEAVE_S,
        config_hash=config_hash,
    )


def submit(
    client: JobSubmissionClient,
    submission: Submission,
    *,
    retries: int = 0,
    after: Sequence[str] = (),
    python: str | None,
    variables: Mapping[str, str],
    **resources: Any,
) -> tuple[str, bool]:
    """Submit a verb unless the same work runs already; returns the submission id, and whether it was started.

    Args:
        retries: times that the verb is started again after a failure that may pass.
        after: submission ids of jobs that must succeed first.
        python: interpreter on the cluster; None takes `python`, and this one on the local cluster.
        variables: environment variables of the job, besides the result of `environment_of`.
        resources: `memory_bytes` and `num_gpus` of `jobs.submit`.
    """
    from cluster import jobs
    from cluster.local_cluster import own_cluster_at

    ids = {str(job.submission_id): job.status for job in jobs.list_jobs(client)}
    earlier = [name for name in ids if name.startswith(submission.base_id)]
    if running := [name for name in earlier if not ids[name].is_terminal()]:
        return running[0], False
    submission_id = f"{submission.base_id}-{len(earlier) + 1}" if earlier else submission.base_id
    python = python or (sys.executable if own_cluster_at(client.get_address()) else "python")
    command = (python, "-m", "pipeline.cli", *submission.arguments)
    if retries or after:
        options = [word for job in after for word in ("--after", job)]
        command = (python, "-m", "cluster.job_process", *options, "--retries", str(retries), "--", *command)
    started = jobs.submit(
        client,
        submission_id,
        command,
        root=Path(__file__).resolve().parents[2],
        code=CODE,
        metadata=submission.metadata,
        environment={**environment_of(submission_id), **variables},
        stop_grace_s=submission.stop_grace_s,
        **resources,
    )
    return submission_id, started


def given_variables(given: Sequence[str]) -> dict[str, str]:
    """`["A=1", "B"]` as variables; B has its value from this process's environment.

    Raises:
        ConfigError: a variable is not set here, or holds credentials.
    """
    unset = [entry for entry in given if "=" not in entry and entry not in os.environ]
    if unset:
        raise ConfigError(f"--env {', '.join(unset)}: not set here.", next_step="write --env NAME=VALUE")
    pairs = [entry.partition("=") if "=" in entry else (entry, "=", os.environ[entry]) for entry in given]
    variables = {name: value for name, _, value in pairs}
    if secret := [name for name, value in variables.items() if has_credentials(value)]:
        raise ConfigError(
            f"--env {', '.join(secret)}: holds credentials, and all users of the cluster see a job's"
            " environment.",
            next_step="set the variable on the cluster's machines",
        )
    return variables


def environment_of(submission_id: str) -> dict[str, str]:
    """The environment of the job, besides the variables that the submitter names."""
    split_tracking_credentials()
    # All users of the cluster see a job's environment; credentials are set on the cluster's machines.
    passed = {
        name: value for name in PASSED_ON if (value := os.environ.get(name)) and not has_credentials(value)
    }
    return passed | {JOB_VARIABLE: submission_id}


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


def _config_of(verb: str, values: dict[str, Any]) -> Any:
    """The configuration that a verb resolves to; None without one."""
    if verb == "resume":
        from pipeline.run.directory import find_run

        return find_run(values["reference"].partition("@")[0], Path(values["runs_dir"])).config(
            tuple(values.get("overrides") or ())
        )
    if verb not in CONFIG_KINDS or not values.get("config"):
        return None
    from pipeline.config.loading import load_config
    from pipeline.config.reference import class_of

    return load_config(
        class_of(CONFIG_KINDS[verb]), Path(values["config"]), tuple(values.get("overrides") or ())
    )
