"""Copies a run's log to Weights & Biases, from a process of its own: `python -m pipeline.run.log.wandb_sender RUN`.

As the process that sends to MLflow (`sender.py`), it reads `log.jsonl` and cannot affect the run; each of the two goes
on when the other's service is down. Entries count as sent when the client has them: it writes them to `wandb/` in the
run's directory first, from where `wandb sync` sends the rest after a failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cluster.artefacts.manifest import write_durably
from pipeline.config.loading import to_plain
from pipeline.run.directory import RunDirectory
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import entries_from, log_size
from pipeline.run.log.sender import (
    POLL_S,
    RETRY_S,
    environment_beside,
    last_word,
    numbers_of,
    read_offset,
    say_goodbye,
    speak_last,
    start_beside,
)
from pipeline.run.state import made_last_step
from pipeline.run.wandb_client import WandbRun, told_by_client

_OF_THE_REGISTRY = (LogKind.CHECKPOINT, LogKind.FORGET)


class WandbSender:
    """The copying process of a run, as rank 0 sees it. Nothing here waits but `close`."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        command = [sys.executable, "-m", "pipeline.run.log.wandb_sender", str(run.path.resolve())]
        try:
            self._process = start_beside(command, run.wandb_errors, environment_beside())
        except OSError as error:
            self._problem = str(error)

    def close(self, timeout_s: float = 30.0) -> str:
        """Hand over the rest of the log, for at most `timeout_s`. Returns why entries are left, or an empty string."""
        output = b"" if self._process is None else say_goodbye(self._process, timeout_s)
        if read_offset(self._run.wandb_sent) >= log_size(self._run) and not output:
            return ""
        reason = output.decode(errors="replace").strip() or self._problem or f"see {self._run.wandb_errors}"
        return f"Weights & Biases did not take everything ({reason})"


class _Copying:
    """The run there, and how much of the log it has."""

    def __init__(self, run: RunDirectory) -> None:
        config, info = run.config(), run.info
        assert config.wandb is not None, "the process is started only where it is asked for"
        self._run = run
        self._done = read_offset(run.wandb_sent)
        self._copy = WandbRun(
            config.wandb,
            run_id=info.run_id or info.name,
            name=info.name,
            group=config.experiment,
            config=to_plain(config),
            directory=run.path,
        )

    def send_new(self) -> None:
        before = self._done
        for entry, behind in entries_from(self._run, self._done):
            if entry["kind"] not in _OF_THE_REGISTRY and (numbers := numbers_of(entry)):
                # The place in the log rises in all attempts together: an entry that comes again is left out there.
                self._copy.log(numbers, entry["step"], place=behind)
            self._done = behind
        if self._done > before:
            write_durably(self._run.wandb_sent, str(self._done).encode())

    def finish(self) -> None:
        self._copy.finish(failed=not made_last_step(self._run))


def main() -> None:
    """Copy until standard input ends, and then the rest."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    run = RunDirectory(parser.parse_args().directory)
    speak_last(lambda: keep_copying(run))


def keep_copying(run: RunDirectory) -> str:
    """Copy what comes, again and again until it works; end when rank 0 does. Returns why something is left, or an empty
    string."""
    copying: _Copying | None = None
    failures = 0
    while True:
        word = last_word(RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else POLL_S)
        reason = ""
        try:
            copying = copying or _Copying(run)
            copying.send_new()
            failures = 0
            if word is not None:
                copying.finish()
        except Exception as error:
            # Whatever it is, the entries stay in the log, and it is tried again.
            failures, reason = failures + 1, told_by_client(error)
        if word is not None:
            return reason


if __name__ == "__main__":
    main()
