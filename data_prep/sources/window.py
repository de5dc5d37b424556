"""A byte stream of any length, looked at through a window that moves forward."""

from __future__ import annotations

import re
from collections.abc import Callable

from data_prep.sources.decompression import READ_BYTES


class Window:
    """The part of a stream that is being looked at. It moves forward only, and grows as asked."""

    def __init__(self, more: Callable[[], bytes], base: int = 0) -> None:
        self._more = more
        self._buffer = bytearray()
        self.base = base
        """Offset of the first byte that is not forgotten."""

    def _fill(self, end: int) -> bool:
        while self.base + len(self._buffer) < end:
            chunk = self._more()
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def get(self, start: int, size: int) -> bytes:
        """Bytes from `start` on; fewer than `size` at the end of the stream only."""
        self._fill(start + size)
        with memoryview(self._buffer) as buffer:
            return bytes(buffer[start - self.base : start - self.base + size])

    def forget(self, before: int) -> None:
        """Let go of the bytes before an offset."""
        self._fill(before)
        del self._buffer[: before - self.base]
        self.base = before

    def skip(self, start: int, unwanted: bytes) -> int:
        """The first offset from `start` on at which another byte than the unwanted ones stands, or the end."""
        while data := self.get(start, 1 << 12):
            rest = data.lstrip(unwanted)
            start += len(data) - len(rest)
            if rest:
                break
        return start

    def search(self, pattern: re.Pattern[bytes], start: int, max_length: int) -> int | None:
        """Where a pattern, which sees at most `max_length` bytes, matches first from `start` on; None at the end.

        Bytes that were searched in vain may be forgotten.
        """
        while True:
            loaded = self._fill(start + READ_BYTES)
            found = pattern.search(self._buffer, start - self.base)
            if found:
                return self.base + found.start()
            if not loaded:
                return None
            start = max(start, self.base + len(self._buffer) - max_length)
            self.forget(start)
