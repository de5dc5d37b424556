"""SIGTERM and SIGHUP end a program with exit code 75 and Ctrl-C with 130, from its first instruction to its last.

The first signal unwinds the program: `Interrupted` is raised in its main thread, so that `finally` blocks release what
they hold. After a second signal, or if the program does not unwind in time (a library swallowed the exception, or waits
in C), a thread ends it, which Python's wake-up file descriptor for signals wakes. Either way all processes that the
program started end.

Only small modules are imported here: until `answer_signals` is called, SIGTERM kills without a message; in a container,
where the program is process 1, it does nothing at all.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, ModuleType
from typing import Any, NoReturn

from cluster import logs

STOPS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a program to save and end: from schedulers, and from a closed terminal."""
EXIT_CODES = {**dict.fromkeys(STOPS, 75), signal.SIGINT: 130}
"""EX_TEMPFAIL of sysexits.h, and the code of shells for Ctrl-C."""
RUNBOOK = "stop-and-preempt.md"
UNWINDING_S = 20.0
"""Schedulers kill 30 s after SIGTERM, by default."""
SAME_S = 1.0
"""Signals within so many seconds are one request: `timeout` signals a process, and then the process's group."""
_DEATH_S = 2.0
"""Seconds that killed children have to disappear."""


class Interrupted(KeyboardInterrupt):
    """The first signal. A KeyboardInterrupt, because libraries let it through."""


class _State:
    received = 0
    """The signal that ends the program; 0 until one arrives."""
    delegated = 0
    """Number of entered blocks with another handler for STOPS."""
    asked = 0
    """The first of STOPS that came, also where another handler answers it; 0 until then."""
    finished: int | None = None
    """Exit code of a program that has finished."""
    continuations: tuple[tuple[str, str], ...] = (("all finished work", "the same command"),)
    """Stack of (work that is kept, command that continues), innermost last."""
    continuation: tuple[str, str] = continuations[-1]
    """Top of the stack when the signal came."""
    pid = 0
    psutil: ModuleType | None = None
    unwinding_s: float | None = None
    """When the main thread was interrupted, on the monotonic clock."""
    said = False
    """Whether the message was written."""


_state = _State()


def run(command: str, program: Callable[[], int | None]) -> NoReturn:
    """Run a program from its first instruction to its last, and exit with the code that it returns."""
    code: object = 1
    try:
        _open_closed_streams()
        answer_signals(command)
        code = program()
    except BaseException as ended:
        # Whatever a library made of the interruption.
        if _state.received:
            end()
        code = ended.code if isinstance(ended, SystemExit) else 1
        raise
    finally:
        # A signal from now on only ends it sooner, with this exit code.
        _state.finished = code if isinstance(code, int) else int(code is not None)
    sys.exit(_state.finished)


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed (`2>&-`) on nowhere. The next files that are opened would get their
    numbers, and messages would be written into them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, "w" if number else "r", encoding="utf-8"))


def answer_signals(command: str) -> None:
    """Begin to answer SIGTERM, SIGHUP and SIGINT; to be called first, in the main thread.

    Args:
        command: the command as typed, for the message.
    """
    _state.pid = os.getpid()
    _state.continuations = ((_state.continuation[0], command),)
    for number in (*stops(), signal.SIGINT):
        signal.signal(number, _on_signal)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A forked child must neither wake this process nor take its exit code.
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True).start()
    # Imported now, because later the import may wait for a thread that the signal interrupted.
    import psutil

    _state.psutil = psutil
    # A crash in C shows where its threads were. Without standard error, or in a notebook, it shows nothing.
    with suppress(RuntimeError, OSError):
        faulthandler.enable()


def answers_signals() -> bool:
    """Whether this process answers signals as described above."""
    return _state.pid == os.getpid()


def renew() -> None:
    """Install the handlers again after a library may have replaced them in C, unseen by Python."""
    if threading.current_thread() is threading.main_thread():
        for number in EXIT_CODES:
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


def stops() -> list[signal.Signals]:
    """STOPS that this program answers: under `nohup` it ignores a closed terminal."""
    return [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]


def received() -> int:
    """The signal that ends this program; 0 without one."""
    return _state.received


def asked() -> int:
    """The first of STOPS that this program got, also where another handler answers it; 0 without one."""
    return _state.asked


