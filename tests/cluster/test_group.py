"""A group of workers on Ray: one worker's error ends it, also while the others wait."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import ClozeError, PreemptedError, StorageError, WorkersLostError
from cluster.failures import Failure, failure_of, restarts
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


def run(function: Any, directory: Path, workers: int, max_failures: int, max_errors: int = 0) -> None:
    size = GroupSize((workers,), cpus_per_worker=1, gpus_per_worker=0)
    argument = {"starts": str(directory / "starts")}
    run_group(
        function,
        argument,
        size,
        limits=restarts(lost=max_failures, raised=max_errors),
        stop=StopFile(directory),
        next_step="start it again",
    )


def note_start(argument: Mapping[str, Any]) -> int:
    """Count a start; returns which it is."""
    with Path(argument["starts"]).open("a+") as stream:
        stream.write("x")
        return stream.tell()


def disk_full_on_rank_one(argument: Mapping[str, Any], rank: Rank) -> None:
    import torch.distributed as dist

    note_start(argument)
    if rank.rank == 1:
        raise StorageError("the disk of rank 1 is full", next_step="free some")
    dist.barrier()


def disk_full_everywhere(argument: Mapping[str, Any], rank: Rank) -> None:
    import resource

    note_start(argument)
    # As of now, this process cannot write to any file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    raise StorageError("no room", next_step="make some")


def interrupts_the_driver(argument: Mapping[str, Any], rank: Rank) -> None:
    import time

    os.kill(int(Path(argument["starts"]).with_name("driver").read_text()), signal.SIGINT)
    time.sleep(600)


def stopped_everywhere(argument: Mapping[str, Any], rank: Rank) -> None:
    note_start(argument)
    raise PreemptedError("asked to stop")


def stopped_while_rank_zero_has_more_to_do(argument: Mapping[str, Any], rank: Rank) -> None:
    import time

    if rank.rank == 0:
        time.sleep(5)
        note_start(argument)
    raise PreemptedError(f"asked to stop rank {rank.rank}")


def die_unless_in(driver: int, starts: str) -> None:
    if os.getpid() != driver:
        note_start({"starts": starts})
        os.kill(os.getpid(), 9)


class DiesOnArrival:
    """Kills the worker that unpickles it: while the function is handed over, before it runs."""

    def __init__(self, starts: Path) -> None:
        self.starts = str(starts)

    def __reduce__(self) -> tuple[Any, ...]:
        return die_unless_in, (os.getpid(), self.starts)

    def __call__(self, argument: Mapping[str, Any], rank: Rank) -> None:
        raise AssertionError("never reached")


def note_listeners(argument: Mapping[str, Any], rank: Rank) -> None:
    import psutil
    import torch.distributed as dist

    dist.barrier()
    sockets = psutil.Process().net_connections("inet")
    listening = {each.laddr.ip.removeprefix("::ffff:") for each in sockets if each.status == "LISTEN"}
    Path(argument["starts"]).with_name(f"rank-{rank.rank}").write_text(" ".join(sorted(listening)))
    dist.barrier()


def note_environment(argument: Mapping[str, Any], rank: Rank) -> None:
    Path(argument["starts"]).write_text(json.dumps(dict(os.environ)))


def dies(argument: Mapping[str, Any], rank: Rank) -> None:
    note_start(argument)
    os.kill(os.getpid(), 9)


def test_a_group_on_this_machine_listens_on_loopback_addresses_only(tmp_path: Path):
    run(note_listeners, tmp_path, workers=2, max_failures=0)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["127.0.0.1"] * 2


def test_workers_wait_passively(tmp_path: Path):
    run(note_environment, tmp_path, workers=1, max_failures=0)
    expected = worker_environment(GroupSize((1,), cpus_per_worker=1, gpus_per_worker=0))
    assert expected.items() <= json.loads((tmp_path / "starts").read_text()).items()


@pytest.mark.parametrize(
    ("errors", "failure"),
    [
        ([RuntimeError("connection reset by peer")], Failure.LOST),
        ([ValueError("once more")], Failure.RAISED),
        ([ModuleNotFoundError("No module named 'flash'")], Failure.FINAL),
        ([RuntimeError("connection reset by peer"), NotImplementedError("no such mix")], Failure.FINAL),
    ],
)
def test_what_cannot_pass_is_not_tried_again(errors: list[Exception], failure: Failure) -> None:
    assert failure_of(errors) is failure


def raises_an_exception_of_the_program(argument: Mapping[str, Any], rank: Rank) -> None:
    note_start(argument)
    raise KeyError("a column that no file has")


def test_what_one_rank_says_ends_the_group_while_the_others_wait_for_it(tmp_path: Path):
    with pytest.raises(StorageError, match="rank 1") as caught:
        run(disk_full_on_rank_one, tmp_path, workers=2, max_failures=2)
    assert caught.value.next_step == "free some"
    # Rank 0 may be ended before it begins.
    assert (tmp_path / "starts").read_text() in ("x", "xx")


@pytest.mark.parametrize(
    ("function", "error"), [(stopped_everywhere, PreemptedError), (disk_full_everywhere, StorageError)]
)
def test_what_all_ranks_say_ends_the_group_and_costs_no_restart(
    function: Any, error: type[ClozeError], tmp_path: Path
):
    with pytest.raises(error):
        run(function, tmp_path, workers=1, max_failures=2)
    assert (tmp_path / "starts").read_text() == "x"


def test_what_all_ranks_say_lets_rank_zero_come_to_its_end(tmp_path: Path):
    with pytest.raises(PreemptedError, match="rank 0"):
        run(stopped_while_rank_zero_has_more_to_do, tmp_path, workers=2, max_failures=2)
    assert (tmp_path / "starts").read_text() == "x"


def test_ctrl_c_ends_the_group_as_it_ends_other_work(tmp_path: Path):
    (tmp_path / "driver").write_text(str(os.getpid()))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(interrupts_the_driver, tmp_path, workers=1, max_failures=2)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("make", "max_failures", "max_errors"),
    [
        (lambda starts: dies, 1, 0),
        # While they are handed the function.
        (DiesOnArrival, 1, 0),
        # An exception of the program has a budget of its own.
        (lambda starts: raises_an_exception_of_the_program, 9, 1),
    ],
    ids=["dies", "dies on arrival", "raises"],
)
def test_failures_are_tried_again_as_often_as_their_class_allows(
    make: Any, max_failures: int, max_errors: int, tmp_path: Path
):
    with pytest.raises(WorkersLostError, match="1 restarts"):
        run(make(tmp_path / "starts"), tmp_path, 1, max_failures, max_errors)
    assert (tmp_path / "starts").read_text() == "xx"
