"""Settings of Ray on plain hosts that are reached by SSH."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from cluster.templates.base import AbsolutePath, ClusterTemplate, Host, Variables


class SshHosts(ClusterTemplate):
    """Scripts that start, check and stop Ray on hosts by SSH."""

    kind: Literal["ssh"] = "ssh"
    """The kind of cluster."""
    head: Host
    """The host that runs Ray's head, as ssh takes it: HOST or USER@HOST."""
    workers: tuple[Host, ...] = ()
    """The other hosts."""
    environment: AbsolutePath
    """Python environment with cloze, the same on all hosts."""
    shared: AbsolutePath
    """Directory that all hosts share, for data, runs and the cluster's token."""
    scratch: AbsolutePath = Field(default="/tmp", max_length=20)
    """Directory on each host's own disk, for Ray's session and the cache of what lies in stores (CLOZE_CACHE), each in
    a directory that only this user can enter; 20 characters at most, because sockets lie below it."""
    port: int = Field(default=6379, ge=1, le=65535)
    """Port of Ray's head, which all hosts must reach; Ray uses further ports, so hosts must be open to each other."""
    dashboard_port: int = Field(default=8265, ge=1, le=65535)
    """Port of the dashboard on the head's loopback address, which serves `cloze submit`."""
    client_port: int = Field(default=10001, ge=1, le=65535)
    """Port of Ray's client server on the head."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs of each host for Ray; null takes all."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs of each host for Ray; null takes all."""
    env: Variables = Field(default_factory=dict)
    """Environment variables of all jobs, such as MLFLOW_TRACKING_URI."""

    @field_validator("workers")
    @classmethod
    def _distinct(cls, workers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(workers)) < len(workers):
            raise ValueError("names a host twice")
        return workers

    def files(self) -> tuple[str, ...]:
        return ("start.sh", "stop.sh", "node.sh")

    def values(self) -> dict[str, Any]:
        cpu = {"DS_ACCELERATOR": "cpu"} if self.gpus == 0 else {}
        limits = {"--num-cpus": self.cpus, "--num-gpus": self.gpus}
        return super().values() | {
            "head_host": self.head.rpartition("@")[2],
            "num_hosts": len(self.workers) + 1,
            "limits": [f"{option}={count}" for option, count in limits.items() if count is not None],
            "env": dict(sorted(({"CLOZE_CACHE": self.scratch} | cpu | self.env).items())),
        }
