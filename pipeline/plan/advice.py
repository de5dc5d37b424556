"""Advice from a plan for a run that ran out of memory."""

from __future__ import annotations

from pipeline.engine.gpus import find_gpu
from pipeline.plan.choices import Machines, cheapest, chosen_option, memory_of, options
from pipeline.plan.network import make_network
from pipeline.runs.config import PretrainConfig

_GIB = 1 << 30


def advise(config: PretrainConfig, device_bytes: int | None = None) -> str:
    """Settings that would fit on the run's workers, in a few lines; never raises.

    Args:
        device_bytes: memory of one device; None asks this machine.
    """
    try:
        return _advice(config, device_bytes)
    except Exception as error:
        # It stands beside another error, which must not be hidden by this one.
        return f"No estimate of the memory could be made ({type(error).__name__}: {error})."


def _advice(config: PretrainConfig, device_bytes: int | None) -> str:
    on_cuda, name, own_bytes = _device(config)
    size = device_bytes or own_bytes
    machines = Machines(1, config.cluster.workers, size, on_cuda)
    network = make_network(config, "cuda" if on_cuda else "cpu")
    chosen = chosen_option(config, network, machines)
    lines = [
        f"A worker needs about {chosen.memory.total / _GIB:.1f} GiB at its peak ({chosen.memory.moment});"
        f" {name} has {size / _GIB:.1f} GiB for each."
    ]
    if chosen.fits:
        lines.append(
            "By this estimate it fits: look for other processes on the device, or unusually long texts."
        )
    if chosen.micro_batch_size is not None and not chosen.fits:
        lines.append(f"batch.micro_batch_size={chosen.micro_batch_size} is the largest that fits as it is.")
    best = cheapest(options(config, network, machines))
    if best is not None and not chosen.fits:
        lines.append(f"With the same micro-batch, {best.name} fits: {' '.join(best.settings)}")
    compute = config.compute.model_copy(update={"gradient_checkpointing": True})
    recomputed = memory_of(config.model_copy(update={"compute": compute}), network, machines)
    if not chosen.fits and not config.compute.gradient_checkpointing:
        verb = "fits" if machines.fits(recomputed) else "is not enough"
        lines.append(
            f"compute.gradient_checkpointing=true takes {recomputed.total / _GIB:.1f} GiB, which {verb}."
        )
    return "\n".join(lines)


def _device(config: PretrainConfig) -> tuple[bool, str, int]:
    """Whether the run is on GPUs, what its workers' device is called, and its memory for each worker."""
    import psutil
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        known = find_gpu(properties.name)
        return True, properties.name if known is None else known.name, properties.total_memory
    return False, "the machine", psutil.virtual_memory().total // config.cluster.workers
