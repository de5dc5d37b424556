"""Settings of a Ray cluster on cloud machines, made by Ray's own launcher (`ray up`)."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cluster.templates.base import AbsolutePath, ClusterTemplate, Name, Settings, Text, Variables, Word
from cluster.templates.kuberay.settings import Image


class CloudMachine(Settings):
    """A kind of cloud machine."""

    type: Word
    """Its type, such as `m6i.xlarge` (AWS) or `n2-standard-4` (Google Cloud)."""
    disk_gib: int = Field(default=200, ge=20)
    """Size in GiB of its disk, which also holds the container image and the cache of what lies in stores."""
    spot: bool = False
    """Whether it is a spot machine, which the provider may take away."""


class CloudWorkers(CloudMachine):
    """The worker machines."""

    count: int = Field(ge=1)
    """Number of machines."""
    cpus: int = Field(ge=1)
    """CPUs of each."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each."""


class RayUp(ClusterTemplate):
    """A configuration of `ray up` for AWS or Google Cloud, with a shared NFS volume."""

    kind: Literal["ray-up"] = "ray-up"
    """The kind of cluster."""
    name: Name = "cloze"
    """Name of the cluster and of its machines."""
    cloud: Literal["aws", "gcp"] = "aws"
    """The provider."""
    region: Word
    """Region, such as `eu-central-1` or `europe-west4`."""
    zone: Word | None = None
    """Zone in the region; required on Google Cloud."""
    project: Word | None = None
    """Project id; required on Google Cloud."""
    machine_image: Word | None = None
    """Image of the machines, with Docker and, for GPUs, NVIDIA's container runtime; null takes Ray's default on AWS."""
    ssh_user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "ubuntu"
    """User of the machines."""
    image: Image
    """Container image of cloze, built from `Containerfile`."""
    nfs: Annotated[Text, Field(pattern=r"^[A-Za-z0-9.-]+:/[^'\"\\\s]*$")]
    """The shared NFS volume, SERVER:/PATH: an EFS or Filestore of the same network."""
    mount: AbsolutePath = "/shared"
    """Directory where machines and containers mount it."""
    head: CloudMachine
    """The head machine."""
    workers: CloudWorkers
    """The worker machines."""
    shm_gib: int = Field(default=8, ge=1)
    """Size of /dev/shm in GiB in each container."""
    env: Variables = Field(default_factory=dict)
    """Environment variables of all containers, such as MLFLOW_TRACKING_URI."""

    @model_validator(mode="after")
    def _complete(self) -> RayUp:
        needed = {"zone": self.zone, "project": self.project, "machine_image": self.machine_image}
        missing = [name for name, value in needed.items() if value is None]
        if self.cloud == "gcp" and missing:
            raise ValueError(f"Google Cloud needs {', '.join(missing)} as well")
        if self.head.spot:
            raise ValueError("head.spot: a lost head ends every job, so the head is an ordinary machine")
        return self

    def files(self) -> tuple[str, ...]:
        return ("cluster.yaml",)

    def values(self) -> dict[str, Any]:
        cpu = {} if self.workers.gpus else {"DS_ACCELERATOR": "cpu"}
        fixed = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/etc/cloze/ray_token"}
        variables = sorted((cpu | fixed | self.env).items())
        place, options = quote(self.mount), "nfsvers=4.1,hard,timeo=600,retrans=2,noresvport,_netdev"
        return super().values() | {
            "run_options": [
                # The image's entry point is cloze, and Ray starts a shell.
                *("--entrypoint=", f"--shm-size={self.shm_gib}g", "--ulimit=nofile=65536:65536"),
                f"--volume={quote(f'{self.mount}:{self.mount}')}",
                *(f"--env={quote(f'{name}={value}')}" for name, value in variables),
            ],
            "mount_commands": [
                "command -v mount.nfs4 > /dev/null || (sudo apt-get update && sudo apt-get install --yes nfs-common)",
                f"sudo mkdir -p {place}",
                f"mountpoint -q {place} || sudo mount -t nfs4 -o {options} {quote(self.nfs)} {place}",
            ],
            "runs": quote(f"{self.mount}/runs"),
        }
