"""Arrays in files: NumPy's bytes, and a full disk that is told."""

import errno
import io
from pathlib import Path

import numpy as np
import pytest

from cluster.artefacts.errors import StorageError
from cluster.artefacts.storage import storage_errors
from data_prep.decontaminate.ngrams import save_array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1000, dtype=np.uint32),
        np.empty(0, dtype=np.int64),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.array([(1, 2)], dtype=[("start", "<u4"), ("end", "<u8")]),
        np.array([True, False]),
    ],
)
def test_the_bytes_are_those_of_numpy(tmp_path, array):
    save_array(tmp_path / "a.npy", array)
    expected = io.BytesIO()
    np.save(expected, np.ascontiguousarray(array))
    assert (tmp_path / "a.npy").read_bytes() == expected.getvalue()


def test_a_full_disk_is_a_storage_error():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(StorageError, match="No space left") as raised, storage_errors(full):
        save_array(full, np.zeros(1 << 20))
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
