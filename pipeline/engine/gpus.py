"""GPUs as plans and meters know them: memory, and peak speed by number format.

Peaks are for dense matrix products with float32 accumulation at boost clock, without sparsity; `fp32` is without TF32,
which PyTorch does not use for matrix products by default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.artefacts.errors import ConfigError

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """A model of GPU, or the CPU in its place."""

    name: str
    """The name that users type: `cloze plan --gpu h100`."""
    memory_bytes: int
    """Memory that CUDA can allocate on an empty card, somewhat less than its label says; 0 if unknown."""
    flops: Mapping[str, float]
    """Peak floating-point operations per second by precision (`fp32`, `bf16`, `fp16`), without the formats that the
    card has no units for."""
    pattern: str
    """Regular expression that matches the name reported by the driver, in lower case."""

    @property
    def capability(self) -> tuple[int, int]:
        """Least compute capability of cards with its number formats: bf16 came with 8.0."""
        return (8, 0) if "bf16" in self.flops else (7, 0)


_ROWS = (
    # name, GiB, TFLOP/s in fp32 and in half precision, whether it has bf16, pattern
    # The first pattern that matches decides: special cards come before general ones. Figures are from NVIDIA's data
    # sheets, dense (half of those with sparsity); of rtx4090 and rtx3090 from appendix A of the white papers on the
    # architectures Ada and Ampere GA102.
    ("b200", 178.0, 75.0, 2250.0, True, r"\bb200\b"),
    ("h200", 139.8, 66.9, 989.4, True, r"\bh200\b"),
    ("h100-pcie", 79.1, 51.2, 756.5, True, r"\bh100.*pcie|\bh100 80gb$"),
    ("h100", 79.1, 66.9, 989.4, True, r"\bh100\b"),
    ("a100-40gb", 39.4, 19.5, 312.0, True, r"\ba100.*40gb"),
    ("a100", 79.1, 19.5, 312.0, True, r"\ba100\b"),
    ("a10", 22.0, 31.2, 125.0, True, r"\ba10\b"),
    ("a10g", 22.0, 35.0, 70.0, True, r"\ba10g\b"),
    ("a6000", 47.4, 38.7, 154.8, True, r"\ba6000\b"),
    ("l40s", 44.4, 91.6, 362.0, True, r"\bl40s\b"),
    ("l4", 22.0, 30.3, 121.0, True, r"\bl4\b"),
    ("rtx4090", 23.6, 82.6, 165.2, True, r"\b(rtx )?4090\b"),
    ("rtx3090", 23.6, 35.6, 71.0, True, r"\b(rtx )?3090\b"),
    ("t4", 14.6, 8.1, 65.0, False, r"\bt4\b"),
    ("v100", 31.7, 15.7, 125.0, False, r"\bv100.*32gb"),
    ("v100-16gb", 15.8, 15.7, 125.0, False, r"\bv100\b"),
)


def _gpu(name: str, gib: float, fp32: float, half: float, has_bf16: bool, pattern: str) -> Gpu:
    flops = {"fp32": fp32 * 1e12, "fp16": half * 1e12} | ({"bf16": half * 1e12} if has_bf16 else {})
    return Gpu(name, int(gib * _GIB), flops, pattern)


GPUS: Mapping[str, Gpu] = {row[0]: _gpu(*row) for row in _ROWS}
"""By the name that users type."""

CPU = Gpu("cpu", 0, {}, r"^cpu$")
"""Training on CPUs; its peak is unknown: it depends on cores, clock and vector units."""


def find_gpu(name: str) -> Gpu | None:
    """Look up a card by the name that users type (`h100`, `A100-40GB`) or that the driver reports (`NVIDIA H100 80GB
    HBM3`, `NVIDIA A100-SXM4-40GB`); None if it is not in the table."""
    typed = name.strip().lower()
    if typed == CPU.name:
        return CPU
    if (known := GPUS.get(typed.replace("_", "-").replace(" ", "-"))) is not None:
        return known
    return next((gpu for gpu in GPUS.values() if re.search(gpu.pattern, typed.replace("-", " "))), None)


def require_gpu(name: str) -> Gpu:
    """Look up a card as `find_gpu` does.

    Raises:
        ConfigError: the card is not in the table; the message names the cards that are.
    """
    found = find_gpu(name)
    if found is None:
        raise ConfigError(
            f"The GPU {name} is unknown.",
            next_step=f"take one of {', '.join((*GPUS, CPU.name))}; --memory-gib sets another size of memory",
        )
    return found


def peak_flops(gpu_name: str, precision: str) -> float | None:
    """Peak FLOP/s of a card in `fp32`, `bf16` or `fp16`; None for CPUs, unknown cards and unsupported formats."""
    found = find_gpu(gpu_name)
    return None if found is None else found.flops.get(precision)
