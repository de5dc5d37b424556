"""Directories that no other user can write to: the cache, and those in a place that all users share."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.artefacts import private
from cluster.artefacts.errors import StorageError
from cluster.artefacts.private import cache_directory, private_cache

OWN = f"cloze-{os.getuid()}"
LOCAL = """
import os, psutil, ray, signal
from pathlib import Path
from cluster import signals
from cluster.runtime import ray_runtime
from tests.cluster.test_jobs import addresses_of
signals.answer_signals("cloze")
handlers = [signal.getsignal(number) for number in signals.EXIT_CODES]
with ray_runtime("local", num_cpus=1):
    assert [signal.getsignal(number) for number in signals.EXIT_CODES] == handlers
    ray.get(ray.remote(lambda: os.getpid()).remote())
    here = psutil.Process()
    family = [here, *here.children(recursive=True)]
    print(addresses_of(family), [oct(path.stat().st_mode) for path in Path(os.environ["TMPDIR"]).iterdir()])
print(psutil.wait_procs(family[1:], timeout=0)[1])
caught = Path("/proc/self/status").read_text().partition("SigCgt:")[2].split()[0]
print("SIGTERM is", "answered" if int(caught, 16) >> (signal.SIGTERM - 1) & 1 else "forgotten")
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory for temporary files, as sockets need it."""
    found = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setattr(private, "FALLBACK", found)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache in the home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "cloze"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_home_is_the_usual_place_and_others_lose_the_right_to_write_there(usual: Path) -> None:
    usual.mkdir(parents=True)
    usual.chmod(0o777)
    assert (private_cache(), mode_of(usual)) == (usual, 0o755)


def test_where_the_home_is_no_place_it_is_a_directory_of_its_own_and_no_link(usual, place, tmp_path):
    usual.parent.mkdir()
    usual.write_text("a file")
    temporary = place / OWN
    assert (private_cache(), mode_of(temporary)) == (temporary, 0o700)
    shutil.rmtree(temporary)
    temporary.symlink_to(tmp_path)
    found = private_cache()
    assert found not in (usual, temporary)
    assert mode_of(found) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_never_used(usual: Path, place: Path) -> None:
    for taken in (usual, place / OWN):
        taken.mkdir(parents=True)
        os.chown(taken, 12345, -1)
    assert private_cache() not in (usual, place / OWN)
    with pytest.raises(StorageError, match="12345"):
        private.private_root()


def test_in_a_directory_that_others_write_to_the_cache_is_a_private_one(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("CLOZE_CACHE", str(shared))
    assert (cache_directory(), mode_of(shared)) == (shared, 0o700)
    shared.chmod(0o777)
    assert (cache_directory(), mode_of(shared / OWN)) == (shared / OWN, 0o700)
    (shared / OWN).rename(tmp_path / "elsewhere")
    (shared / OWN).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        cache_directory()


def test_it_is_the_owners_alone_whatever_the_mask(place: Path):
    before = os.umask(0)
    try:
        with private.private_directory("x-") as directory:
            assert (mode_of(directory), mode_of(directory.parent)) == (0o700, 0o700)
            assert directory.parent.parent == place
    finally:
        os.umask(before)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("squat", "problem"),
    [
        (lambda path: path.mkdir(mode=0o755), "others"),
        (lambda path: path.symlink_to(path.parent), "symbolic link"),
        (lambda path: path.touch(), "not a directory"),
    ],
    ids=["open", "link", "file"],
)
def test_a_place_taken_by_another_user_is_refused(squat, problem: str, place: Path):
    squat(place / OWN)
    with pytest.raises(StorageError, match=problem):
        private.private_root()


def test_a_path_too_long_for_sockets_gives_way_to_a_short_one(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(place / ("long" * 20)))
    assert private.private_root().parent == place
    monkeypatch.setattr(private, "FALLBACK", place / ("long" * 20))
    with pytest.raises(StorageError, match="sockets"):
        private.private_root()


def test_directories_of_killed_processes_are_removed_but_the_newest(place: Path):
    code = (
        "import os; from cluster.artefacts.private import private_directory\n"
        "with private_directory('x-'): os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=False)
    with private.private_directory("x-") as one:
        assert len(list((place / OWN).glob("x-*"))) == 2
        with private.private_directory("x-") as other:
            assert set((place / OWN).glob("x-*")) == {one, other}


def test_a_cluster_for_one_command_is_closed_to_others_and_leaves_nothing():
    done = subprocess.run([sys.executable, "-c", LOCAL], capture_output=True, text=True)
    expected = ["{'127.0.0.1'} ['0o40700']", "[]", "SIGTERM is answered"]
    assert done.stdout.splitlines() == expected, done.stderr[-3000:]
