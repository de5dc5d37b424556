"""Epochs that were laid out, and the next ones, which threads lay out before anybody waits for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

RowsT = TypeVar("RowsT")


class Epochs(Generic[RowsT]):
    """What a function makes of (part, epoch): made once, whoever asks; the last ones used are kept."""

    def __init__(self, lay_out: Callable[[int, int], RowsT], num_kept: int) -> None:
        """
        Args:
            lay_out: a pure function of part and epoch; called in any thread.
            num_kept: how many are kept.
        """
        self._lay_out = lay_out
        self._num_kept = num_kept
        self._kept: OrderedDict[tuple[int, int], Future[RowsT]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, part: int, epoch: int) -> RowsT:
        """An epoch of a part; waits while it is being laid out, and raises what that raises."""
        laid_out, is_new = self._claim(part, epoch)
        if is_new:
            self._fill(laid_out, part, epoch)
        return laid_out.result()

    def begin(self, part: int, epoch: int) -> None:
        """Lay an epoch out in a thread of its own, unless that was begun before. After an error,
        `get` tries again."""
        laid_out, is_new = self._claim(part, epoch)
        if is_new:
            name = f"epoch-{epoch}-of-{part}"
            threading.Thread(target=self._fill, args=(laid_out, part, epoch), name=name, daemon=True).start()

    def _claim(self, part: int, epoch: int) -> tuple[Future[RowsT], bool]:
        """The epoch, perhaps still to be laid out, and whether the caller has to see to that."""
        with self._lock:
            is_new = (part, epoch) not in self._kept
            if is_new:
                self._kept[part, epoch] = Future()
            self._kept.move_to_end((part, epoch))
            laid_out = self._kept[part, epoch]
            while len(self._kept) > self._num_kept:
                self._kept.popitem(last=False)
            return laid_out, is_new

    def _fill(self, laid_out: Future[RowsT], part: int, epoch: int) -> None:
        try:
            laid_out.set_result(self._lay_out(part, epoch))
        except BaseException as error:
            with self._lock:
                if self._kept.get((part, epoch)) is laid_out:
                    del self._kept[part, epoch]
            laid_out.set_exception(error)
