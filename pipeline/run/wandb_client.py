"""Weights & Biases: the one file that knows its client, which is imported only where a run asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cluster.artefacts.credentials import message_without_credentials
from cluster.artefacts.errors import MissingInputError
from pipeline.run.settings import WandbConfig
from pipeline.run.tracking import without_secrets

VARIABLES = ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE")
"""Where the client looks for its key, its server and its mode: variables that workers on other machines need, too."""
_INIT_TIMEOUT_S = 20.0
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
    if not (chosen.offline or os.environ.get("WANDB_MODE") in ("offline", "disabled")):
        _require_key()


def _require_key() -> None:
    # By its name: types of a package that may not be there cannot be checked.
    wandb: Any = import_module("wandb")
    try:
        # Without a request: a server that is down stops nothing.
        wandb.login(verify=False)
    except wandb.Error as error:
        raise MissingInputError(
            f"Weights & Biases has no key here: {told_by_client(error)}",
            next_step="set WANDB_API_KEY, or: wandb login; or keep the copy on disk: wandb.offline=true",
        ) from None


def wandb_environment() -> dict[str, str]:
    """The client's variables in the environment of this process, for workers on other machines."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


class WandbRun:
    """A run in Weights & Biases. Metrics go to the client's own process, which waits for no server either."""

    def __init__(
        self,
        chosen: WandbConfig,
        *,
        run_id: str,
        name: str,
        group: str,
        config: Mapping[str, Any],
        directory: Path,
    ) -> None:
        """
        Args:
            run_id: the run's id there; one that is there already is continued.
            config: settings; credentials are taken out.
            directory: holds `wandb/`, where the client writes everything before it sends it.

        Raises:
            Exception: as the client raises it; the server does not answer, or takes no key.
        """
        wandb: Any = import_module("wandb")
        directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
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
            # Nothing but what MLflow has, too: no source, no output, no list of packages, no measurements of its own.
            settings=wandb.Settings(
                init_timeout=_INIT_TIMEOUT_S,
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
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int, *, place: int | None = None) -> None:
        """Log values of a step.

        Args:
            place: rises from one call to the next, in continued runs too; what comes again is left out. None counts.
        """
        self._run.log({**metrics, "step": step}, step=place)

    def finish(self, *, failed: bool) -> None:
        """End the run, after some seconds for sending the rest."""
        self._run.finish(exit_code=int(failed))


class SpokenWandbRun:
    """A run in Weights & Biases that tells of failures on stderr, once, and does no more after them."""

    def __init__(self, chosen: WandbConfig, **run: Any) -> None:
        """
        Args:
            run: arguments of `WandbRun`.
        """
        self._run: WandbRun | None = None
        try:
            self._run = WandbRun(chosen, **run)
        except Exception as error:
            self._give_up(error)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log values of a step."""
        try:
            if self._run is not None:
                self._run.log(metrics, step)
        except Exception as error:
            self._give_up(error)

    def finish(self, *, failed: bool) -> None:
        """End the run."""
        try:
            if self._run is not None:
                self._run.finish(failed=failed)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._run = None
        print(f"Weights & Biases gets no copy of this training: {told_by_client(error)}", file=sys.stderr)


def told_by_client(error: Exception) -> str:
    """The message of an error of the client, without credentials."""
    return f"{type(error).__name__}: {message_without_credentials(str(error))}"
