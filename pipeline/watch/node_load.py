"""The load of a run's machines, from the figures that it logs of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cluster.node_load import GpuLoad, NodeLoad

_MEGA = 1e6
_GPU = re.compile(r"gpu_(\d+)_")


def load_of(name: str, figures: Mapping[str, float]) -> NodeLoad:
    """The load of a machine.

    Args:
        figures: from a log line `system`: percentages and megabytes (10^6 bytes).
    """

    def scaled(key: str, factor: float) -> float | None:
        return figures[key] * factor if key in figures else None

    numbers = sorted({int(found[1]) for key in figures if (found := _GPU.match(key))})
    return NodeLoad(
        name=name,
        cpu_ratio=scaled("cpu_utilization_percentage", 0.01),
        load_average=figures.get("load_average"),
        memory_bytes=scaled("system_memory_usage_megabytes", _MEGA),
        memory_ratio=scaled("system_memory_usage_percentage", 0.01),
        disk_free_bytes=scaled("disk_available_megabytes", _MEGA),
        gpus=tuple(
            GpuLoad(
                number=number,
                ratio=scaled(f"gpu_{number}_utilization_percentage", 0.01),
                memory_bytes=scaled(f"gpu_{number}_memory_usage_megabytes", _MEGA),
                memory_ratio=scaled(f"gpu_{number}_memory_usage_percentage", 0.01),
                power_watts=figures.get(f"gpu_{number}_power_usage_watts"),
            )
            for number in numbers
        ),
    )
