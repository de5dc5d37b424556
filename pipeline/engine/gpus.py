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
    source: str
    """Source of the figures."""
    pattern: str
    """Regular expression that matches the name reported by the driver, in lower case."""


def _gpu(
    name: str,
    gib: float,
    *,
    fp32: float,
    fp16: float,
    source: str,
    pattern: str,
    bf16: float | None = None,
) -> Gpu:
    """A row of the table; memory in GiB, speeds in TFLOP/s."""
    flops = {"fp32": fp32 * 1e12, "fp16": fp16 * 1e12}
    if bf16 is not None:
        flops["bf16"] = bf16 * 1e12
    return Gpu(name, int(gib * _GIB), flops, source, pattern)


_HOPPER = "NVIDIA H100 Tensor Core GPU data sheet (dense: half of the figures with sparsity)"
_AMPERE = "NVIDIA A100 Tensor Core GPU data sheet"
_VOLTA = "NVIDIA V100 data sheet"

# The first pattern that matches decides: special cards come before general ones.
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu(
            "b200",
            178.0,
            fp32=75.0,
            bf16=2250.0,
            fp16=2250.0,
            source="NVIDIA HGX B200 data sheet (dense)",
            pattern=r"\bb200\b",
        ),
        _gpu(
            "h200",
            139.8,
            fp32=66.9,
            bf16=989.4,
            fp16=989.4,
            source="NVIDIA H200 data sheet (dense)",
            pattern=r"\bh200\b",
        ),
        _gpu(
            "h100-pcie",
            79.1,
            fp32=51.2,
            bf16=756.5,
            fp16=756.5,
            source=_HOPPER,
            pattern=r"\bh100.*pcie|\bh100 80gb$",
        ),
        _gpu("h100", 79.1, fp32=66.9, bf16=989.4, fp16=989.4, source=_HOPPER, pattern=r"\bh100\b"),
        _gpu(
            "a100-40gb",
            39.4,
            fp32=19.5,
            bf16=312.0,
            fp16=312.0,
            source=_AMPERE,
            pattern=r"\ba100.*40gb",
        ),
        _gpu("a100", 79.1, fp32=19.5, bf16=312.0, fp16=312.0, source=_AMPERE, pattern=r"\ba100\b"),
        _gpu(
            "a10",
            22.0,
            fp32=31.2,
            bf16=125.0,
            fp16=125.0,
            source="NVIDIA A10 data sheet",
            pattern=r"\ba10\b",
        ),
        _gpu(
            "a10g",
            22.0,
            fp32=35.0,
            bf16=70.0,
            fp16=70.0,
            source="NVIDIA A10G data sheet",
            pattern=r"\ba10g\b",
        ),
        _gpu(
            "a6000",
            47.4,
            fp32=38.7,
            bf16=154.8,
            fp16=154.8,
            source="NVIDIA RTX A6000 data sheet (dense)",
            pattern=r"\ba6000\b",
        ),
        _gpu(
            "l40s",
            44.4,
            fp32=91.6,
            bf16=362.0,
            fp16=362.0,
            source="NVIDIA L40S data sheet (dense)",
            pattern=r"\bl40s\b",
        ),
        _gpu(
            "l4",
            22.0,
            fp32=30.3,
            bf16=121.0,
            fp16=121.0,
            source="NVIDIA L4 data sheet (dense)",
            pattern=r"\bl4\b",
        ),
        _gpu(
            "rtx4090",
            23.6,
            fp32=82.6,
            bf16=165.2,
            fp16=165.2,
            source="NVIDIA Ada GPU architecture white paper, appendix A (float32 accumulation)",
            pattern=r"\b(rtx )?4090\b",
        ),
        _gpu(
            "rtx3090",
            23.6,
            fp32=35.6,
            bf16=71.0,
            fp16=71.0,
            source="NVIDIA Ampere GA102 white paper, appendix A (float32 accumulation)",
            pattern=r"\b(rtx )?3090\b",
        ),
        _gpu(
            "t4",
            14.6,
            fp32=8.1,
            fp16=65.0,
            source="NVIDIA T4 data sheet",
            pattern=r"\bt4\b",
        ),
        _gpu("v100", 31.7, fp32=15.7, fp16=125.0, source=_VOLTA, pattern=r"\bv100.*32gb"),
        _gpu("v100-16gb", 15.8, fp32=15.7, fp16=125.0, source=_VOLTA, pattern=r"\bv100\b"),
    )
}
"""By the name that users type."""

CPU = Gpu("cpu", 0, {}, "a CPU's peak depends on its cores, clock and vector units", r"^cpu$")
"""Training on CPUs; its peak is unknown."""


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
