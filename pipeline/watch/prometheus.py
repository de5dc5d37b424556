"""Figures of runs and data jobs as Prometheus metrics, by its conventions: base units, `_total` for counters.

Labels are bounded: runs by `RunsReader`, states and events by their enumerations, nodes and GPUs by machines.
`job` and `instance` are Prometheus's own. Ranks are no label, because a run may have thousands: the
slowest and the fullest represent all.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, get_args

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.artefacts.errors import ClusterUnreachableError, ConfigError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from pipeline.run.events import Event
from pipeline.run.state import State
from pipeline.watch.overview import ClusterWatch, Jobs, read_data
from pipeline.watch.run_status import UNREADABLE, RunsReader, RunStatus, load_of

STATES = (*get_args(State), UNREADABLE)
_STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "STOPPED", "FAILED")
"""Statuses of Ray's jobs."""


class _Figure(NamedTuple):
    """One number of a run, of a stage of a data job, or of a machine."""

    name: str
    help: str
    path: str
    """Dotted attributes and keys that lead to its value; None there gives no sample."""
    is_counter: bool = False

    def value(self, owner: Any) -> float | None:
        """Its value now; of a tuple, how many it has."""
        for name in self.path.split("."):
            owner = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name)
        return len(owner) if isinstance(owner, tuple) else owner


_OF_A_RUN = (
    _Figure("cloze_run_step", "Updates in the run's log.", "step"),
    _Figure("cloze_run_target_steps", "Updates of the whole run.", "num_steps"),
    _Figure("cloze_run_tokens_total", "Tokens of text that the updates read.", "tokens", True),
    _Figure("cloze_run_loss", "Loss of the newest update.", "metrics.loss"),
    _Figure("cloze_run_held_out_loss", "Loss of the newest evaluation.", "held_out.loss"),
    _Figure("cloze_run_learning_rate", "Learning rate of the newest update.", "metrics.lr"),
    _Figure("cloze_run_gradient_norm", "Norm of the newest gradient.", "metrics.grad_norm"),
    _Figure("cloze_run_tokens_per_second", "Tokens per second of the newest update.", "metrics.tokens_per_s"),
    _Figure("cloze_run_step_seconds", "Duration of the newest update.", "metrics.step_s"),
    _Figure("cloze_run_data_wait_ratio", "Share of it that waited for data.", "metrics.data_wait_share"),
    _Figure("cloze_run_mfu_ratio", "Model FLOP/s as a share of the devices' peak.", "metrics.mfu"),
    _Figure(
        "cloze_run_slowest_rank_ratio",
        "Time of the slowest rank in units of the group's median.",
        "ranks.slowest_rank_ratio",
    ),
    _Figure("cloze_run_memory_bytes", "Memory of the fullest rank.", "memory_bytes"),
    _Figure("cloze_run_workers", "Workers of the newest attempt.", "workers"),
    _Figure("cloze_run_restarts_total", "Attempts after the first.", "restarts", True),
    _Figure("cloze_run_last_step_timestamp_seconds", "When the newest update was logged.", "logged_s"),
    _Figure(
        "cloze_run_last_checkpoint_timestamp_seconds",
        "When the newest checkpoint was committed.",
        "checkpoint_s",
    ),
    _Figure("cloze_run_last_checkpoint_step", "Its updates.", "checkpoint_step"),
    _Figure("cloze_run_checkpoint_save_seconds", "How long it took to save.", "saving.checkpoint_s"),
    _Figure(
        "cloze_run_oldest_heartbeat_timestamp_seconds", "The oldest heartbeat of the workers.", "heartbeat_s"
    ),
    _Figure("cloze_run_unsent_log_bytes", "Log that MLflow does not have yet.", "unsent_bytes"),
)
_OF_A_STAGE = (
    _Figure("cloze_data_shards", "Shards of the stage.", "progress.total"),
    _Figure("cloze_data_shards_done", "Shards that are finished.", "progress.done"),
    _Figure("cloze_data_rejects", "Inputs that could not be read.", "progress.rejects"),
    _Figure(
        "cloze_data_bytes_total",
        "Bytes of text handled since the stage was last started.",
        "progress.text_bytes",
        True,
    ),
    _Figure("cloze_data_rows_total", "Rows made since then.", "progress.rows", True),
    _Figure("cloze_data_bytes_per_second", "Bytes of text per second.", "progress.bytes_per_s"),
    _Figure("cloze_data_running", "1 while the stage is worked on.", "is_running"),
    _Figure("cloze_data_committed", "1 when its artefact is committed.", "is_committed"),
    _Figure("cloze_data_last_shard_timestamp_seconds", "When a shard was last finished.", "progress.last_s"),
)
_OF_A_NODE = (
    _Figure("cloze_node_cpu_utilization_ratio", "Use of the processors.", "cpu_ratio"),
    _Figure("cloze_node_load_average", "Load average of one minute.", "load_average"),
    _Figure("cloze_node_memory_used_bytes", "Memory in use.", "memory_bytes"),
    _Figure("cloze_node_memory_utilization_ratio", "Share of the memory.", "memory_ratio"),
    _Figure("cloze_node_disk_available_bytes", "Room on the disk of the run.", "disk_free_bytes"),
)
_OF_A_GPU = (
    _Figure("cloze_gpu_utilization_ratio", "Share of the time that kernels ran.", "ratio"),
    _Figure("cloze_gpu_memory_used_bytes", "GPU memory in use.", "memory_bytes"),
    _Figure("cloze_gpu_memory_utilization_ratio", "Share of it.", "memory_ratio"),
    _Figure("cloze_gpu_power_watts", "Power that the GPU takes.", "power_watts"),
)


