"""Workers that died, where, and why; and memory: networks that are too large for this machine are refused before
anything is started, memory that ran out is recognized, and a configuration that fits is named."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.artefacts.errors import OutOfMemoryError, StorageError, WorkersLostError
from cluster.group import GroupFailure
from cluster.node_load import memory
from models.config import NetworkConfig, TransformerConfig
from pipeline.checkpoint.store import store_of
from pipeline.engine.gpus import GPUS
from pipeline.pretrain.stall_watch import StallWatch, stalled
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.state import read_heartbeats

_GIB = 1 << 30
_LEAST_BYTES = 8
"""Least bytes of a parameter with its gradient: float32 both, or in half precision with a float32 master. Optimizer
state and activations come on top."""
_ALLOCATION = r"out of memory|can(?:'|no)t allocate memory|unable to allocate"
"""Messages of torch, CUDA, NumPy and the C library; torch's allocator for CPUs raises a plain RuntimeError."""
_ALLOCATION_LINE = re.compile(rf"^.*(?:{_ALLOCATION}).*$", re.IGNORECASE | re.MULTILINE)
_KILLED_BY_RAY = re.compile(r"running low on memory|ray\.exceptions\.OutOfMemoryError|\bOOM_KILL")
_NODE_LOST = re.compile(
    r"NodeDied|NODE_DIED|node (?:has|had)? ?(?:died|been (?:lost|terminated|preempted))", re.IGNORECASE
)
_PROCESS_LOST = re.compile(
    r"ActorDied|ActorUnavailable|actor died|WorkerCrashed|unexpected(?:ly)? (?:system|exits)"
)
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
"""Files with Linux's counts: those of this container where they exist (cgroup v2, v1), else of the machine."""


class Attempts:
    """How the attempts at a run end, as its driver records and explains it."""

    def __init__(self, run: RunDirectory, config: PretrainConfig) -> None:
        """To be made before the first attempt."""
        self._run, self._config = run, config
        self._oom_kills = count_oom_kills()
        self._saved, self._has_failed = self._newest_step(), False

    def record(self, reason: GroupFailure | str) -> bool:
        """Record the workers that died, or why the group moves, before it is started again.

        Returns:
            Whether there is a new checkpoint since the last failure: then restarts begin to count again, because a run
            of weeks loses a worker now and then, and only one without progress is given up.
        """
        run, failure, newest = self._run, reason, self._saved
        # The next attempt says that a store does not answer, if it still does not.
        with suppress(StorageError):
            newest = self._newest_step()
        if isinstance(failure, str):
            run.record_event(Event.MOVED, step=newest, reason=failure)
            return False
        oom_kills = count_oom_kills() - self._oom_kills
        known = {worker.get("pid") for event in run.events(Event.WORKERS_LOST) for worker in event["workers"]}
        # A group that failed before its workers said anything finds the last words of the one before.
        beats = {beat.rank: beat for beat in read_heartbeats(run) if beat.pid not in known}
        workers = []
        for rank in sorted(failure.errors or beats):
            beat, place = beats.get(rank), {}
            why = _why(str(failure.errors.get(rank, failure)), oom_kills)
            if beat is not None:
                place = beat.model_dump(include={"host", "pid", "step", "part"})
                # A rank's alarm writes its stacks before it ends the process.
                stacks = run.stack_file(rank, beat.host, beat.pid)
                if stacks.is_file() and stacks.stat().st_size > 0:
                    why = "ended itself, because training stood still; see `stalled`"
            workers.append({"rank": rank, **place, "why": why})
        # Root causes first, then workers that only lost their connection.
        workers.sort(key=lambda one: (one["why"].startswith("raised"), one["rank"]))
        run.record_event(Event.WORKERS_LOST, workers=workers, message=_why(str(failure), oom_kills))
        renewed, self._saved = newest > self._saved, newest
        if renewed and self._has_failed:
            run.record_event(Event.RESTARTS_RENEWED, step=newest, message=str(failure)[:2000])
        self._has_failed = True
        return renewed

    @contextmanager
    def explained(self, watch: StallWatch) -> Iterator[None]:
        """Raise StalledError or OutOfMemoryError in place of a WorkersLostError where that is the cause."""
        try:
            yield
        except WorkersLostError as error:
            if stall := watch.last_of(read_heartbeats(self._run)):
                stacks = self._run.stacks.glob(f"rank-*-{stall.beat.host}-{stall.beat.pid}.*")
                restarts = self._config.cluster.max_failures
                raise stalled(self._run, restarts, stall, sorted(stacks)) from error
            oom_kills = count_oom_kills() - self._oom_kills
            killed = explain_killed_worker(str(error.__cause__), oom_kills, self._config)
            if killed is not None:
                raise killed from error
            raise

    def _newest_step(self) -> int:
        return max(store_of(self._run).steps(), default=-1)


