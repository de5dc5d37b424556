"""Memory: networks that are too large for this machine are refused before anything is started; memory that ran out is
recognized, and a configuration that fits is named."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.artefacts.errors import OutOfMemoryError
from cluster.memory import memory
from models.config import NetworkConfig, TransformerConfig
from pipeline.engine.gpus import GPUS
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.heartbeat import read_heartbeats

_GIB = 1 << 30
_LEAST_BYTES = 8
"""Of a parameter, with its gradient: float32 both, or in half precision with a float32 master. Optimizer state and
activations come on top."""
_ALLOCATION = re.compile(r"out of memory|can(?:'|no)t allocate memory|unable to allocate", re.IGNORECASE)
"""Messages of torch, CUDA, NumPy and the C library; torch's allocator for CPUs raises a plain RuntimeError."""
_ALLOCATION_LINE = re.compile(rf"^.*(?:{_ALLOCATION.pattern}).*$", re.IGNORECASE | re.MULTILINE)
_KILLED_BY_RAY = re.compile(r"running low on memory|ray\.exceptions\.OutOfMemoryError|\bOOM_KILL")
_CGROUP_V2 = Path("/sys/fs/cgroup/memory.events")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory/memory.oom_control")
_KERNEL = Path("/proc/vmstat")
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_DEFAULT_ADVICE = (
    "more workers, zero.stage 3 or zero.offload_optimizer take less on each GPU; or begin a run with a smaller"
    " batch.micro_batch_size or compute.gradient_checkpointing"
)


def explain_out_of_memory(
    error: BaseException, config: PretrainConfig, estimate: Callable[[], str]
) -> OutOfMemoryError | None:
    """The OutOfMemoryError for an error of a worker; None for an error of another cause.

    Args:
        error: as torch, NumPy, the system or Ray raised it.
        estimate: advises a configuration that fits; called only when needed.
    """
    if not _is_memory(error):
        return None
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return _error(f"Memory ran out on {platform.node()}: {first.strip()[:600]}", config, estimate)


def explain_killed_worker(
    failure: str, oom_kills: int, config: PretrainConfig, estimate: Callable[[], str]
) -> OutOfMemoryError | None:
    """The OutOfMemoryError for workers that kept being killed; None without a sign of memory pressure.

    Args:
        failure: Ray's message about the workers.
        oom_kills: processes that the kernel of this machine ended for memory during the training.
    """
    if found := _ALLOCATION_LINE.search(failure):
        who = f"the last time: {found[0].strip()[:600]}"
    elif was_killed_for_memory(failure):
        who = "Ray ended a worker, because the memory of its machine was nearly full"
    elif oom_kills > 0:
        who = f"the kernel of {platform.node()} ended {oom_kills} processes for memory meanwhile (dmesg names them)"
    else:
        return None
    return _error(f"The workers kept being killed, and {who}.", config, estimate)


def was_killed_for_memory(failure: str) -> bool:
    """Whether Ray says that it ended a worker for its machine's memory."""
    return bool(_KILLED_BY_RAY.search(failure))


@contextmanager
def memory_explained(run: RunDirectory, rank: int) -> Iterator[None]:
    """Turn memory that runs out for a rank into an OutOfMemoryError, which ends the group, when it made no update yet.

    After its first update, a restart may find the memory free again: the error stays as it is, and costs a restart.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not _is_memory(error) or _has_made_updates(run, rank):
            raise
        config = run.config()
        explained = explain_out_of_memory(error, config, lambda: what_fits(config))
        assert explained is not None
        raise explained from error


def count_oom_kills() -> int:
    """Processes that the kernel has ended for memory: of this container where it counts them, else of the machine."""
    for path in (_CGROUP_V2, _CGROUP_V1, _KERNEL):
        try:
            found = _OOM_KILL.search(path.read_text())
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0


def what_fits(config: PretrainConfig) -> str:
    """The advice of `cloze plan` for this configuration."""
    from pipeline.plan.plan import advise

    return advise(config)


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and bool(_ALLOCATION.search(str(error)))


def _has_made_updates(run: RunDirectory, rank: int) -> bool:
    return any(beat.rank == rank and beat.num_steps > 0 for beat in read_heartbeats(run))


def _error(problem: str, config: PretrainConfig, estimate: Callable[[], str]) -> OutOfMemoryError:
    try:
        advice = estimate()
    except Exception as error:
        # An estimate that fails must not hide the error that it was made for.
        advice = f"{_DEFAULT_ADVICE} ({type(error).__name__}: {error})"
    batch = config.batch
    return OutOfMemoryError(
        f"{problem} The configuration: {batch.micro_batch_size} samples of {batch.sequence_length} tokens at a time,"
        f" {config.precision}, ZeRO stage {config.zero.stage}, {config.cluster.workers} workers.",
        kept="all committed checkpoints",
        next_step=advice,
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
    # Of the largest card there is: to ask for the cards takes seconds.
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
