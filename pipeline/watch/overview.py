"""Everything that `cloze top` shows, at one moment: runs, their machines, data jobs, a cluster's jobs and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.node_load import NodeLoad
from pipeline.watch.data_status import DataStatus, read_data
from pipeline.watch.node_load import load_of
from pipeline.watch.run_status import RUNNING
from pipeline.watch.runs import Runs, RunsReader

if TYPE_CHECKING:
    from pipeline.watch.cluster_watch import ClusterWatch, Jobs


@dataclass(frozen=True, slots=True)
class Overview:
    """A moment."""

    runs: Runs
    data: tuple[DataStatus, ...]
    """The stages of preparations: those that are worked on, or wait to be continued."""
    nodes: tuple[tuple[str, NodeLoad], ...]
    """(run that reported it, or `cluster`; load) of machines."""
    jobs: Jobs | None
    """The cluster's jobs by verb and status; None where no cluster is watched, or it does not answer."""
    problem: str
    """Why the cluster is not shown; empty without a problem."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "runs": [asdict(run) | {"memory_bytes": run.memory_bytes} for run in self.runs.shown],
            "runs_left_out": self.runs.left_out,
            "data": [asdict(own) | {"bytes_per_s": own.progress.bytes_per_s} for own in self.data],
            "nodes": [{"of": of, **asdict(node)} for of, node in self.nodes],
            "jobs": None
            if self.jobs is None
            else [{"verb": verb, "status": status, "count": n} for (verb, status), n in self.jobs.items()],
            "problem": self.problem,
        }


def look(runs: RunsReader, data: Sequence[Path], cluster: ClusterWatch | None) -> Overview:
    """Look at everything once; a cluster that does not answer hides nothing else."""
    found = runs.read()
    nodes = [
        (run.name, load_of(host, figures))
        for run in found.shown
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
    stages = tuple(own for own in read_data(data) if not own.is_committed)
    return Overview(found, stages, tuple(nodes), jobs, problem)
