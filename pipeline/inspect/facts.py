"""Facts of the nodes of a lineage besides their inputs.

Facts of a checkpoint, the course of the run up to its step, are from the checkpoint itself, which may have been copied
away from its run; what only the run's directory knows (who worked at it, and when) is added where that is found. A
Hugging Face directory records no training, so a lineage ends there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.manifest import CreatedBy, Manifest
from pipeline.checkpoint.checkpoint import EMA_FILE, read_trainer_state
from pipeline.checkpoint.hub import CONFIG_FILE, VOCABULARY_FILES, find_cached, hub_name
from pipeline.run.directory import RunDirectory, find_run
from pipeline.run.events import Event
from pipeline.run.history import Attempt, StoredSettings, last_logged, list_attempts, tokens_by_step
from pipeline.run.skipped_data import SkipLedger
from pipeline.run.state import state_of

_CHANGES = (
    *(Event.CHANGED, Event.SPIKE, Event.SKIPPED_UPDATE, Event.CHECKPOINT_SET_ASIDE, Event.PROFILED),
    *(Event.ROLLED_BACK, Event.PUBLISHED),
)
"""Events that a reader of weights wants to know of, besides starts and ends."""


def checkpoint_facts(directory: Path, manifest: Manifest, runs_dir: Path) -> dict[str, Any]:
    """How a checkpoint came to be, as JSON-like data."""
    try:
        state = read_trainer_state(directory)
    except ClozeError:
        return {}
    average = None
    if any(entry.path == EMA_FILE for entry in manifest.files):
        average = {"decay": (state.identity.get("ema") or {}).get("decay"), "file": EMA_FILE}
    facts: dict[str, Any] = {
        "run": state.run_name,
        "mlflow_run": state.run_id,
        "step": state.step,
        "samples": state.samples,
        "tokens": state.tokens or None,
        "predicted_tokens": state.predicted_tokens,
        "hours": state.elapsed_s / 3600 or None,
        "held_out": state.held_out,
        "ema": average,
        **_learned_from(state.identity),
        "left_out": state.skipped_data,
        "allowed_changes": state.allowed_changes,
        "saved_by": {
            "workers": state.world_size,
            "zero_stage": state.zero_stage,
            "optimizer": state.identity.get("optimizer", {}).get("kind"),
            **created_facts(manifest.created_by),
        },
    }
    run = _run_of(directory, state.run_name, state.run_id, runs_dir)
    return facts if run is None else facts | _history(run, state.step)


def run_facts(run: RunDirectory) -> dict[str, Any]:
    """State of a run and its history, as JSON-like data."""
    facts: dict[str, Any] = {"run": run.info.name, "mlflow_run": run.info.run_id}
    step = (last_logged(run) or (0, {}))[0]
    try:
        settings = StoredSettings.of(run)
        tokens = tokens_by_step(run, settings)(step)
    except ClozeError as error:
        return facts | {"step": step, "problem": error.problem}
    state = state_of(run)
    return {
        **facts,
        "state": state.name,
        "detail": state.detail,
        "step": step,
        "tokens": tokens,
        **_learned_from(settings.plain),
        "left_out": [entry.model_dump(mode="json") for entry in SkipLedger(run).entries],
        **_history(run, None),
    }


def created_facts(created: CreatedBy) -> dict[str, Any]:
    """The code, host and time that made an artefact."""
    return {
        "cloze": created.version,
        "commit": created.commit,
        "host": created.host,
        "time": created.time,
    }


def _learned_from(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that weights depend on first; of identities of other versions, what they have."""
    data, batch = identity.get("data") or {}, identity.get("batch") or {}
    found = {
        "objective": identity.get("objective"),
        "seed": identity.get("seed"),
        "precision": identity.get("precision"),
        "mixture": [_compact(store) for store in data.get("stores", ())],
        "batch": _compact({name: value for name, value in batch.items() if name not in ("phases", "warmup")}),
        "warmup": [_compact(stage) for stage in batch.get("warmup") or ()],
        "phases": [_compact(phase) for phase in batch.get("phases") or ()],
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _compact(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _run_of(directory: Path, name: str, run_id: str, runs_dir: Path) -> RunDirectory | None:
    """The run of a checkpoint, found beside it or by its name."""
    candidates = [RunDirectory(directory.absolute().parent.parent)]
    with suppress(ClozeError, OSError):
        candidates.append(find_run(name, runs_dir))
    for run in candidates:
        if run.exists:
            with suppress(OSError, ValueError):
                if run.info.run_id == run_id or run.info.name == name:
                    return run
    return None


def _history(run: RunDirectory, step: int | None) -> dict[str, Any]:
    """Attempts, and what happened, until a step; None: all."""
    try:
        events = run.events()
    except (OSError, orjson.JSONDecodeError):
        return {}
    attempts = [each for each in list_attempts(events) if step is None or each.first_step < step]
    events = [
        {
            "event": event["event"],
            **{key: own for key, own in event.items() if key not in ("event", "samples")},
        }
        for event in events
        if event["event"] in _CHANGES and (step is None or int(event.get("step", 0)) <= step)
    ]
    return {"attempts": list(attempt_facts(attempts)), "events": events}


def attempt_facts(attempts: Sequence[Attempt]) -> Iterator[dict[str, Any]]:
    """Steps, workers, code and configuration of each attempt, as JSON-like data."""
    for attempt in attempts:
        event = attempt.event
        hosts = sorted({str(worker.get("host")) for worker in event.get("workers", ())})
        yield {
            "attempt": attempt.number,
            "from_step": attempt.first_step + 1,
            "time": attempt.time,
            "workers": attempt.world_size,
            "hosts": hosts,
            "device": event.get("device"),
            "optimizer": event.get("optimizer"),
            "attention": event.get("attention"),
            "config": attempt.config_file,
            **_compact({"commit": event.get("commit"), "environment": event.get("environment")}),
        }


_IN_CACHE = re.compile(r"models--(?P<repository>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$")
"""The layout that the documentation of `huggingface_hub` describes."""


def find_model_directory(reference: str) -> Path | None:
    """The Hugging Face directory of a path, or of a name on the Hub that is in the local cache; None without one."""
    directory = Path(reference)
    if (directory / CONFIG_FILE).is_file():
        return directory
    name = hub_name(reference)
    cached = find_cached(name) if name is not None and not directory.exists() else None
    return cached if cached is not None and (cached / CONFIG_FILE).is_file() else None


def describe_model_directory(directory: Path) -> tuple[dict[str, Any], str]:
    """Facts from the configuration and the header of the weights, and why the weights cannot be read, empty where they
    can; the network is not built."""
    from models.hf.directory import weight_files

    try:
        weights, problem = _weights(weight_files(directory)), ""
    except ValueError as error:
        weights, problem = {}, str(error)
    try:
        config = orjson.loads((directory / CONFIG_FILE).read_bytes())
    except ValueError:
        config = {}
    config = config if isinstance(config, dict) else {}
    facts = {
        "architecture": ", ".join(map(str, config.get("architectures") or [])) or config.get("model_type"),
        **weights,
        "tokenizer": ", ".join(name for name in VOCABULARY_FILES if (directory / name).is_file()),
        **_revision(directory),
        "transformers": config.get("transformers_version"),
        "unknown": "the texts, settings and code of its training,"
        " because a Hugging Face directory does not record them",
    }
    return {name: fact for name, fact in facts.items() if fact}, problem


def _weights(files: list[Path]) -> dict[str, Any]:
    """Counts from the headers of safetensors files."""
    from safetensors import SafetensorError, safe_open

    elements: Counter[str] = Counter()
    try:
        for file in files:
            with safe_open(file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a mapping)
                    tensor = opened.get_slice(name)
                    elements[tensor.get_dtype()] += prod(tensor.get_shape())
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}; fetch it again") from error
    return {
        "parameters": elements.total(),
        "precision": ", ".join(sorted(elements)),
        "weights": ", ".join(file.name for file in files),
    }


def _revision(directory: Path) -> dict[str, str]:
    """The name and commit on the Hub, where the directory is part of its cache."""
    if found := _IN_CACHE.search(directory.absolute().as_posix()):
        return {"hub_model": found["repository"].replace("--", "/"), "hub_commit": found["commit"]}
    return {"hub_model": "unknown, because the directory is not in the Hub's cache"}