class ClozeCollector(Collector):
    """Reads everything again at every scrape."""

    def __init__(
        self, runs: RunsReader, data: Sequence[Path] = (), cluster: ClusterWatch | None = None
    ) -> None:
        """
        Args:
            data: directories of preparations.
            cluster: whose jobs are counted; None where no cluster is watched. Ray itself exports its nodes' load.
        """
        self._runs, self._data, self._cluster = runs, data, cluster
        self._one_at_a_time = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """All metrics; one without samples is there too."""
        with self._one_at_a_time:
            runs, left_out = self._runs.read()
        yield GaugeMetricFamily("cloze_runs_left_out", "Runs that are not shown.", value=left_out)
        yield from _of_runs(runs)
        yield from _families(_OF_A_RUN, ("run",), [((run.name,), run) for run in runs])
        nodes = [(run.name, load_of(host, own)) for run in runs for host, own in run.nodes.items()]
        yield from _families(_OF_A_NODE, ("run", "node"), [((run, node.name), node) for run, node in nodes])
        gpus = [((run, node.name, str(gpu.number)), gpu) for run, node in nodes for gpu in node.gpus]
        yield from _families(_OF_A_GPU, ("run", "node", "gpu"), gpus)
        # A job whose settings changed may have two staging directories of one artefact: the newest start counts.
        newest = {(own.job, own.artefact): own for own in read_data(self._data)}
        yield from _families(_OF_A_STAGE, ("preparation", "artefact"), list(newest.items()))
        yield from self._of_jobs()

    def _of_jobs(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("cloze_cluster_up", "1 when the watched Ray cluster answers.", labels=())
        jobs = GaugeMetricFamily("cloze_jobs", "Jobs of the cluster.", labels=("verb", "status"))
        if self._cluster is not None:
            counts: Jobs = {}
            try:
                counts, answers = self._cluster.jobs(), True
            except ClusterUnreachableError:
                answers = False
            up.add_metric((), float(answers))
            for verb in sorted({verb for verb, _ in counts}):
                # From zero on, so that `delta` sees the first failure.
                for status in _STATUSES:
                    jobs.add_metric((verb, status), counts.get((verb, status), 0))
        yield from (up, jobs)


def _of_runs(runs: Sequence[RunStatus]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "cloze_run_info", "1; what the run is.", labels=("run", "mlflow_run", "config", "submission")
    )
    states = GaugeMetricFamily("cloze_run_state", "1 for the run's state.", labels=("run", "state"))
    events = CounterMetricFamily("cloze_run_events", "Events in its history.", labels=("run", "event"))
    for run in runs:
        info.add_metric((run.name, run.run_id, run.config_hash, run.submission_id), 1)
        for state in STATES:
            states.add_metric((run.name, state), float(run.state == state))
        # From zero on, so that `increase` sees the first one.
        for event in Event:
            events.add_metric((run.name, event), run.events.get(event, 0))
    yield from (info, states, events)


def _families(
    figures: Iterable[_Figure], labels: Sequence[str], owners: Sequence[tuple[Sequence[str], object]]
) -> Iterator[Metric]:
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        family = kind(figure.name, figure.help, labels=labels)
        for values, owner in owners:
            if (value := figure.value(owner)) is not None:
                family.add_metric(values, float(value))
        yield family


TEMPLATES = ("prometheus.yaml", "alerts.yaml", "dashboard.json")
_RUNBOOK = "runbook_url: runbooks/"
_PLAIN_URL = re.compile(r"[\w.:/~%-]+")


@contextmanager
def serve(collector: ClozeCollector, host: str, port: int) -> Iterator[tuple[str, threading.Thread]]:
    """Serve metrics for the time of the block, from a thread that lives as long; yields the URL and this thread.

    Args:
        port: 0 for a free one.

    Raises:
        ConfigError: host or port cannot be listened on.
    """
    try:
        server, thread = start_http_server(port, host, _registry(collector))
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}.",
            next_step="cloze metrics --port PORT, with another one (0 for any that is free)",
        ) from error
    bound, number = server.server_address[:2]
    shown = f"[{bound}]" if ":" in str(bound) else bound
    try:
        yield f"http://{shown}:{number}/metrics", thread
    finally:
        server.shutdown()
        server.server_close()


def exposition(collector: ClozeCollector) -> str:
    """The metrics in Prometheus's text format."""
    return generate_latest(_registry(collector)).decode()


def write_files(directory: Path, runbooks: str) -> list[Path]:
    """Write TEMPLATES into a directory; files of these names are replaced.

    Args:
        runbooks: what the alerts' links to runbooks begin with.

    Raises:
        ConfigError: `runbooks` has characters that are in no address.
        StorageError: the file system refuses.
    """
    if not _PLAIN_URL.fullmatch(runbooks):
        raise ConfigError(
            f"--runbooks {runbooks!r} is not an address.", next_step="--runbooks https://HOST/runbooks"
        )
    templates = files("cluster") / "templates" / "monitoring"
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name in TEMPLATES:
            text = (templates / name).read_text(encoding="utf-8")
            linked = text.replace(_RUNBOOK, f"runbook_url: {runbooks.rstrip('/')}/")
            write_durably(directory / name, linked.encode())
    return [directory / name for name in TEMPLATES]


def _registry(collector: ClozeCollector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
