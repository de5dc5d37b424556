"""Copies a run's log to a tracking service, from a process of its own beside rank 0.

A process and not a thread, because building requests takes the interpreter's lock from the training loop, and because
a request that hangs must not keep a worker from ending. It cannot affect the run: it reads `log.jsonl` from the offset
that it remembers, and ends when rank 0 does, however that ends. Each service has a process: one works while the
other's service is down.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from cluster.artefacts.reading import read_bytes
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import log_size

Ending = Literal["closed", "killed"]
"""The end of rank 0: it closed the log, or died."""
POLL_S = 1.0
"""Seconds between two looks for lines to send."""
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_LAST_TRIES = 2
"""Tries to send the rest of the log when the run has ended and the service does not answer."""
_ORPHAN_S = 30
"""Seconds that the process has to send the rest of the log after rank 0 was killed."""
_GOODBYE = b"!"
"""The last byte from rank 0. A pipe that closes without it means that rank 0 died."""


class Sender:
    """The process that sends a run's log to one service, as rank 0 sees it. Nothing here waits but `close`."""

    def __init__(
        self,
        run: RunDirectory,
        service: str,
        module: str,
        *,
        sent: Path,
        errors: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            service: its name or address, for messages.
            module: the program, which calls `serve`; it gets the run's directory.
            sent: file with the bytes of the log that the service has.
            errors: file for the output of the process.
            environment: variables besides those of this process.
        """
        self._run, self._service, self._sent, self._errors = run, service, sent, errors
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        try:
            with errors.open("wb") as stream:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(run.path.resolve())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stream,
                    # It imports from the same places as this process, and sees no GPU.
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                        "CUDA_VISIBLE_DEVICES": "",
                        "OMP_NUM_THREADS": "1",
                        **(environment or {}),
                    },
                    # Signals for the training's process group (Ctrl-C, a scheduler's SIGTERM) are not for it: it ends
                    # when rank 0 does.
                    start_new_session=True,
                )
        except OSError as error:
            # No process, no memory, no room: training does without, and `close` reports it.
            self._problem = str(error)

    @property
    def pid(self) -> int | None:
        """The process that sends; None when it could not be started."""
        return None if self._process is None else self._process.pid

    def close(self, timeout_s: float = 30.0) -> str:
        """Send the rest of the log, for at most `timeout_s`. Returns why entries stay unsent, or an empty string."""
        output = b""
        if (process := self._process) is not None:
            try:
                output = process.communicate(_GOODBYE, timeout=timeout_s)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                output = b"it is slow"
        if read_offset(self._sent) >= log_size(self._run) and not output:
            return ""
        reason = output.decode(errors="replace").strip() or self._problem or f"see {self._errors}"
        return f"{self._service} did not take everything ({reason})"


def read_offset(path: Path) -> int:
    """Bytes of the log that were sent; 0 without a file that says so: what is sent again changes nothing."""
    try:
        return max(0, int(read_bytes(path)))
    except (FileNotFoundError, ValueError):
        return 0


def serve(send: Callable[[Ending | None], None], explain: Callable[[Exception], str]) -> None:
    """Send until rank 0 ends, and then the rest; print nothing but why something stays unsent.

    Args:
        send: sends what is new, in order, and remembers how far that is. It gets how rank 0 ended, None while it runs,
            and raises what the service's client raises.
        explain: the message of an error that `send` raised, without credentials.
    """
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.redirect_stdout(sys.stderr):
        reason = _keep_sending(send, explain)
    with contextlib.suppress(OSError):
        sys.stdout.write(reason[:1000])
        sys.stdout.flush()


def _keep_sending(send: Callable[[Ending | None], None], explain: Callable[[Exception], str]) -> str:
    """Send what comes, again and again until it works. Returns why something stays unsent, or an empty string."""
    failures, last_tries = 0, _LAST_TRIES
    ending: Ending | None = None
    while True:
        if ending is None:
            patience_s = RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else POLL_S
            if select.select([0], [], [], patience_s)[0]:
                # This process outlives rank 0 by so much at most.
                signal.alarm(_ORPHAN_S)
                ending = "closed" if os.read(0, len(_GOODBYE)) == _GOODBYE else "killed"
        else:
            time.sleep(POLL_S)
        reason = ""
        try:
            send(ending)
            failures = 0
        except Exception as error:
            # Whatever it is, the entries stay in the log, and it is tried again.
            failures, reason = failures + 1, explain(error)
        if ending is not None:
            last_tries -= 1
            # No process waits for this one when rank 0 is dead: it tries until its time is over.
            if not failures or (ending == "closed" and not last_tries):
                return reason
