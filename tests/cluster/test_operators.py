"""Where compiled operators lie: on homes that cannot be written to, and beside other users."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from cluster.artefacts.private import private_directory
from cluster.operators import DIRECTORY_VARIABLE, compile_lock, operator_directory


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that no directory can be made in, not even by root."""
    # As if it were absent. It is set by the code under test, and must not stay.
    monkeypatch.setenv(DIRECTORY_VARIABLE, "")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("PATH", os.environ["PATH"])


def test_without_a_writable_home_operators_lie_in_a_directory_of_the_users_alone():
    with compile_lock():
        root = operator_directory()
        assert root.is_relative_to(Path(tempfile.gettempdir()) / f"cloze-{os.getuid()}")
        assert root.parents[1].stat().st_mode & 0o777 == 0o700
        assert os.environ[DIRECTORY_VARIABLE] == str(root)


def test_operators_are_not_compiled_where_another_user_put_a_link(tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    (Path(tempfile.gettempdir()) / f"cloze-{os.getuid()}").symlink_to(tmp_path / "theirs")
    assert not operator_directory().resolve().is_relative_to(tmp_path / "theirs")


def test_a_file_system_without_locks_is_used_without_them(monkeypatch: pytest.MonkeyPatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    under_way = operator_directory() / "fused_adam" / "lock"
    under_way.parent.mkdir(parents=True)
    under_way.touch()
    with private_directory("ray-"), compile_lock():
        # It may be of a process that compiles at this moment.
        assert under_way.exists()
