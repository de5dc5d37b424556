"""Figures of runs and data jobs as Prometheus metrics, by its conventions: base units, `_total` for counters.

Labels are bounded: runs by `RunsReader`, states and events by their enumerations, nodes and GPUs by machines.
`job` and `instance` are Prometheus's own. Ranks are no label, because a run may have thousands: the
slowest and the fullest stand for all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.artefacts.errors import ClusterUnreachableError
from pipeline.run.events import Event
from pipeline.run.state import State
from pipeline.watch.data_status import DataStatus, read_data
from pipeline.watch.node_load import load_of
from pipeline.watch.run_status import UNREADABLE, RunStatus
from pipeline.watch.runs import RunsReader

if TYPE_CHECKING:
    from pipeline.watch.cluster_watch import ClusterWatch, Jobs

STATES = (*get_args(State), UNREADABLE)
_STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "STOPPED", "FAILED")
"""Of Ray's jobs."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """One number of a run or of a stage of a data job."""

    name: str
    help: str
    of: Callable[..., float | None]
    """Its value; None where there is none, and no sample."""
    is_counter: bool = False


def _logged(name: str) -> Callable[[RunStatus], float | None]:
    return lambda run: run.metrics.get(name)


_OF_A_RUN = (
    _Figure("cloze_run_step", "Updates in the run's log.", lambda run: run.step),
    _Figure("cloze_run_target_steps", "Updates of the whole run.", lambda run: run.num_steps),
    _Figure("cloze_run_tokens_total", "Tokens of text that the updates read.", lambda run: run.tokens, True),
    _Figure("cloze_run_loss", "Loss of the newest update.", _logged("loss")),
    _Figure(
        "cloze_run_held_out_loss", "Loss of the newest evaluation.", lambda run: run.held_out.get("loss")
    ),
    _Figure("cloze_run_learning_rate", "Learning rate of the newest update.", _logged("lr")),
    _Figure("cloze_run_gradient_norm", "Norm of the newest gradient.", _logged("grad_norm")),
    _Figure(
        "cloze_run_tokens_per_second", "Tokens per second of the newest update.", _logged("tokens_per_s")
    ),
    _Figure("cloze_run_step_seconds", "Duration of the newest update.", _logged("step_s")),
    _Figure("cloze_run_data_wait_ratio", "Share of it that waited for data.", _logged("data_wait_share")),
    _Figure("cloze_run_mfu_ratio", "Model FLOP/s as a share of the devices' peak.", _logged("mfu")),
    _Figure(
        "cloze_run_slowest_rank_ratio",
        "Time of the slowest rank in units of the group's median.",
        lambda run: run.ranks.get("slowest_rank_ratio"),
    ),
    _Figure("cloze_run_memory_bytes", "Memory of the fullest rank.", lambda run: run.memory_bytes),
    _Figure("cloze_run_workers", "Workers of the newest attempt.", lambda run: len(run.workers)),
    _Figure("cloze_run_restarts_total", "Attempts after the first.", lambda run: run.restarts, True),
    _Figure(
        "cloze_run_last_step_timestamp_seconds",
        "When the newest update was logged.",
        lambda run: run.logged_s,
    ),
    _Figure(
        "cloze_run_last_checkpoint_timestamp_seconds",
        "When the newest checkpoint was committed.",
        lambda run: run.checkpoint_s,
    ),
    _Figure("cloze_run_last_checkpoint_step", "Its updates.", lambda run: run.checkpoint_step),
    _Figure(
        "cloze_run_checkpoint_save_seconds",
        "How long it took to save.",
        lambda run: run.saving.get("checkpoint_s"),
    ),
    _Figure(
        "cloze_run_oldest_heartbeat_timestamp_seconds",
        "The oldest heartbeat of the workers.",
        lambda run: run.heartbeat_s,
    ),
    _Figure("cloze_run_unsent_log_bytes", "Log that MLflow does not have yet.", lambda run: run.unsent_bytes),
)
_OF_A_STAGE = (
    _Figure("cloze_data_shards", "Shards of the stage.", lambda own: own.progress.total),
    _Figure("cloze_data_shards_done", "Shards that are finished.", lambda own: own.progress.done),
    _Figure("cloze_data_rejects", "Inputs that could not be read.", lambda own: own.progress.rejects),
    _Figure(
        "cloze_data_bytes_total",
        "Bytes of text handled since the stage was last started.",
        lambda own: own.progress.text_bytes,
        True,
    ),
    _Figure("cloze_data_rows_total", "Rows made since then.", lambda own: own.progress.rows, True),
    _Figure("cloze_data_bytes_per_second", "Bytes of text per second.", lambda own: own.progress.bytes_per_s),
    _Figure("cloze_data_running", "1 while the stage is worked on.", lambda own: float(own.is_running)),
    _Figure("cloze_data_committed", "1 when its artefact is committed.", lambda own: float(own.is_committed)),
    _Figure(
        "cloze_data_last_shard_timestamp_seconds",
        "When a shard was last finished.",
        lambda own: own.progress.last_s,
    ),
)
_OF_A_NODE = (
    _Figure("cloze_node_cpu_utilization_ratio", "Use of the processors.", lambda node: node.cpu_ratio),
    _Figure("cloze_node_load_average", "Load average of one minute.", lambda node: node.load_average),
    _Figure("cloze_node_memory_used_bytes", "Memory in use.", lambda node: node.memory_bytes),
    _Figure("cloze_node_memory_utilization_ratio", "Share of the memory.", lambda node: node.memory_ratio),
    _Figure(
        "cloze_node_disk_available_bytes", "Room on the disk of the run.", lambda node: node.disk_free_bytes
    ),
)
_OF_A_GPU = (
    _Figure("cloze_gpu_utilization_ratio", "Share of the time in which kernels ran.", lambda gpu: gpu.ratio),
    _Figure("cloze_gpu_memory_used_bytes", "GPU memory in use.", lambda gpu: gpu.memory_bytes),
    _Figure("cloze_gpu_memory_utilization_ratio", "Share of it.", lambda gpu: gpu.memory_ratio),
    _Figure("cloze_gpu_power_watts", "Power that the GPU takes.", lambda gpu: gpu.power_watts),
)


