"""The directory of a run: what it is, the names of all its files, how it is found again.

runs/NAME-1a2b3c4d/
    run.json        MLflow run id, tracking store, registered model; with a checksum
    config.yaml     the resolved configuration; its last line is a checksum. config.yaml.1 ... are those before it
    events.jsonl    the run's history: starts, resumptions, repairs and ends (`Event`)
    log.jsonl       every step's metrics and every event at a step (`LogKind`), append-only; the truth
    log.seals       hashes of the log's stretches
    log.sent        bytes of the log that MLflow has, in decimal; `.log.sent.lock` is held by the process that sends
    log.status      the status that the run is to have in MLflow; absent once MLflow has it
    log.settings    the settings changed since MLflow got them; absent once it has the new ones
    log.errors      output of the sending process; empty when all is well
    .log.sender     host and process id of the process that sends for the newest attempt
    wandb.sent      bytes of the log that the client of Weights & Biases has, where a run asks for a copy there
    wandb.errors    output of the process that copies; wandb/ is written by the client
    skipped.json    the data that is left out after loss spikes
    verified.json   which files of its data were hashed, and need not be as long as they are unchanged
    owner.json      the fence: which group of workers the run belongs to
    stop.json       the request to stop (`cluster.stopping`)
    index-cache/    which documents make the samples of this epoch and the next; made again when it is missing
    checkpoints/    step-00000100/ ... each committed like any artefact
    heartbeats/     signs of life of every rank: rank-00000 ...
    stacks/         stacks of ranks that stood still
    profile/        traces and tables of profiled steps
    .lock, .lease   held by the process that trains or changes the run (`cluster.artefacts.owner`)

Nothing here but `RunDirectory.config` imports the configuration's classes: a run of another version of cloze, whose
configuration does not validate any more, is still listed, shown and traced by its `settings`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import xxhash
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict

from cluster.artefacts.credentials import message_without_credentials, without_credentials
from cluster.artefacts.errors import CorruptArtefactError, ReferenceNotFoundError, StorageError
from cluster.artefacts.manifest import created_by, write_durably
from cluster.artefacts.owner import LOCK_NAME, exclusive
from cluster.artefacts.reading import inside, read_bytes, read_json_lines
from cluster.artefacts.seals import read_sealed, write_sealed
from cluster.artefacts.storage import contents_of, storage_errors
from pipeline.config.loading import Config, to_plain, validate, with_overrides
from pipeline.config.problems import nearest
from pipeline.run.events import Event

if TYPE_CHECKING:
    from pipeline.run.config import PretrainConfig

RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
"""The configuration of the attempts to come."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The compiled one reads the settings of many runs ten times as fast; not every platform has it."""
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
    experiment_id: str = ""
    """MLflow's experiment."""
    submission_id: str | None = None
    """The Ray job that started it, if one did."""