def _why(error: str, oom_kills: int) -> str:
    if _NODE_LOST.search(error):
        return "its node was lost"
    if _KILLED_BY_RAY.search(error):
        return "Ray ended it, because the memory of its machine was nearly full"
    if _PROCESS_LOST.search(error):
        kernel = "; the kernel ended processes for memory meanwhile (dmesg names them)"
        return f"its process was killed or crashed{kernel if oom_kills > 0 else ''}"
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return f"raised {lines[-1][:500]}" if lines else "no reason is known"


def explain_killed_worker(failure: str, oom_kills: int, config: PretrainConfig) -> OutOfMemoryError | None:
    """The OutOfMemoryError for workers that kept being killed; None without a sign of memory pressure.

    Args:
        failure: Ray's message about the workers.
        oom_kills: processes that the kernel of this machine ended for memory during the training.
    """
    if found := _ALLOCATION_LINE.search(failure):
        who = f"the last time: {found[0].strip()[:600]}"
    elif _KILLED_BY_RAY.search(failure):
        who = "Ray ended a worker, because the memory of its machine was nearly full"
    elif oom_kills > 0:
        who = f"the kernel of {platform.node()} ended {oom_kills} processes for memory meanwhile (dmesg names them)"
    else:
        return None
    return _out_of_memory(f"The workers kept being killed, and {who}.", config)


@contextmanager
def memory_explained(run: RunDirectory, rank: int) -> Iterator[None]:
    """Turn memory that runs out for a rank into an OutOfMemoryError, which ends the group, when it made no update yet.

    After its first update, a restart may find the memory free again: the error stays as it is, and costs a restart.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not (isinstance(error, MemoryError) or _ALLOCATION_LINE.search(str(error))):
            raise
        if any(beat.rank == rank and beat.num_steps > 0 for beat in read_heartbeats(run)):
            raise
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        problem = f"Memory ran out on {platform.node()}: {first.strip()[:600]}"
        raise _out_of_memory(problem, run.config()) from error


def count_oom_kills() -> int:
    """Processes that the kernel has ended for memory: of this container where it counts them, else of the machine."""
    for path in map(Path, _OOM_COUNTERS):
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0


def _out_of_memory(problem: str, config: PretrainConfig) -> OutOfMemoryError:
    """The error, with the advice of `cloze plan` for this configuration."""
    from pipeline.plan.plan import advise

    batch = config.batch
    return OutOfMemoryError(
        f"{problem} The configuration: {batch.micro_batch_size} samples of {batch.sequence_length} tokens at a time,"
        f" {config.precision}, ZeRO stage {config.zero.stage}, {config.cluster.workers} workers.",
        kept="all committed checkpoints",
        next_step=advise(config),
    )


def least_bytes(parameters: int, config: PretrainConfig) -> int:
    """Memory without which a run cannot train, over all workers: one copy of everything, as ZeRO stage 3 spreads it."""
    copies = 1 if config.zero.stage == 3 else config.cluster.workers
    item = 4 if config.precision == "fp32" else 2
    return parameters * (_LEAST_BYTES + item * (copies - 1))


def require_room(config: PretrainConfig, shape: NetworkConfig) -> None:
    """Refuse a run that this machine's memory cannot hold, by a lower bound that takes no time.

    A cluster at an address may have any size, and is not looked at.

    Raises:
        OutOfMemoryError: says what is needed and what is there.
    """
    if config.cluster.address or os.environ.get("RAY_ADDRESS"):
        return
    parameters = shape.least_parameters if isinstance(shape, TransformerConfig) else 0
    needed, there = least_bytes(parameters, config), memory().total
    # Memory of the largest card there is: asking for the real cards takes seconds.
    there += (
        config.cluster.workers
        * config.cluster.gpus_per_worker
        * max(gpu.memory_bytes for gpu in GPUS.values())
    )
    if needed > there:
        raise OutOfMemoryError(
            f"{config.name} has more than {parameters / 1e9:,.1f} billion parameters: its weights and gradients alone"
            f" take {needed / _GIB:,.0f} GiB, and this machine has {there / _GIB:,.0f} GiB at most.",
            kept="everything; nothing was started",
            next_step="make the network smaller (model.hidden_size, model.num_layers), or train on a cluster:"
            " cluster.address=... (`cloze plan` says what it must have)",
        )
