"""A directory has one writer at a time, on one machine or on several that do not see each other's locks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from cluster.artefacts import owner
from cluster.artefacts.errors import StorageError
from cluster.artefacts.owner import LEASE_NAME, exclusive, repeated

HOLDING = """
import errno, fcntl, sys
from pathlib import Path
from unittest.mock import Mock
from cluster.artefacts import owner
fcntl.flock = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
owner.this_machine = lambda: "another machine"
owner.RENEWAL_S = 0.05
with owner.exclusive(Path(sys.argv[1]), "its training"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows no locks, and some patience."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    monkeypatch.setattr(owner, "EXPIRY_S", 1.5)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of another machine that holds the directory."""
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("locks", [True, False])
def test_a_directory_is_held_by_one_at_a_time_and_released_at_the_end(locks, tmp_path, monkeypatch):
    if locks:
        monkeypatch.undo()
    told = rf"process {os.getpid()} .* 20\d\d-"
    with exclusive(tmp_path, "a preparation"), pytest.raises(StorageError, match=told):
        exclusive(tmp_path, "another").__enter__()
    with exclusive(tmp_path, "another"):
        pass
    assert not (tmp_path / LEASE_NAME).exists()


def test_a_living_holder_on_another_machine_is_named(tmp_path: Path, holder: subprocess.Popen[str]):
    with pytest.raises(StorageError, match=f"process {holder.pid}"):
        exclusive(tmp_path, "another").__enter__()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "cut off"])
def test_a_lease_that_its_holder_does_not_renew_expires_and_stays_the_successors(end, tmp_path, holder):
    holder.send_signal(end)
    with exclusive(tmp_path, "another"):
        # The first holder comes back, finds another lease, and leaves it alone at its end.
        holder.send_signal(signal.SIGCONT)
        holder.communicate()
        assert f'"pid":{os.getpid()}' in (tmp_path / LEASE_NAME).read_text()
    assert not (tmp_path / LEASE_NAME).exists()


def test_a_dead_holder_of_this_machine_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    killed = HOLDING.replace('owner.this_machine = lambda: "another machine"', "").replace(
        "sys.stdin.read()", "__import__('os').abort()"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], stdout=subprocess.DEVNULL)
    assert (tmp_path / LEASE_NAME).exists()
    monkeypatch.setattr(owner, "EXPIRY_S", float("nan"))
    with exclusive(tmp_path, "another"):
        pass


def test_a_process_is_found_again_after_its_machines_clock_was_set(monkeypatch: pytest.MonkeyPatch):
    noted = owner.born_s(psutil.Process())
    boot_time, created = psutil.boot_time(), psutil.Process.create_time
    # The kernel derives the time of the boot from the clock, and psutil the time of a process from that.
    monkeypatch.setattr(psutil, "boot_time", lambda: boot_time + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: created(process) + 3600)
    assert (found := owner.find_process(os.getpid(), noted)) is not None
    assert found.pid == os.getpid()
    assert owner.find_process(os.getpid(), noted + 5) is None


def test_an_error_ends_no_watch_and_the_block_ends_after_a_last_look(capsys):
    looks, third = [], threading.Event()

    def look() -> None:
        looks.append(None)
        if len(looks) == 3:
            third.set()
        raise StorageError("full") if len(looks) < 3 else OSError("stale")

    with repeated(look, 0.01, name="a watch", once_more=True):
        assert third.wait(60)
        before = len(looks)
    assert len(looks) > before
    assert capsys.readouterr().err.splitlines() == ["a watch: StorageError: full", "a watch: OSError: stale"]
