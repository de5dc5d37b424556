"""NumPy arrays as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def save_array(path: Path, array: np.ndarray) -> None:
    """Write the bytes that `np.save` writes, through Python's stream.

    Raises:
        OSError: with its `errno`, by which a full disk is told; `np.save` raises one without it.
    """
    with path.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(np.ascontiguousarray(array).data)
