"""Checkpoints: DeepSpeed's sharded state plus what cloze needs, committed like any artefact.

    step-00000100/
        manifest.json        written last, with a hash for every file
        trainer.json         step, samples, tokens, fingerprints, identity of the run, world size
        model.safetensors    whole float32 master weights, for everything that only wants the model
        ema.safetensors      their moving average, where the run keeps one
        model.json           shape of the network
        tokenizer.json
        deepspeed/           sharded weights and optimizer state of every rank

A directory without a manifest is never read: it is damaged, as one is whose bytes do not verify. That is renamed to
`*.corrupt`, and the next older one is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter

from cluster.artefacts.errors import CorruptArtefactError, CorruptCheckpointError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    make_manifest,
    read_manifest,
)
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.storage import Damage, contents_of, is_committed
from models.config import NetworkConfig
from pipeline.run.shared_settings import NetworkChoice
from pipeline.terms import TOTAL, is_better

KIND = "checkpoint"
TRAINER_FILE = "trainer.json"
MODEL_FILE = "model.safetensors"
EMA_FILE = "ema.safetensors"
MODEL_CONFIG_FILE = "model.json"
TOKENIZER_FILE = "tokenizer.json"
DEEPSPEED_DIRECTORY = "deepspeed"
DESCRIPTION_FILES = frozenset({TRAINER_FILE, MODEL_CONFIG_FILE, TOKENIZER_FILE})
"""Files that describe a checkpoint, without its tensors."""
OF_THE_RUN = ("run_id", "run_name", "elapsed_s", "attempt", "allowed_changes")
"""Fields of a `TrainerState` about the run, not about the training. They are stored in the manifest, outside of
the fingerprint: the same training gives the same checkpoint in any run, on any machine, at any time."""
CHECKPOINT_NAME = re.compile(r"step-(\d{8,})$")
"""Matches the directory name of a checkpoint; its group is the step."""


class Counters(BaseModel):
    """A run's state beside weights and optimizer."""

    model_config = ConfigDict(extra="forbid")

    step: int
    """Updates made."""
    samples: int
    """Samples consumed."""
    predicted_tokens: int
    """Tokens predicted so far."""
    tokens: int = 0
    """Tokens of text read so far, before noise; a resumption may have changed the batch."""
    elapsed_s: float = 0.0
    """Seconds of training so far, over all resumptions, without start-up; seconds that a failure undid and that were
    repeated count once."""
    held_out: dict[str, float] = {}
    """By name, the metrics of the latest evaluation that are finite numbers; none before the first."""
    best: float | None = None
    """Best value, so far, of the metric that decides; always finite."""
    evaluations_since_best: int = 0
    """Evaluations since the metric was last better."""
    skipped_updates: int = 0
    """Updates in a row, up to this step, that were skipped because the loss or a gradient was not finite."""

    @classmethod
    def at_start(cls) -> Counters:
        """The counters before the first update."""
        return cls(step=0, samples=0, predicted_tokens=0)

    def add_evaluation(self, metrics: Mapping[str, float], metric: str, min_improvement: float) -> None:
        """Count an evaluation.

        A value that is not finite is never the best, and counts as an evaluation without improvement, also before the
        first finite one: a network that only gives NaN runs out of patience like one that learns nothing.
        """
        self.held_out = {name: value for name, value in metrics.items() if math.isfinite(value)}
        value = self.held_out.get(metric)
        if value is not None and (self.best is None or is_better(metric, value, self.best, min_improvement)):
            self.best, self.evaluations_since_best = value, 0
        else:
            self.evaluations_since_best += 1


class TrainerState(Counters):
    """The contents of `trainer.json`: the run's counters and what it depends on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    world_size: int
    zero_stage: int
    data_fingerprint: str
    """Fingerprint of the training samples: stores, weights, length, seed, held-out share."""
    store_fingerprints: list[str]
    identity: dict[str, Any]
    """The part of the configuration that determines every update."""
    run_id: str
    run_name: str
    metric: str = TOTAL
    """The metric of evaluations that decides which of two checkpoints is better."""
    losses: list[float] = []
    """The last training losses, which the guard against spikes compares the next one with."""
    skipped_data: list[int] = []
    """Data steps that the run leaves out, ascending."""
    allowed_changes: list[Any] = []
    """Changes that resumptions made with --allow-changed, oldest first."""
    attempt: str = ""
    """Names the start of the run's processes that saved it."""

    def counters(self, metric: str) -> Counters:
        """The counters to continue from, without a best value if the deciding metric is another than the
        checkpoint's."""
        counters = Counters(**self.model_dump(include=set(Counters.model_fields)))
        if self.metric != metric:
            counters.best, counters.evaluations_since_best = None, 0
        return counters


