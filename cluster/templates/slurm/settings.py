"""Settings of a Slurm job that starts Ray over its nodes and runs one verb on it."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from pydantic import Field

from cluster.stopping import LEAVE_S
from cluster.templates.base import AbsolutePath, ClusterTemplate, Name, Text, Variables, Verb, Word


class Slurm(ClusterTemplate):
    """One `sbatch` script: Ray over the nodes of the job, a check of all nodes, one verb, and requeues."""

    kind: Literal["slurm"] = "slurm"
    """The kind of cluster."""
    name: Name = "cloze"
    """Name of the job."""
    verb: Verb
    """The verb to run, such as `pretrain run.yaml`; paths are relative to `shared`."""
    environment: AbsolutePath
    """Python environment with cloze, the same on all nodes; its `bin/` goes first into PATH."""
    shared: AbsolutePath
    """Directory that all nodes share: the verb starts there, and `runs/` is there."""
    scratch: AbsolutePath = Field(default="/tmp", max_length=20)
    """Directory on each node's own disk, for Ray's session and the cache of what lies in stores (CLOZE_CACHE), each in
    a directory that only this user can enter; 20 characters at most, because sockets lie below it. The cache stays
    after the job, for the next one; CLOZE_CACHE_BYTES of `env` bounds it, else half of the file system."""
    nodes: int = Field(ge=1)
    """Number of nodes."""
    cpus_per_node: int = Field(ge=1)
    """CPUs of each node for this job."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs of each node for this job."""
    gres: Word | None = None
    """Generic resources to ask for in place of `--gpus-per-node`, such as `gpu:a100:8`; null where Slurm counts
    GPUs."""
    interface: Name | None = None
    """Network interface of Ray, NCCL and gloo, such as `ib0`; null takes the one of the default route, or the first
    with an address where there is no such route."""
    memory_gib_per_node: int = Field(ge=1)
    """Memory in GiB of each node for this job."""
    hours: float = Field(gt=0)
    """Time limit of one start in hours; the job is requeued when it is over."""
    max_requeues: int = Field(default=100, ge=0)
    """Requeues after a stop by SIGTERM. Slurm also counts its own requeues after a node's failure."""
    grace_s: int = Field(default=120, ge=10)
    """The run begins to save so many seconds before the time limit, besides 30 for the end itself."""
    partition: Word | None = None
    """Partition; null for Slurm's default."""
    account: Word | None = None
    """Account that is charged; null for Slurm's default."""
    qos: Word | None = None
    """Quality of service; null for Slurm's default."""
    constraint: Word | None = None
    """Features that nodes must have; null for any."""
    tracking_uri: Text | None = None
    """MLflow's address; null for SQLite in `runs/`, which serves one job at a time."""
    env: Variables = Field(default_factory=dict)
    """Environment variables of the verb and its workers."""

    def files(self) -> tuple[str, ...]:
        return ("cloze.sbatch",)

    def values(self) -> dict[str, Any]:
        minutes = max(1, round(self.hours * 60))
        fixed = {"CLOZE_CACHE": self.scratch}
        if self.tracking_uri:
            fixed["MLFLOW_TRACKING_URI"] = self.tracking_uri
        if self.interface:
            fixed |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), self.interface)
        cpu = {} if self.gpus_per_node else {"DS_ACCELERATOR": "cpu"}
        # Resources of a step: since Slurm 22.05 `srun` inherits neither CPUs nor GPUs of the job's tasks.
        gpus = f"--gres={self.gres}" if self.gres else f"--gpus-per-task={self.gpus_per_node}"
        return super().values() | {
            "time": f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00",
            "end_s": self.grace_s + LEAVE_S,
            "choices": {
                name: value
                for name in ("partition", "account", "qos", "constraint")
                if (value := getattr(self, name)) is not None
            },
            "env": dict(sorted((fixed | cpu | self.env).items())),
            "verb": shlex.split(self.verb),
            "step": [f"--cpus-per-task={self.cpus_per_node}", *([gpus] if self.gpus_per_node else [])],
            "workers": self.nodes * max(1, self.gpus_per_node),
        }
