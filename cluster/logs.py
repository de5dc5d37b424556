"""Messages on stderr: text for people, or one JSON object a line for log collectors.

    {"time":"2026-11-22T19:01:26.123Z","level":"info","node":"gpu-7","run":"roberta-1a2b3c4d","step":7,"message":"..."}

Text is the default. In JSON everything that is written to `sys.stderr` becomes such lines, also by libraries.
Only small modules are imported here, because signals are answered from the first instruction on.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import platform
import sys
import time
from typing import Any, TextIO

from cluster.artefacts.visible import visible

FORMAT_VARIABLE = "CLOZE_LOG"
"""Environment variable with the format; child processes, workers and jobs inherit it."""
FORMATS = ("text", "json")


_context: dict[str, Any] = {}
"""Members of every line of this process."""


def start(name: str | None = None) -> None:
    """Write messages in a format from here on.

    Args:
        name: one of FORMATS; None takes FORMAT_VARIABLE, and text without it.

    Raises:
        ConfigError: there is no such format.
    """
    chosen = name or os.environ.get(FORMAT_VARIABLE) or "text"
    if chosen not in FORMATS:
        from cluster.artefacts.errors import ConfigError

        raise ConfigError(
            f"{FORMAT_VARIABLE}={chosen}: there is no such format of messages.",
            next_step=f"{FORMAT_VARIABLE}={FORMATS[0]} or {FORMAT_VARIABLE}={FORMATS[1]}",
        )
    if name:
        os.environ[FORMAT_VARIABLE] = name
    if chosen == "json" and not in_json():
        sys.stderr = _JsonStream(sys.stderr)
        atexit.register(lambda to: to.write(unfinished()), sys.stderr._to)
        bind(node=platform.node())
        _take_records()


def in_json() -> bool:
    """Whether messages of this process are JSON."""
    return isinstance(sys.stderr, _JsonStream)


def environment() -> dict[str, str]:
    """The variable with the format, for processes on other machines; empty where it is not set."""
    return {FORMAT_VARIABLE: os.environ[FORMAT_VARIABLE]} if os.environ.get(FORMAT_VARIABLE) else {}


def bind(**members: Any) -> None:
    """Set members of all lines to come, such as `run`, `rank` and `step`."""
    _context.update(members)


def say(message: str, level: str = "info", **members: Any) -> None:
    """Write a message; in text, the message alone."""
    if isinstance(sys.stderr, _JsonStream):
        sys.stderr.say(message, level, members)
    else:
        print(visible(message), file=sys.stderr, flush=True)


def as_written(message: str, level: str) -> str:
    """A message as `say` writes it, for code that cannot use Python's buffers."""
    return line(message, level) if in_json() else f"{message}\n"


def unfinished() -> str:
    """A last line without a line break as it would be written, for the same code; empty without one."""
    return sys.stderr.take_begun() if isinstance(sys.stderr, _JsonStream) else ""


def line(message: str, level: str, members: dict[str, Any] | None = None) -> str:
    """A message as a line of JSON."""
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
    record = {"time": stamp, "level": level, **_context, **(members or {}), "message": message.strip()}
    return json.dumps(record, ensure_ascii=False, default=str) + "\n"


class _JsonStream(io.TextIOBase):
    """A stream whose lines are written to another one as JSON."""

    encoding = "utf-8"  # type: ignore[assignment]
    errors = "backslashreplace"  # type: ignore[assignment]
    """As Python's own stderr."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._begun = ""
        """Text without a line break yet."""

    def write(self, text: str, /) -> int:
        """Write whole lines; the rest waits for its line break."""
        *lines, self._begun = (self._begun + text).split("\n")
        for one in lines:
            # A progress bar returns to the beginning of its line: its last state counts.
            if shown := one.rstrip("\r").rpartition("\r")[2].strip():
                self.say(shown, "info", {})
        return len(text)

    def say(self, message: str, level: str, members: dict[str, Any]) -> None:
        """Write a message as one line, whatever line breaks it has."""
        # In one call, so that lines of processes that share a file do not mix.
        self._to.write(line(message, level, members))
        self._to.flush()

    def take_begun(self) -> str:
        """Take the text that has no line break yet, as a line; empty without one."""
        begun, self._begun = self._begun.rstrip("\r").rpartition("\r")[2], ""
        return line(begun, "info") if begun.strip() else ""

    def flush(self) -> None:
        """Nothing waits but a line that was begun."""
        self._to.flush()

    def fileno(self) -> int:
        """The other stream's file descriptor: processes that are started write to it."""
        return self._to.fileno()

    def writable(self) -> bool:
        """True."""
        return True


def _take_records() -> None:
    """Write records of `logging`, and Python's warnings, with their levels."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                try:
                    text = record.getMessage()
                except Exception:
                    # A library's own mistake, which its caller does not see.
                    text = f"{record.msg} {record.args}"
                if record.exc_info:
                    text += "\n" + logging.Formatter().formatException(record.exc_info)
                say(text, record.levelname.lower(), logger=record.name)
            except Exception:
                self.handleError(record)

    logging.captureWarnings(True)
    root = logging.getLogger()
    root.addHandler(Handler(logging.WARNING))