def checkpoint_name(step: int) -> str:
    """Directory name of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(directory: Path) -> int:
    """The step in a checkpoint directory's name.

    Raises:
        ValueError: it is not the name of a checkpoint.
    """
    match = CHECKPOINT_NAME.search(directory.name)
    if match is None:
        raise ValueError(f"{directory} is not named like a checkpoint, such as {checkpoint_name(100)}")
    return int(match.group(1))


def list_checkpoints(directory: Path) -> list[Path]:
    """Committed checkpoints in a run's `checkpoints` directory, oldest first; their bytes are not checked."""
    found = [
        path for path in directory.glob("step-*") if CHECKPOINT_NAME.search(path.name) and is_committed(path)
    ]
    return sorted(found, key=step_of)


def description(state: TrainerState, model: NetworkConfig, tokenizer_json: str) -> dict[str, bytes]:
    """The contents of cloze's own small files of a checkpoint, by name."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    return {
        TRAINER_FILE: orjson.dumps(state.model_dump(mode="json", exclude=set(OF_THE_RUN)), option=options),
        MODEL_CONFIG_FILE: orjson.dumps(asdict(model), option=options),
        TOKENIZER_FILE: tokenizer_json.encode(),
    }


def manifest_of(
    state: TrainerState, files: Sequence[FileEntry], inputs: Sequence[InputEntry] = ()
) -> Manifest:
    """The manifest of a checkpoint. Step and identity determine it; metrics and facts about the run are statistics."""
    stats = {
        "metric": state.metric,
        "held_out": state.held_out,
        "predicted_tokens": state.predicted_tokens,
        "run": state.model_dump(mode="json", include=set(OF_THE_RUN)),
    }
    config = {"step": state.step, "identity": state.identity}
    return make_manifest(KIND, config=config, inputs=inputs, files=files, stats=stats)


def evaluated(stats: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """The deciding metric, and the measured metrics by name, from the stats of a checkpoint's manifest; only
    numbers count."""
    metric, held_out = stats.get("metric"), stats.get("held_out")
    numbers = held_out if isinstance(held_out, dict) else {}
    measured: dict[str, float] = {
        name: value for name, value in numbers.items() if isinstance(value, int | float)
    }
    return metric if isinstance(metric, str) else TOTAL, measured


def read_trainer_state(checkpoint: Path) -> TrainerState:
    """`trainer.json` of a checkpoint, and what its manifest says of the run.

    Raises:
        CorruptCheckpointError: one of them does not exist, or says something else.
    """
    with contents_of(checkpoint / TRAINER_FILE, CorruptCheckpointError):
        plain = orjson.loads(read_bytes(checkpoint / TRAINER_FILE))
        if isinstance(plain, dict):
            try:
                plain |= read_manifest(checkpoint).stats["run"]
            except (CorruptArtefactError, KeyError, TypeError) as error:
                raise CorruptCheckpointError(
                    f"{checkpoint} does not say which run it is of: {error}"
                ) from error
        return TrainerState.model_validate(plain)


def read_model_config(checkpoint: Path) -> NetworkConfig:
    """`model.json` of a checkpoint.

    Raises:
        CorruptCheckpointError: it does not exist, or describes no network.
    """
    with contents_of(checkpoint / MODEL_CONFIG_FILE, CorruptCheckpointError):
        plain = orjson.loads(read_bytes(checkpoint / MODEL_CONFIG_FILE))
        return TypeAdapter(NetworkChoice).validate_python(plain)


def unlisted(checkpoint: Path, manifest: Manifest) -> list[Damage]:
    """Files that would be read as parts of a checkpoint although its manifest does not vouch for them."""
    listed = {entry.path for entry in manifest.files}
    found = [
        path.relative_to(checkpoint).as_posix() for path in (checkpoint / DEEPSPEED_DIRECTORY).glob("*.pt")
    ]
    found += [name for name in (*DESCRIPTION_FILES, MODEL_FILE, EMA_FILE) if (checkpoint / name).exists()]
    return [Damage(name, f"not in {MANIFEST_NAME}") for name in sorted(found) if name not in listed]
