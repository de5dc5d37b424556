"""A group of workers on Ray: one worker's error ends it, also while the others wait."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.artefacts.errors import PreemptedError, StorageError, WorkersLostError
from cluster.collectives import host_group
from cluster.failures import restarts
from cluster.group import GroupSize, Rank, run_group, worker_environment
from cluster.runtime import ray_runtime
from cluster.stopping import StopFile


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    from ray import cloudpickle

    # Workers cannot import the files of tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with ray_runtime("local", num_cpus=2):
        yield


def run(function: Callable[[Path, Rank], Any], directory: Path, workers: int, **limits: int) -> None:
    """Run a function of the directory and the rank on every worker."""
    run_group(
        function,
        directory,
        GroupSize((workers,), cpus_per_worker=1, gpus_per_worker=0),
        limits=restarts(**{"lost": 2} | limits),
        stop=StopFile(directory),
        next_step="start it again",
    )


def note_start(directory: Path) -> None:
    with (directory / "starts").open("a") as stream:
        stream.write("x")


def starts(directory: Path) -> int:
    return len((directory / "starts").read_text())


def barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def test_workers_listen_on_loopback_addresses_only_and_wait_passively(tmp_path: Path):
    def note_surroundings(directory: Path, rank: Rank) -> None:
        barrier()
        sockets = psutil.Process().net_connections("inet")
        listening = {each.laddr.ip.removeprefix("::ffff:") for each in sockets if each.status == "LISTEN"}
        (directory / str(rank.rank)).write_text(json.dumps([sorted(listening), dict(os.environ)]))
        barrier()

    run(note_surroundings, tmp_path, workers=2)
    expected = worker_environment(GroupSize((1,), cpus_per_worker=1, gpus_per_worker=0))
    for rank in ("0", "1"):
        listening, environment = json.loads((tmp_path / rank).read_text())
        assert listening == ["127.0.0.1"]
        assert expected.items() <= environment.items()


def test_what_one_rank_says_ends_the_group_while_the_others_wait_for_it(tmp_path: Path):
    def disk_full_on_rank_one(directory: Path, rank: Rank) -> None:
        note_start(directory)
        if rank.rank == 1:
            raise StorageError("the disk of rank 1 is full", next_step="free some")
        barrier()

    with pytest.raises(StorageError, match="rank 1") as caught:
        run(disk_full_on_rank_one, tmp_path, workers=2)
    assert caught.value.next_step == "free some"
    # Rank 0 may be ended before it begins.
    assert starts(tmp_path) in (1, 2)


def test_what_all_ranks_say_lets_rank_zero_come_to_its_end(tmp_path: Path):
    def stopped_while_rank_zero_has_more_to_do(directory: Path, rank: Rank) -> None:
        if rank.rank == 0:
            time.sleep(5)
            note_start(directory)
        raise PreemptedError(f"asked to stop rank {rank.rank}")

    with pytest.raises(PreemptedError, match="rank 0"):
        run(stopped_while_rank_zero_has_more_to_do, tmp_path, workers=2)
    assert starts(tmp_path) == 1


def test_ctrl_c_ends_the_group_as_it_ends_other_work(tmp_path: Path):
    driver, before = os.getpid(), signal.getsignal(signal.SIGINT)

    def interrupts_the_driver(directory: Path, rank: Rank) -> None:
        os.kill(driver, signal.SIGINT)
        time.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        run(interrupts_the_driver, tmp_path, workers=1)
    assert signal.getsignal(signal.SIGINT) is before


def dies(directory: Path, rank: Rank) -> None:
    note_start(directory)
    os.kill(os.getpid(), 9)


def raises_an_exception_of_the_program(directory: Path, rank: Rank) -> None:
    note_start(directory)
    raise KeyError("a column that no file has")


def die_unless_in(driver: int, directory: Path) -> None:
    if os.getpid() != driver:
        dies(directory, Rank(0, 1, 0, 1))


class DiesOnArrival:
    """Kills the worker that unpickles it: while the function is handed over, before it runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __reduce__(self) -> tuple[Any, ...]:
        return die_unless_in, (os.getpid(), self.directory)

    def __call__(self, directory: Path, rank: Rank) -> None:
        raise AssertionError("never reached")


@pytest.mark.parametrize(
    ("make", "limits"),
    [
        (lambda directory: dies, {"lost": 1}),
        # While they are handed the function.
        (DiesOnArrival, {"lost": 1}),
        # An exception of the program has a budget of its own.
        (lambda directory: raises_an_exception_of_the_program, {"lost": 9, "raised": 1}),
    ],
    ids=["dies", "dies on arrival", "raises"],
)
def test_failures_are_tried_again_as_often_as_their_class_allows(make, limits, tmp_path: Path):
    with pytest.raises(WorkersLostError, match="1 restarts"):
        run(make(tmp_path), tmp_path, 1, **limits)
    assert starts(tmp_path) == 2


def test_messages_in_host_memory_take_the_interface_that_leads_to_rank_zero(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.distributed.new_group", lambda **options: options["backend"])
    monkeypatch.setenv("MASTER_PORT", "29500")
    interfaces = [(name, one) for name, found in psutil.net_if_addrs().items() for one in found]
    for name, address in [(name, one.address) for name, one in interfaces if one.family == socket.AF_INET]:
        monkeypatch.setenv("MASTER_ADDR", address)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
        assert (host_group(), os.environ["GLOO_SOCKET_IFNAME"]) == ("gloo", name)
    # What the user says counts.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    host_group()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
