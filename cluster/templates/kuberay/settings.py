"""Settings of a Ray cluster on Kubernetes, run by the KubeRay operator (1.6 or newer)."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from types import MappingProxyType
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, TypeAdapter, field_validator

from cluster.start_directory import START_DIRECTORY_VARIABLE
from cluster.stopping import LEAVE_S
from cluster.templates.base import AbsolutePath, ClusterTemplate, Name, Settings, Variables, Verb

Image = Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9._:/@-]*$")]
LabelName = Annotated[str, Field(pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]

SPOT_LABELS: MappingProxyType[str, tuple[str, str]] = MappingProxyType(
    {
        "gke": ("cloud.google.com/gke-spot", "true"),
        "eks": ("eks.amazonaws.com/capacityType", "SPOT"),
        "aks": ("kubernetes.azure.com/scalesetpriority", "spot"),
        "karpenter": ("karpenter.sh/capacity-type", "spot"),
    }
)
"""Each provider's label of spot nodes, which are often tainted with the same words."""


class Machine(Settings):
    """CPUs and memory of a pod, which are both its request and its limit."""

    cpus: int = Field(ge=1)
    """CPUs."""
    memory_gib: int = Field(ge=1)
    """Memory in GiB, which holds /dev/shm too."""
    shm_gib: int | None = Field(default=None, ge=1)
    """Size of /dev/shm in GiB: Ray's object store and the exchanges of NCCL between workers of a pod. Null takes 40% of
    the memory: Ray's object store takes 30%."""
    scratch_gib: int = Field(default=20, ge=1)
    """Local disk in GiB for Ray's session, logs and compiled operators, and up to half of it for the cache of what lies
    in stores. A pod that takes more is evicted."""

    @property
    def shared_gib(self) -> int:
        """Size of /dev/shm in GiB."""
        return self.shm_gib or max(1, self.memory_gib * 2 // 5)

    @property
    def cache(self) -> dict[str, str]:
        """The bound of the cache: half of what the pod may use, where it would be half of the node's disk."""
        return {"CLOZE_CACHE_BYTES": f"{self.scratch_gib * 512}MiB"}


class Workers(Machine):
    """The worker pods."""

    replicas: int = Field(ge=1)
    """Number of pods."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each pod."""
    gpu_resource: LabelName = "nvidia.com/gpu"
    """The extended resource that counts GPUs; its taint is tolerated."""
    rdma_resource: LabelName | None = None
    """The extended resource of a node's InfiniBand or RoCE adapters, such as `rdma/hca`; each pod gets one and
    may then lock memory. Null for TCP."""
    cache_directory: AbsolutePath | None = None
    """Directory on each node's own disk for the cache of what lies in stores, kept when pods go (a hostPath volume,
    which `user_id` must be able to write); null keeps the cache in the pod."""
    spot: Literal["gke", "eks", "aks", "karpenter"] | None = None
    """Run on spot nodes of this provider; null for ordinary nodes."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict)
    """Labels that nodes must have."""

    @field_validator("node_selector")
    @classmethod
    def _label_names(cls, labels: dict[str, str]) -> dict[str, str]:
        for name in labels:
            TypeAdapter(LabelName).validate_python(name)
        return labels


class Storage(Settings):
    """The volume that all pods share: data, runs, checkpoints."""

    mount: AbsolutePath = "/shared"
    """Directory where pods mount it; relative paths of jobs start there."""
    claim: Name | None = None
    """An existing PersistentVolumeClaim; null renders one."""
    storage_class: Name | None = None
    """StorageClass of a rendered claim, which must allow ReadWriteMany; null takes the cluster's default."""
    size_gib: int = Field(default=500, ge=1)
    """Size in GiB of a rendered claim."""


class Job(Settings):
    """A verb as a RayJob: it brings up its own Ray cluster and removes it afterwards."""

    verb: Verb
    """The verb, such as `pretrain run.yaml`; paths are relative to the shared volume. Plain words only."""

    @field_validator("verb")
    @classmethod
    def _plain_words(cls, verb: str) -> str:
        # `ray job submit`, which the operator calls, hands words to a shell of the pod without quoting them.
        if wrong := [word for word in shlex.split(verb) if shlex.quote(word) != word]:
            raise ValueError(
                f"{', '.join(map(repr, wrong))}: a RayJob takes words of letters, digits and @%+=:,./-_ only; put other"
                " settings into the YAML file"
            )
        return verb

    backoff_limit: int = Field(default=3, ge=0)
    """Retries of the whole job, each on a new Ray cluster, from the newest checkpoint. A stop by SIGTERM counts."""


class Tracking(Settings):
    """An MLflow server with users and passwords, and its PostgreSQL."""

    enabled: bool = True
    """Whether runs use MLflow; without, MLFLOW_TRACKING_URI of `env` is used, or SQLite on the shared volume."""
    server_of: Name | None = None
    """Another cluster of the namespace whose server is used; null renders one."""
    database_gib: int = Field(default=20, ge=1)
    """Disk in GiB of the database."""
    postgres_image: Image = "postgres:17"
    """Image of PostgreSQL."""


class Queue(Settings):
    """Kueue decides when the cluster starts."""

    name: Name
    """The LocalQueue."""
    cluster_queue: Name | None = None
    """The ClusterQueue of a rendered LocalQueue; null where the LocalQueue exists."""


class KubeRay(ClusterTemplate):
    """A Ray cluster on Kubernetes, or a RayJob, with shared volume, MLflow, and policies."""

    kind: Literal["kuberay"] = "kuberay"
    """The kind of cluster."""
    name: Name = "cloze"
    """Name of the cluster, and the beginning of all other names."""
    namespace: Name = "cloze"
    """Namespace of everything."""
    image: Image
    """Container image of head, workers and MLflow, built from `Containerfile`."""
    image_pull_secret: Name | None = None
    """Secret for a private registry."""
    operator_namespace: Name = "kuberay-operator"
    """Namespace of the KubeRay operator, which must reach the dashboard."""
    monitoring_namespace: Name | None = None
    """Namespace of a Prometheus that may read Ray's metrics; null for none."""
    head: Machine = Machine(cpus=4, memory_gib=16)
    """The head pod, which runs no training."""
    workers: Workers
    """The worker pods."""
    storage: Storage = Storage()
    """The shared volume."""
    job: Job | None = None
    """A verb to run as a RayJob; null renders a RayCluster for `cloze submit`."""
    tracking: Tracking = Tracking()
    """MLflow."""
    queue: Queue | None = None
    """Kueue; null starts at once."""
    fault_tolerant_head: bool = False
    """Keep Ray's cluster state in a Redis, so that a restarted head pod finds its workers again."""
    redis_image: Image = "redis:7"
    """Image of that Redis."""
    grace_s: int = Field(default=120, ge=10)
    """Seconds that a run has for saving after SIGTERM; at least its `guards.grace_s`."""
    drain: Literal["one_by_one", "never"] = "one_by_one"
    """Whether nodes may be drained under a run. `one_by_one`: workers are evicted one at a time, and the run saves and
    continues; `never`: every drain waits for the end of the cluster."""
    user_id: int = Field(default=1000, ge=1)
    """User and group id of all processes, which own the shared volume."""
    env: Variables = Field(default_factory=dict)
    """Environment variables of head and workers."""
    env_from_secret: Name | None = None
    """A Secret whose keys become environment variables of head and workers, such as keys of an object store."""

    def files(self) -> tuple[str, ...]:
        wanted = {
            "storage.yaml": self.storage.claim is None,
            "mlflow.yaml": self._has_server,
            "redis.yaml": self.fault_tolerant_head,
            "queue.yaml": self.queue is not None and self.queue.cluster_queue is not None,
            "policies.yaml": True,
            "raycluster.yaml": self.job is None,
            "rayjob.yaml": self.job is not None,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def values(self) -> dict[str, Any]:
        own = {} if self.workers.gpus else {"DS_ACCELERATOR": "cpu"}
        # On a node's own disk the cache is bounded by the disk, as anywhere else.
        own |= {"CLOZE_CACHE": "/cache"} if self.workers.cache_directory else self.workers.cache
        names = {"app.kubernetes.io/instance": self.name, "app.kubernetes.io/part-of": "cloze"}
        spot = dict([SPOT_LABELS[self.workers.spot]]) if self.workers.spot else {}
        workers = self.workers.replicas
        if self.drain == "never":
            budgets = [("head", 1), ("worker", workers)]
        else:
            budgets = [("worker", workers - 1)] if workers > 1 else []
        tracking = [("mlflow", ["head", "worker"], 5000), ("postgres", ["mlflow"], 5432)]
        state = [("redis", ["head"], 6379)]
        server_keys = {self._server: ("password", "database-password", "flask-key")}
        guarded = (tracking if self._has_server else []) + (state if self.fault_tolerant_head else [])
        return super().values() | {
            "ray_version": version("ray"),
            "instance": names,
            "labels": {part: names | {"app.kubernetes.io/component": part} for part in _PARTS},
            # The head has no GPU, and DeepSpeed would look for one.
            "head_env": self._environment({"DS_ACCELERATOR": "cpu"} | self.head.cache),
            "worker_env": self._environment(own),
            "claim": self.storage.claim or f"{self.name}-shared",
            "end_s": self.grace_s + LEAVE_S,
            # Parts with a PodDisruptionBudget, and the pods of each that no drain may take.
            "budgets": budgets,
            "spot": spot,
            "node_selector": dict(sorted((self.workers.node_selector | spot).items())),
            "runtime_env": orjson.dumps(self._runtime_env(), option=orjson.OPT_SORT_KEYS).decode(),
            # Secrets that the user makes, with random values under these keys.
            "secrets": (server_keys if self._has_server else {})
            | ({f"{self.name}-redis": ("password",)} if self.fault_tolerant_head else {}),
            "server": self._server,
            "ray_labels": names | ({"kueue.x-k8s.io/queue-name": self.queue.name} if self.queue else {}),
            # Services with a NetworkPolicy: the parts that may connect, and the port.
            "guarded": guarded,
        }

    def _environment(self, own: dict[str, str]) -> dict[str, str]:
        # The user id has no entry in /etc/passwd, where Python would look for a name and a home.
        fixed = {"HOME": "/var/lib/cloze", "USER": "cloze", "LOGNAME": "cloze"}
        if self.tracking.enabled:
            fixed["MLFLOW_TRACKING_URI"] = f"http://{self._server}:5000"
        # Kubernetes would put other variables in the place of $(NAME).
        given = {name: value.replace("$", "$$") for name, value in self.env.items()}
        return dict(sorted((fixed | own | given).items()))

    def _runtime_env(self) -> dict[str, Any]:
        """Environment that `cloze submit` sets for a job, except for the code, which the image has."""
        return {
            "worker_process_setup_hook": "cluster.start_directory.enter_start_directory",
            "env_vars": {
                START_DIRECTORY_VARIABLE: self.storage.mount,
                # A retry has the same id, and so continues the run of the previous attempt.
                "CLOZE_SUBMISSION_ID": f"{self.namespace}-{self.name}",
                "RAY_JOB_STOP_SIGNAL": "SIGTERM",
                "RAY_JOB_STOP_WAIT_TIME_S": str(self.grace_s + LEAVE_S),
            },
        }

    @property
    def _has_server(self) -> bool:
        return self.tracking.enabled and self.tracking.server_of is None

    @property
    def _server(self) -> str:
        """Name of MLflow's Service and of its Secret."""
        return f"{self.tracking.server_of or self.name}-mlflow"


_PARTS = ("head", "worker", "submitter", "mlflow", "postgres", "redis")
