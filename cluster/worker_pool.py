"""Stateful workers side by side: each a Ray actor that works on one item at a time and keeps what items share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from cluster.artefacts.errors import PreemptedError
from cluster.failures import TASK_RETRIES, result_of

POLL_S = 1.0

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")
ItemCo = TypeVar("ItemCo", contravariant=True)
ResultCo = TypeVar("ResultCo", covariant=True)


class Worker(Protocol[ItemCo, ResultCo]):
    """A worker of a pool. Both methods are called in one process, `progress` from another thread."""

    def work(self, item: ItemCo, /) -> ResultCo:
        """The result of one item. It is begun again after a crash."""
        ...

    def progress(self) -> str:
        """The state of the current item, for people."""
        ...


def run_pool(
    make_worker: Callable[[], Worker[Item, Result]],
    items: Sequence[Item],
    *,
    num_workers: int,
    num_cpus: float,
    num_gpus: float = 0.0,
) -> Iterator[tuple[Item, Result | None, str]]:
    """Work on all items, at most `num_workers` at a time, and yield each result as it comes.

    Every second without a result, an item that is worked on is yielded with None and its progress.

    Args:
        make_worker: picklable; called once in the process of each worker.
        num_cpus, num_gpus: of one worker.

    Raises:
        PreemptedError: workers were asked to stop, and all have ended their items.
        ClozeError: as a worker raised it; the other workers are stopped.
        WorkersLostError: the process of a worker died once more than Ray starts it again; its item is begun anew then.
    """
    import ray
    from ray.exceptions import RayError

    # Ray's own types know no numbers that are not written out.
    remote: Any = ray.remote(  # pyright: ignore[reportCallIssue]
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        max_restarts=TASK_RETRIES,
        max_task_retries=TASK_RETRIES,
        max_concurrency=2,
    )(_Actor)
    # By reference, and not for the constructor: Ray would warn on stderr that an actor cannot be restarted without it.
    shared = [ray.put(make_worker)]
    actors = [remote.remote() for _ in range(min(num_workers, len(items)))]
    waiting = deque(items)
    running = {
        actor.work.remote(shared, waiting.popleft()): (actor, item)
        for actor, item in zip(actors, items, strict=False)
    }
    preempted: PreemptedError | None = None
    try:
        while running:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_S)
            if not ready:
                actor, item = next(iter(running.values()))
                try:
                    shown: str = ray.get(actor.progress.remote(), timeout=POLL_S)
                except RayError:  # still starting, or being started again
                    shown = ""
                yield item, None, shown
                continue
            actor, item = running.pop(ready[0])
            try:
                result = result_of(
                    ready[0],
                    f"The worker of {item}",
                    kept="everything that was finished, and the last saved state of what was not",
                    next_step="run the same command again; if it dies at the same place, give it more memory",
                )
            except PreemptedError as error:
                # The others are about to save what they have, too.
                preempted = error
                waiting.clear()
                continue
            if waiting:
                following = waiting.popleft()
                running[actor.work.remote(shared, following)] = actor, following
            yield item, result, ""
        if preempted is not None:
            raise preempted
    finally:
        for actor in actors:
            ray.kill(actor)


class _Actor(Generic[Item, Result]):
    """A worker in a process of its own."""

    def __init__(self) -> None:
        self._worker: Worker[Item, Result] | None = None

    def work(self, make_worker: Sequence[Any], item: Item) -> Result:
        import ray

        if self._worker is None:
            self._worker = cast(Callable[[], Worker[Item, Result]], ray.get(make_worker[0]))()
        return self._worker.work(item)

    def progress(self) -> str:
        return "" if self._worker is None else self._worker.progress()
