"""Advice from a plan for a run that ran out of memory."""

from __future__ import annotations

from pipeline.engine.gpus import find_gpu
from pipeline.plan.choices import Machines, chosen_option, options
from pipeline.plan.findings import memory_findings
from pipeline.plan.network import make_network
from pipeline.run.config import PretrainConfig

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
    else:
        lines += memory_findings(config, machines, chosen, options(config, network, machines))
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
