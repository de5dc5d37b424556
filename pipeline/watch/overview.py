"""Runs, their machines, data jobs, and a Ray cluster's jobs and nodes at one moment, as `cloze top` shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.artefacts.owner import is_in_use
from cluster.artefacts.shard_records import LOG_NAME, ShardProgress, read_progress, read_status
from cluster.jobs import connect, list_jobs, read_nodes
from cluster.node_load import NodeLoad
from pipeline.run.submission import VERB_KEY
from pipeline.watch.run_status import RUNNING, RunsReader, load_of

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_STAGING = ".partial"
_DEPTH = 3
"""Folders below a given directory: DATA/NAME/work/STAGE."""


@dataclass(frozen=True, slots=True)
class DataStatus:
    """A stage of a data job."""

    job: str
    """The directory of the preparation, relative to the given one if it lies below."""
    artefact: str
    """The artefact that the stage makes, relative to the job's directory."""
    is_running: bool
    """Whether it is being made; else it is finished, or waits for the same command."""
    is_committed: bool
    status: str
    """Status text of its running task; may be empty."""
    progress: ShardProgress


def read_data(directories: Sequence[Path]) -> list[DataStatus]:
    """The stages of all preparations in and below some directories, by job, oldest first."""
    found = [
        status
        for top in directories
        for depth in range(_DEPTH + 1)
        for log in top.glob("/".join(["*"] * depth + [LOG_NAME]))
        if (status := _status(top, log.parent)) is not None
    ]
    return sorted(found, key=lambda status: (status.job, status.progress.started_s, status.artefact))


def _status(top: Path, workspace: Path) -> DataStatus | None:
    try:
        progress = read_progress(workspace)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if progress is None:
        return None
    is_staging = workspace.name.startswith(".") and workspace.name.endswith(_STAGING)
    name = workspace.name[1:].rsplit(".", 2)[0] if is_staging else workspace.name
    job = workspace.parent.parent if workspace.parent.name == "work" else workspace.parent
    return DataStatus(
        job=job.relative_to(top).as_posix() if job != top and job.is_relative_to(top) else job.resolve().name,
        artefact=(workspace.parent / name).relative_to(job).as_posix(),
        is_running=is_staging and is_in_use(job),
        is_committed=not is_staging,
        status=read_status(workspace),
        progress=progress,
    )


Answer = TypeVar("Answer")
Jobs = Mapping[tuple[str, str], int]
"""Number of jobs by (verb, status)."""


class ClusterWatch:
    """A cluster; connected again after it did not answer. All methods raise ClusterUnreachableError."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: JobSubmissionClient | None = None

    def jobs(self) -> Jobs:
        """cloze's jobs that the cluster remembers."""
        found = ((job.metadata or {}, job.status.value) for job in self._ask(list_jobs))
        return Counter((metadata[VERB_KEY], status) for metadata, status in found if VERB_KEY in metadata)

    def nodes(self) -> list[NodeLoad]:
        """The nodes by name."""
        return self._ask(read_nodes)

    def _ask(self, question: Callable[[JobSubmissionClient], Answer]) -> Answer:
        try:
            self._client = self._client or connect(self._address)
            return question(self._client)
        except ClusterUnreachableError:
            self._client = None
            raise


def look(runs: RunsReader, data: Sequence[Path], cluster: ClusterWatch | None) -> dict[str, Any]:
    """Look at everything once; a cluster that does not answer hides nothing else.

    Returns:
        JSON-like data: the `runs`, the newest activity first; the stages of preparations that are worked on, or wait to
        be continued, as `data`; the `nodes`, each `of` a run that reported it or of the `cluster`; the cluster's `jobs`
        by verb and status, None where no cluster is watched or it does not answer; and the `problem`, why it is not
        shown.
    """
    found, left_out = runs.read()
    nodes = [
        (run.name, load_of(host, figures))
        for run in found
        if run.state in RUNNING
        for host, figures in run.nodes.items()
    ]
    jobs, problem = None, ""
    if cluster is not None:
        try:
            jobs = cluster.jobs()
            nodes += [("cluster", node) for node in cluster.nodes()]
        except ClusterUnreachableError as error:
            problem = error.problem
    stages = [own for own in read_data(data) if not own.is_committed]
    counts = None if jobs is None else sorted(jobs.items())
    return {
        "runs": [asdict(run) | {"memory_bytes": run.memory_bytes} for run in found],
        "runs_left_out": left_out,
        "data": [
            asdict(own)
            | {"bytes_per_s": own.progress.bytes_per_s}
            | {"seconds_left": own.progress.seconds_left if own.is_running else None}
            for own in stages
        ],
        "nodes": [{"of": of, **asdict(node)} for of, node in nodes],
        "jobs": counts and [{"verb": verb, "status": status, "count": n} for (verb, status), n in counts],
        "problem": problem,
    }
