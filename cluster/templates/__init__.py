"""Files that make a cluster: a folder per kind, with its settings (`settings.py`) and its templates (`*.j2`)."""

from __future__ import annotations

from types import MappingProxyType

from cluster.templates.base import ClusterTemplate
from cluster.templates.kuberay.settings import KubeRay
from cluster.templates.ray_up.settings import RayUp
from cluster.templates.slurm.settings import Slurm
from cluster.templates.ssh.settings import SshHosts

TEMPLATES: MappingProxyType[str, type[ClusterTemplate]] = MappingProxyType(
    {"kuberay": KubeRay, "slurm": Slurm, "ray-up": RayUp, "ssh": SshHosts}
)
"""The settings of every kind of cluster."""
