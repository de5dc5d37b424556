"""A look at the world again and again, from a thread that no error ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def repeated(
    look: Callable[[], None], every_s: float, *, name: str, once_more: bool = False
) -> Iterator[None]:
    """Call `look` every so many seconds in a thread for the time of the block.

    An error is printed, unless it is the one before, and the next look comes all the same: a file system or a head that
    refuses for a moment answers later.

    Args:
        name: of the thread, and for messages.
        once_more: whether there is a last look at the end of the block.
    """
    over = threading.Event()

    def follow() -> None:
        printed = ""
        while True:
            ending = over.wait(every_s)
            if ending and not once_more:
                return
            try:
                look()
            except Exception as error:
                if printed != (printed := f"{type(error).__name__}: {error}".partition("\n")[0]):
                    with suppress(OSError, ValueError):
                        print(f"{name}: {printed}", file=sys.stderr)
            if ending:
                return

    thread = threading.Thread(target=follow, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
