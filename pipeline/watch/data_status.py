"""The progress of data jobs, from the logs that their stages write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.lease import is_in_use
from cluster.artefacts.shard_log import LOG_NAME, ShardProgress, read_progress
from cluster.artefacts.shard_status import latest_status

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
    """What its running task says of itself; may be empty."""
    progress: ShardProgress


def read_data(directories: Sequence[Path]) -> list[DataStatus]:
    """The stages of all preparations in and below some directories, by job and in the order in which they began."""
    found = [status for top in directories for status in _below(top)]
    return sorted(found, key=lambda status: (status.job, status.progress.started_s, status.artefact))


def _below(top: Path) -> Iterator[DataStatus]:
    for depth in range(_DEPTH + 1):
        for log in top.glob("/".join(["*"] * depth + [LOG_NAME])):
            status = _status(top, log.parent)
            if status is not None:
                yield status


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
        status=latest_status(workspace),
        progress=progress,
    )
