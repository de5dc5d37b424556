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
from tests.cluster.test_jobs import addresses_of


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


def test_the_home_is_the_usual_place_and_others_lose_the_right_to_write_there(usual: Path) -> None:
    usual.mkdir(parents=True)
    usual.chmod(0o777)
    assert private_cache() == usual
    assert stat.S_IMODE(usual.stat().st_mode) == 0o755


def test_where_the_home_is_no_place_it_is_a_directory_of_its_own_and_no_link(
    usual: Path, place: Path, tmp_path: Path
) -> None:
    usual.parent.mkdir()
    usual.write_text("a file")
    temporary = place / f"cloze-{os.getuid()}"
    assert private_cache() == temporary
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    shutil.rmtree(temporary)
    temporary.symlink_to(tmp_path)
    found = private_cache()
    assert found not in (usual, temporary)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_never_used(usual: Path, place: Path) -> None:
    for taken in (usual, place / f"cloze-{os.getuid()}"):
        taken.mkdir(parents=True)
        os.chown(taken, 12345, -1)
    assert private_cache() not in (usual, place / f"cloze-{os.getuid()}")
    with pytest.raises(StorageError, match="12345"):
        private.private_root()


def test_in_a_directory_that_others_write_to_the_cache_is_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "shared" / f"cloze-{os.getuid()}"
    monkeypatch.setenv("CLOZE_CACHE", str(shared))
    assert cache_directory() == shared
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    shared.chmod(0o777)
    assert cache_directory() == mine
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    mine.rmdir()
    (tmp_path / "elsewhere").mkdir()
    mine.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError) as caught:
        cache_directory()
    assert "CLOZE_CACHE" in caught.value.next_step


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


def test_it_is_the_owners_alone_whatever_the_mask(place: Path):
    before = os.umask(0)
    try:
        with private.private_directory("x-") as directory:
            for path in (directory, directory.parent):
                assert stat.S_IMODE(path.stat().st_mode) == 0o700
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
    squat(place / f"cloze-{os.getuid()}")
    with pytest.raises(StorageError, match=problem) as caught:
        private.private_root()
    assert "rm -r" in caught.value.next_step


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
    root = private.private_root()
    with private.private_directory("x-") as one:
        assert len(list(root.glob("x-*"))) == 2
        with private.private_directory("x-") as other:
            assert set(root.glob("x-*")) == {one, other}


def test_a_cluster_for_one_command_is_closed_to_others_and_leaves_nothing():
    done = subprocess.run([sys.executable, "-c", LOCAL], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "{'127.0.0.1'} ['0o40700']",
        "[]",
        "SIGTERM is answered",
    ], done.stderr[-3000:]
    assert addresses_of([]) == set()