class _Place:
    """A file or directory of a run; the text at the top of this file says what each holds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, owner: type[RunDirectory]) -> Path:
        return run.path / self._name


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run on disk."""

    path: Path

    info_file = _Place(RUN_FILE)
    config_file = _Place(CONFIG_FILE)
    history = _Place("events.jsonl")
    log = _Place("log.jsonl")
    log_seals = _Place("log.seals")
    log_sent = _Place("log.sent")
    log_sent_lock = _Place(".log.sent.lock")
    log_sender = _Place(".log.sender")
    log_status = _Place("log.status")
    log_settings = _Place("log.settings")
    log_errors = _Place("log.errors")
    wandb_sent = _Place("wandb.sent")
    wandb_errors = _Place("wandb.errors")
    skipped = _Place("skipped.json")
    verified = _Place("verified.json")
    owner = _Place("owner.json")
    lock = _Place(LOCK_NAME)
    checkpoints = _Place("checkpoints")
    index_cache = _Place("index-cache")
    profile = _Place("profile")
    heartbeats = _Place("heartbeats")
    stacks = _Place("stacks")

    @property
    def exists(self) -> bool:
        """Whether there is a run in the directory."""
        return self.info_file.is_file()

    @property
    def typed(self) -> str:
        """The run as an operator types it: its name, or its directory where that is not the usual one."""
        usual = self.path.resolve().parent == Path("runs").resolve()
        return shlex.quote(self.path.name if usual else str(self.path.resolve()))

    def heartbeat(self, rank: int) -> Path:
        """The activity of a rank; see `Heartbeat`."""
        return self.heartbeats / f"rank-{rank:05d}"

    def stack_file(self, rank: int, host: str, pid: int) -> Path:
        """The stacks of a rank's process when it stood still."""
        return self.stacks / f"rank-{rank:05d}-{host}-{pid}.txt"

    @property
    def info(self) -> RunInfo:
        """The run's identity in MLflow.

        Raises:
            CorruptArtefactError: the file is damaged.
        """
        with contents_of(self.info_file):
            return RunInfo.model_validate(read_sealed(self.info_file))

    def settings(self, name: str = CONFIG_FILE) -> dict[str, Any]:
        """A stored configuration as plain data, whichever version of cloze wrote it.

        Args:
            name: the file's name in the run's directory.

        Raises:
            CorruptArtefactError: it is not what was written.
        """
        path = inside(self.path, name)
        # A file without the last line that states its hash passes: its owner removed it.
        text, found, digest = (read_bytes(path) if path.is_file() else b"").rpartition(_SEAL.encode())
        if found and xxhash.xxh3_128_hexdigest(text).encode() != digest.strip():
            raise CorruptArtefactError(
                f"{path} is not what was written: it was edited by hand, or is damaged.",
                kept="everything else of the run; the settings are also in MLflow (config.json)",
                next_step=f"undo the change, and give new settings as arguments: cloze resume {self.typed} a.b=c; or,"
                " if the file is right as it is, delete its last line, which is the hash",
            )
        with contents_of(path):
            data = read_bytes(path)
            # Aliases of aliases make gigabytes of a kilobyte; cloze writes none.
            if b"&" in data and any(isinstance(each, yaml.AliasEvent) for each in yaml.parse(data, _Loader)):
                raise ValueError("it has aliases")
            return dict(yaml.load(data, _Loader))

    def config(self, overrides: Sequence[str] = (), name: str = CONFIG_FILE) -> PretrainConfig:
        """A stored configuration, with overrides for a resumption.

        Args:
            name: the file's name in the run's directory.

        Raises:
            CorruptArtefactError: it is not what was written.
            ConfigError: it is another version's, or overrides do not fit.
        """
        from pipeline.run.config import PretrainConfig

        where = str(self.path / name)
        return validate(
            PretrainConfig, with_overrides(PretrainConfig, self.settings(name), overrides, where), where
        )

    def create(self, info: RunInfo, config: Config) -> None:
        """Write a new run's files; `run.json` last, because a run exists when that does.

        Raises:
            StorageError: the file system refuses.
        """
        with storage_errors(self.path):
            self.checkpoints.mkdir(parents=True)
            write_durably(self.config_file, _sealed(to_plain(config)))
            write_sealed(self.info_file, info.model_dump(mode="json"))

    def reconfigure(self, config: Config) -> None:
        """Make `config` the configuration of the resumptions to come; the one before is kept beside it.

        Raises:
            CorruptArtefactError: the one before is not what was written.
            StorageError: the file system refuses.
        """
        current, settings = self.config_file, to_plain(config)
        # Another version of cloze may have written the same settings in another order.
        if self.settings() == settings:
            return
        before = f"{CONFIG_FILE}.{len(list(self.path.glob(f'{CONFIG_FILE}.*'))) + 1}"
        with self.refusals():
            write_durably(self.path / before, read_bytes(current))
            write_durably(current, _sealed(settings))
            write_durably(self.log_settings, before.encode())
        self.record_event(Event.RECONFIGURED, before=before)

    def retrack(self, run_id: str, tracking_uri: str, experiment_id: str) -> None:
        """Tie the run to another MLflow run; its name, which has a part of the first one's id, stays.

        Raises:
            StorageError: the file system refuses.
        """
        before = self.info
        update = {"run_id": run_id, "tracking_uri": tracking_uri, "experiment_id": experiment_id}
        self.record_event(
            Event.RETRACKED, run_id=run_id, tracking_uri=tracking_uri, before=before.model_dump(mode="json")
        )
        with self.refusals():
            write_sealed(self.info_file, before.model_copy(update=update).model_dump(mode="json"))

    def record_event(self, event: Event, **details: Any) -> None:
        """Append to the run's history, which is for operators.

        Raises:
            StorageError: the file system refuses; the history is as it was before.
        """
        text = orjson.dumps({"event": event, "time": created_by().time, **details}).decode()
        line = message_without_credentials(text).encode() + b"\n"
        with self.refusals():
            descriptor = os.open(self.history, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
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

    def events(self, *kinds: Event) -> list[dict[str, Any]]:
        """The run's history, oldest first, or only events of some kinds; a line that a full disk or a kill tore is left
        out."""
        found = [event for event in read_json_lines(self.history) if isinstance(event.get("event"), str)]
        return [event for event in found if not kinds or event["event"] in kinds]

    def held(self, purpose: str) -> AbstractContextManager[None]:
        """Lock the run against training and changes by other processes; raises StorageError where one holds it."""
        return exclusive(
            self.path,
            purpose,
            in_use="wait for it to finish, or end it (SIGTERM saves first); `cloze runs` says how far it is",
        )

    def refusals(self) -> AbstractContextManager[None]:
        """Inside the block, a refusal of the file system is a StorageError that says how the run continues."""
        return storage_errors(self.path, again=f"`cloze resume {self.typed}`")


def _sealed(settings: dict[str, Any]) -> bytes:
    """Settings as a YAML file's contents, with their hash as the last line."""
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return f"{text}{_SEAL}{xxhash.xxh3_128_hexdigest(text.encode())}\n".encode()


def list_runs(runs_dir: Path) -> list[RunDirectory]:
    """All runs in `runs_dir`, by name."""
    return [RunDirectory(path.parent) for path in sorted(runs_dir.glob(f"*/{RUN_FILE}"))]


def find_run(reference: str, runs_dir: Path) -> RunDirectory:
    """The run with a name, a directory or an MLflow run id.

    Raises:
        ReferenceNotFoundError: there is none; names the nearest.
    """
    for candidate in (RunDirectory(Path(reference)), RunDirectory(runs_dir / reference)):
        if candidate.exists:
            return candidate
    runs = list_runs(runs_dir)
    for run in runs:
        # Commands about another run report damage to it.
        with suppress(CorruptArtefactError, StorageError):
            if run.info.run_id == reference:
                return run
    near = nearest(reference, [run.path.name for run in runs])
    hint = f" Did you mean {near}?" if near else ""
    raise ReferenceNotFoundError(
        f"There is no run {reference} in {runs_dir}.{hint}",
        next_step=f"list the runs there are: cloze runs --runs-dir {runs_dir}",
    )


def find_run_of_job(submission_id: str, name: str, runs_dir: Path) -> RunDirectory | None:
    """The run that an earlier attempt of a job began: Slurm and Kubernetes try a job again under the same id.

    Args:
        name: `name` of the run's configuration.
    """
    for run in list_runs(runs_dir):
        # Commands about another run report damage to it.
        with suppress(CorruptArtefactError, StorageError):
            if run.info.submission_id == submission_id and run.info.name.rpartition("-")[0] == name:
                return run
    return None
