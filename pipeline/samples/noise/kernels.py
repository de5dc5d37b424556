"""The draws of `noise.py` inside compiled loops: the same hash, one value at a time.

    state = fold(fold(fold(base, epoch), sample_id), position)
    uniform(fold(state, SHARE))

where `base` is a `Noise` keyed by the purpose, `np.uint64(noise.at("mlm").state)`. Keys are uint64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cluster.compiled_loop import compiled_loop

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _S32 = (np.uint64(shift) for shift in (30, 27, 31, 11, 32))


@compiled_loop
def mix(value: Any) -> Any:
    """SplitMix64's finaliser."""
    value ^= value >> _S30
    value *= _MIX_1
    value ^= value >> _S27
    value *= _MIX_2
    return value ^ (value >> _S31)


@compiled_loop
def fold(state: Any, key: Any) -> Any:
    """`Noise(state).at(key)`; its value is also the draw of 64 bits."""
    return mix((state ^ mix(key + _GAMMA)) + _GAMMA)


@compiled_loop
def uniform(state: Any) -> Any:
    """float64 in [0, 1), as `Noise.uniform`."""
    return np.float64(state >> _S11) * 2.0**-53


@compiled_loop
def integer(state: Any, high: Any) -> Any:
    """int64 in [0, high), as `Noise.integers`; `high` below 2**32."""
    return np.int64(((state >> _S32) * np.uint64(high)) >> _S32)
