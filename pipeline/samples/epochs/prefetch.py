"""Indices of the epochs used last, and of the next ones, which threads make ahead of time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

IndexT = TypeVar("IndexT")


class EpochPrefetch(Generic[IndexT]):
    """Results of a function of (part, epoch): each is made once, however many ask for it; the last used are kept."""

    def __init__(self, make: Callable[[int, int], IndexT], num_kept: int) -> None:
        """
        Args:
            make: a pure function of part and epoch; called in any thread.
            num_kept: how many results are kept.
        """
        self._make = make
        self._num_kept = num_kept
        self._kept: OrderedDict[tuple[int, int], Future[IndexT]] = OrderedDict()
        self._latest: tuple[tuple[int, int], IndexT] | None = None
        """The last result of `get`: batch after batch asks for the same, and a lock costs as much as some rows."""
        self._lock = threading.Lock()

    def get(self, part: int, epoch: int) -> IndexT:
        """An epoch of a part; waits while it is being made, and raises the error of making it."""
        latest = self._latest
        if latest is not None and latest[0] == (part, epoch):
            return latest[1]
        result, is_new = self._claim(part, epoch)
        if is_new:
            self._fill(result, part, epoch)
        index = result.result()
        self._latest = (part, epoch), index
        return index

    def begin(self, part: int, epoch: int) -> None:
        """Make an epoch in a thread of its own, unless that was begun before. After an error, `get` tries again."""
        result, is_new = self._claim(part, epoch)
        if is_new:
            name = f"epoch-{epoch}-of-{part}"
            threading.Thread(target=self._fill, args=(result, part, epoch), name=name, daemon=True).start()

    def _claim(self, part: int, epoch: int) -> tuple[Future[IndexT], bool]:
        """The epoch, perhaps still to be made, and whether the caller has to see to that."""
        with self._lock:
            is_new = (part, epoch) not in self._kept
            if is_new:
                self._kept[part, epoch] = Future()
            self._kept.move_to_end((part, epoch))
            result = self._kept[part, epoch]
            while len(self._kept) > self._num_kept:
                self._kept.popitem(last=False)
            return result, is_new

    def _fill(self, result: Future[IndexT], part: int, epoch: int) -> None:
        try:
            result.set_result(self._make(part, epoch))
        except BaseException as error:
            with self._lock:
                if self._kept.get((part, epoch)) is result:
                    del self._kept[part, epoch]
            result.set_exception(error)
