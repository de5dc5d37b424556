"""The directory of a run: what it is, where its parts lie, how it is found again.

runs/NAME-1a2b3c4d/
    run.json        MLflow run id, tracking store, registered model; with a checksum
    config.yaml     the resolved configuration; its last line is a checksum
    log.jsonl       every step's metrics and every event, append-only; log.seals has the hashes of its stretches
    verified.json   which files of its data were hashed, and need not be as long as nobody touches them
    index-cache/    which documents make the samples of this epoch and the next; made anew when it is missing
    checkpoints/    step-00000100/ ... each committed like any artefact
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import xxhash
from pydantic import AfterValidator, BaseModel, ConfigDict

from cluster.artefacts.confined import inside
from cluster.artefacts.credentials import message_without_credentials, without_credentials
from cluster.artefacts.errors import CorruptArtefactError, ReferenceNotFoundError
from cluster.artefacts.manifest import seal, unseal, write_durably
from cluster.artefacts.storage import contents_of, exclusive, storage_errors
from pipeline.config.loading import load_config, to_yaml
from pipeline.config.problems import nearest
from pipeline.runs.config import PretrainConfig

RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
EVENTS_FILE = "events.jsonl"
_SEAL = "# xxh3_128 of the lines above: "


class RunInfo(BaseModel):
    """The contents of `run.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the run, its directory and its registered model."""
    run_id: str
    """MLflow run id; the same for all resumptions."""
    tracking_uri: Annotated[str, AfterValidator(without_credentials)]
    """MLflow's tracking store, without credentials; empty for a run that is in none."""
    submission_id: str | None = None
    """The Ray job that started it, if one did."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run on disk."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.path / "checkpoints"

    @property
    def typed(self) -> str:
        """The run as an operator types it: its name, or its directory where that is not the usual one."""
        usual = self.path.resolve().parent == Path("runs").resolve()
        return shlex.quote(self.path.name if usual else str(self.path.resolve()))

    @property
    def verified(self) -> Path:
        """File that says which files of the run's data were verified, and what they looked like."""
        return self.path / "verified.json"

    @property
    def index_cache(self) -> Path:
        """Directory of the cached indices of epochs."""
        return self.path / "index-cache"

    @property
    def info(self) -> RunInfo:
        """Who the run is in MLflow.

        Raises:
            CorruptArtefactError: the file is damaged.
        """
        with contents_of(self.path / RUN_FILE):
            return RunInfo.model_validate(unseal(orjson.loads((self.path / RUN_FILE).read_bytes())))

    def config(self, overrides: tuple[str, ...] = ()) -> PretrainConfig:
        """The resolved configuration, with overrides for a resumption; `config_in` of the present one."""
        return self.config_in(CONFIG_FILE, overrides)

    def config_in(self, name: str, overrides: Sequence[str] = ()) -> PretrainConfig:
        """The configuration in a file of the run.

        Raises:
            CorruptArtefactError: it is not what was written.
            ConfigError: overrides do not fit.
        """
        path = inside(self.path, name)
        _require_sealed(path, self.typed)
        return load_config(PretrainConfig, path, overrides)

    def create(self, info: RunInfo, config: PretrainConfig) -> None:
        """Write a new run's files; `run.json` last, because a run exists when that does.

        Raises:
            StorageError: the file system refuses.
        """
        contents = orjson.dumps(seal(info.model_dump(mode="json")), option=orjson.OPT_INDENT_2)
        with storage_errors(self.path):
            self.checkpoints.mkdir(parents=True)
            write_durably(self.path / CONFIG_FILE, _sealed(to_yaml(config)))
            write_durably(self.path / RUN_FILE, contents)

    def reconfigure(self, config: PretrainConfig) -> None:
        """Make `config` the configuration of the resumptions to come; the one before is kept beside it.

        Raises:
            StorageError: the file system refuses.
        """
        current = self.path / CONFIG_FILE
        if current.read_bytes() == _sealed(to_yaml(config)):
            return
        number = len(list(self.path.glob(f"{CONFIG_FILE}.*"))) + 1
        with self.refusals():
            write_durably(self.path / f"{CONFIG_FILE}.{number}", current.read_bytes())
            write_durably(current, _sealed(to_yaml(config)))
        self.record_event("reconfigured", before=f"{CONFIG_FILE}.{number}")

    def record_event(self, event: str, **details: Any) -> None:
        """Append to the run's history of starts, resumptions, repairs and ends; for operators.

        Raises:
            StorageError: the file system refuses; the history is as it was before.
        """
        from cluster.artefacts.manifest import created_by

        told = orjson.dumps({"event": event, "time": created_by().time, **details}).decode()
        line = message_without_credentials(told).encode() + b"\n"
        with self.refusals():
            descriptor = os.open(self.path / EVENTS_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                left = (b"\n" if torn else b"") + line
                try:
                    while left:
                        left = left[os.write(descriptor, left) :]
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)

    def held(self, what: str) -> AbstractContextManager[None]:
        """Nobody else trains or changes the run for the time of the block; raises StorageError where somebody does."""
        return exclusive(
            self.path,
            what,
            in_use="wait for it to finish, or end it (SIGTERM saves first); `cloze runs` says how far it is",
        )

    def refusals(self) -> AbstractContextManager[None]:
        """For the time of the block, a refusal of the file system is a StorageError that says how the run goes on."""
        return storage_errors(self.path, again=f"`cloze resume {self.typed}`")

    def events(self) -> list[dict[str, Any]]:
        """The run's history, oldest first; a line that a full disk or a kill tore is left out."""
        path = self.path / EVENTS_FILE
        found = []
        for line in path.read_bytes().splitlines() if path.exists() else []:
            with suppress(orjson.JSONDecodeError):
                event = orjson.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    found.append(event)
        return found


def _sealed(text: str) -> bytes:
    """A YAML file's contents with a last line that tells their hash."""
    return f"{text}{_SEAL}{xxhash.xxh3_128_hexdigest(text.encode())}\n".encode()


def _require_sealed(path: Path, typed: str) -> None:
    """Refuse a file whose last line tells another hash. One without that line, as earlier versions wrote, passes."""
    if not path.is_file():
        return  # who reads it says so
    text, found, digest = path.read_bytes().rpartition(_SEAL.encode())
    if found and xxhash.xxh3_128_hexdigest(text).encode() != digest.strip():
        raise CorruptArtefactError(
            f"{path} is not what was written: it was edited by hand, or is damaged.",
            kept="everything else of the run; the settings that it began with are in MLflow, too (config.json)",
            next_step=f"undo the change, and give new settings as arguments: cloze resume {typed} a.b=c; or, if the"
            " file is right as it is, delete its last line, which is the hash",
        )


def list_runs(runs_dir: Path) -> list[RunDirectory]:
    """All runs in `runs_dir`, by name."""
    return [RunDirectory(path.parent) for path in sorted(runs_dir.glob(f"*/{RUN_FILE}"))]


def find_run(reference: str, runs_dir: Path) -> RunDirectory:
    """The run with a name, a directory or an MLflow run id.

    Raises:
        ReferenceNotFoundError: there is none; names the nearest.
    """
    for candidate in (Path(reference), runs_dir / reference):
        if (candidate / RUN_FILE).is_file():
            return RunDirectory(candidate)
    runs = list_runs(runs_dir)
    for run in runs:
        # What another run's damage is will be told to those who ask for it.
        with suppress(CorruptArtefactError):
            if run.info.run_id == reference:
                return run
    near = nearest(reference, [run.path.name for run in runs])
    hint = f" Did you mean {near}?" if near else ""
    raise ReferenceNotFoundError(
        f"There is no run {reference} in {runs_dir}.{hint}",
        next_step=f"list the runs there are: cloze runs --runs-dir {runs_dir}",
    )