def is_again(number: int, first_s: float) -> bool:
    """Whether a signal after a first one asks to end at once. Copies of the first do not, nor does a terminal that is
    closed, which may send several.

    Args:
        first_s: when the first one came, on the monotonic clock.
    """
    return number == signal.SIGINT or (number == signal.SIGTERM and time.monotonic() - first_s >= SAME_S)


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Block STOPS in all processes that this thread starts in the block, and in those that they start: they live on
    when a process group or a control group is stopped, so that this program can save. SIGKILL ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_closed_terminal() -> None:
    """Write to nowhere in place of a terminal that is gone: every message would fail."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def continuation() -> tuple[str, str]:
    """The work that is kept if the program ends now, and the command that continues."""
    return _state.continuations[-1]


def note(number: int) -> None:
    """Record that a signal is to end the program, also one that a library's handler received. Ignored in programs that
    do not answer signals, because they may continue after it."""
    if not _state.received and answers_signals():
        _state.received, _state.continuation = number, _state.continuations[-1]
        # Errors of half-imported modules and interrupted callbacks explain nothing.
        sys.unraisablehook = lambda _: None
        threading.excepthook = lambda _: None


@contextmanager
def continued_by(next_step: str, kept: str) -> Iterator[None]:
    """Set how the work of the block continues after a signal ended it.

    Args:
        next_step: the command to type.
        kept: the work that needs no redoing.
    """
    _state.continuations += ((kept, next_step),)
    try:
        yield
    finally:
        _state.continuations = _state.continuations[:-1]


@contextmanager
def answered_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let another handler answer STOPS inside the block, in the main thread; it ends the program by itself."""
    _state.delegated += 1
    before = {number: signal.signal(number, handler) for number in stops()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
        _state.delegated -= 1


def end() -> NoReturn:
    """Write the message, kill all children and exit with the signal's exit code."""
    if not _state.said:
        _state.said = True
        # Past Python's buffers, whose locks an interrupted thread may hold.
        with suppress(OSError):
            os.write(
                2, (logs.unfinished() + logs.as_written(f"\n{message(_state.received)}", "warning")).encode()
            )
    with suppress(Exception):
        end_children()
    # A normal exit would wait for threads, and crashes some libraries that are interrupted in the middle.
    os._exit(EXIT_CODES[signal.Signals(_state.received)])


def message(number: int) -> str:
    """The message of a program that a signal ends."""
    kept, next_step = _state.continuation
    if number == signal.SIGINT:
        return f"Interrupted; kept: {kept}. To continue: {next_step}"
    return f"Ended by {signal.Signals(number).name}.\nKept: {kept}\nNext: {next_step}\nRunbook: runbooks/{RUNBOOK}"


def end_children() -> None:
    """Kill all descendants, except those with their own session, which are meant to outlive this process."""
    psutil = _state.psutil
    if psutil is None:
        return
    here = psutil.Process()

    def descendants() -> list[Any]:
        return [child for child in here.children(recursive=True) if in_this_session(child.pid)]

    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        # A shell whose child is killed would start its next one, which is not found any more once the shell is killed.
        for child in descendants():
            with suppress(psutil.Error):
                child.suspend()
        if not (children := descendants()):
            return
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=_DEATH_S)


def in_this_session(pid: int) -> bool:
    """Whether a process is in the session of this one, and so not meant to outlive it."""
    with suppress(OSError):
        return os.getsid(pid) == os.getsid(0)
    return False


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _state.finished is not None:
        os._exit(_state.finished)
    if number == signal.SIGHUP:
        leave_closed_terminal()
    if _state.unwinding_s is not None:
        if is_again(number, _state.unwinding_s):
            end()
        return
    _state.unwinding_s = time.monotonic()
    note(number)
    raise Interrupted


def _watch(reading: int) -> None:
    """End a program that does not unwind in time, or receives a second signal while its main thread is blocked."""
    first_s: float | None = None
    while True:
        left = None if first_s is None else max(0.0, first_s + UNWINDING_S - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            end()
        for number in set(os.read(reading, 64)).intersection(EXIT_CODES):
            if number in STOPS:
                _state.asked = _state.asked or number
                if _state.delegated:
                    continue
            if first_s is None:
                first_s = time.monotonic()
            elif _state.finished is None and is_again(number, first_s):
                end()
            note(number)


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    for number in EXIT_CODES:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL)