class ClozeCollector(Collector):
    """Reads everything anew at every scrape."""

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
            runs = self._runs.read()
        yield GaugeMetricFamily("cloze_runs_left_out", "Runs that are not shown.", value=runs.left_out)
        yield from _of_runs(runs.shown)
        yield from _families(_OF_A_RUN, ("run",), [((run.name,), run) for run in runs.shown])
        nodes = [(run.name, load_of(host, own)) for run in runs.shown for host, own in run.nodes.items()]
        yield from _families(_OF_A_NODE, ("run", "node"), [((run, node.name), node) for run, node in nodes])
        gpus = [((run, node.name, str(gpu.number)), gpu) for run, node in nodes for gpu in node.gpus]
        yield from _families(_OF_A_GPU, ("run", "node", "gpu"), gpus)
        yield from _of_data(read_data(self._data))
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


def _of_data(stages: Sequence[DataStatus]) -> Iterator[Metric]:
    # A job whose settings changed may have two staging directories of one artefact: the newest start counts.
    newest = {(own.job, own.artefact): own for own in stages}
    yield from _families(_OF_A_STAGE, ("preparation", "artefact"), list(newest.items()))


def _families(
    figures: Iterable[_Figure], labels: Sequence[str], owners: Sequence[tuple[Sequence[str], object]]
) -> Iterator[Metric]:
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        family = kind(figure.name, figure.help, labels=labels)
        for values, owner in owners:
            if (value := figure.of(owner)) is not None:
                family.add_metric(values, value)
        yield family
