"""Weights & Biases: the one file that knows its client, which is imported only where a run asks for it.

`python -m pipeline.run.log.wandb_sink RUN` sends a run's log. Entries count as sent when the client has them: it writes
them to `wandb/` in the run's directory first, from where `wandb sync` sends the rest after a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cluster.artefacts.credentials import message_without_credentials
from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.manifest import write_durably
from pipeline.config.loading import to_plain
from pipeline.run.directory import RunDirectory
from pipeline.run.history import without_secrets
from pipeline.run.log.lines import LogKind, entries_from, numbers_of
from pipeline.run.log.sender import Ending, Sender, read_offset, serve
from pipeline.run.shared_settings import WandbConfig
from pipeline.run.state import made_last_step

VARIABLES = ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE")
"""Variables with the client's key, server and mode; workers on other machines also need them."""
_OF_THE_REGISTRY = (LogKind.CHECKPOINT, LogKind.FORGET)
INIT_TIMEOUT_S = 20.0
_FINISH_TIMEOUT_S = 20.0


def require_client(chosen: WandbConfig | None) -> None:
    """Check, before anything starts, that the client can be imported and has a key. At a terminal, it asks for one.

    Raises:
        MissingInputError: it is asked for, and not installed, or has no key and is not offline.
    """
    if chosen is None:
        return
    found = find_spec("wandb")
    # A directory `wandb`, as the client makes it where it runs, is found as a package without an origin.
    if found is None or found.origin is None:
        raise MissingInputError(
            "The setting `wandb` asks for a copy in Weights & Biases, whose client is not installed.",
            next_step=f"{sys.executable} -m pip install wandb (on every machine that trains), or: wandb=null",
        )
    if chosen.offline or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return
    # By its name: types of a package that may not be there cannot be checked.
    wandb: Any = import_module("wandb")
    try:
        # Without a request: a server that is down stops nothing.
        wandb.login(verify=False)
    except wandb.Error as error:
        raise MissingInputError(
            f"Weights & Biases has no key here: {client_message(error)}",
            next_step="set WANDB_API_KEY, or: wandb login; or keep the copy on disk: wandb.offline=true",
        ) from None


def wandb_environment() -> dict[str, str]:
    """The client's variables in the environment of this process, for workers on other machines."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _begin(
    chosen: WandbConfig, *, run_id: str, name: str, group: str, config: Mapping[str, Any], directory: Path
) -> Any:
    """The client's run. Metrics go to the client's own process, which waits for no server either.

    Args:
        run_id: the run's id there; one that is there already is continued.
        config: settings; credentials are taken out.
        directory: holds `wandb/`, where the client writes everything before it sends it.
    """
    wandb: Any = import_module("wandb")
    directory.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=chosen.project,
        entity=chosen.entity,
        id=run_id,
        name=name,
        group=group,
        resume="allow",
        # None leaves it to WANDB_MODE.
        mode="offline" if chosen.offline else None,
        dir=str(directory),
        config=dict(without_secrets(config)),
        reinit="create_new",
        # The same data as MLflow has: no source, no output, no list of packages, no measurements of its own.
        settings=wandb.Settings(
            init_timeout=INIT_TIMEOUT_S,
            finish_timeout=_FINISH_TIMEOUT_S,
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        ),
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    return run


def send_to_wandb(run: RunDirectory) -> Sender:
    """Start the process that sends a run's log to Weights & Biases."""
    module = "pipeline.run.log.wandb_sink"
    return Sender(run, "Weights & Biases", module, sent=run.wandb_sent, errors=run.wandb_errors)


class WandbSink:
    """The run there, as its sending process sees it."""

    def __init__(self, run: RunDirectory) -> None:
        self._run, self._done = run, read_offset(run.wandb_sent)
        self._copy: Any = None

    def send(self, ending: Ending | None) -> None:
        """Send what is new, and end the run there when rank 0 ended."""
        if self._copy is None:
            config, info = self._run.config(), self._run.info
            assert config.wandb is not None, "the process is started only where it is asked for"
            self._copy = _begin(
                config.wandb,
                run_id=info.run_id or info.name,
                name=info.name,
                group=config.experiment,
                config=to_plain(config),
                directory=self._run.path,
            )
        before = self._done
        for entry, after in entries_from(self._run, self._done):
            if entry["kind"] not in _OF_THE_REGISTRY and (numbers := numbers_of(entry)):
                # The place in the log rises in all attempts together: an entry that comes again is left out there.
                self._copy.log({**numbers, "step": entry["step"]}, step=after)
            self._done = after
        if self._done > before:
            write_durably(self._run.wandb_sent, str(self._done).encode())
        if ending is not None:
            self._copy.finish(exit_code=int(not made_last_step(self._run)))


class WandbCopy:
    """A run in Weights & Biases that reports a failure on stderr, once, and does no more after it."""

    def __init__(self, chosen: WandbConfig, **run: Any) -> None:
        """
        Args:
            run: `run_id`, `name`, `group`, `config` and `directory`, as `_begin` takes them.
        """
        self._run: Any = None
        with self._giving_up():
            self._run = _begin(chosen, **run)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log values of a step."""
        with self._giving_up():
            if self._run is not None:
                self._run.log({**metrics, "step": step})

    def finish(self, *, failed: bool) -> None:
        """End the run, after some seconds for sending the rest."""
        with self._giving_up():
            if self._run is not None:
                self._run.finish(exit_code=int(failed))

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._run = None
            print(f"Weights & Biases gets no copy of this training: {client_message(error)}", file=sys.stderr)


def client_message(error: Exception) -> str:
    """The message of an error of the client, without credentials."""
    return f"{type(error).__name__}: {message_without_credentials(str(error))}"


if __name__ == "__main__":
    serve(WandbSink(RunDirectory(Path(sys.argv[1]))).send, client_message)
