"""Whether a run continues from its newest good checkpoint under a configuration, which may differ from its own; and a
run taken back to an earlier checkpoint by its operator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import xxhash

from cluster.artefacts.errors import CorruptCheckpointError, ResumeRefusedError
from cluster.artefacts.manifest import InputEntry, hash_file, read_manifest
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.storage import contents_of
from cluster.artefacts.visible import visible
from pipeline.checkpoint import checkpoint as checkpoints
from pipeline.checkpoint.references import CheckpointReference, resolve_model
from pipeline.checkpoint.store import CheckpointStore, best_step, newest_good, open_store, store_of
from pipeline.objectives.base import OUTSIDE_KIND
from pipeline.pretrain.ownership import end_leftovers
from pipeline.run.config import PretrainConfig, identity_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import last_logged
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog, damage_of_log
from pipeline.samples.index_cache import IndexCache

if TYPE_CHECKING:
    from pipeline.run.inputs import Inputs


def check_resume(
    run: RunDirectory,
    config: PretrainConfig,
    allow_changed: Sequence[str] = (),
    *,
    at: int | None = None,
    look_only: bool = False,
) -> Path | None:
    """Make sure that the newest good checkpoint continues under `config`; returns it, None at step 0.

    Args:
        allow_changed: keys (such as `steps`, or `optimizer` for all below it) that may differ from the
            checkpoint's; what did differ is recorded in the run's history, and steps after the checkpoint are logged
            anew.
        at: roll the run back to the checkpoint of this step; None takes the newest good one.
        look_only: change nothing, not even damaged checkpoints' names.

    Raises:
        ResumeRefusedError: data, objective, model or batch differ from the checkpoint's; names each difference.
        CorruptCheckpointError: there are checkpoints, and none verifies; or the wanted one does not.
        ConfigError: the data does not give a single sample any more.
    """
    from pipeline.run.inputs import open_inputs

    _require_same_checkpoints(run, config)
    # From a store elsewhere, the driver's machine does not get the weights: the workers' machines verify them.
    files = None if config.checkpoint.directory is None else checkpoints.DESCRIPTION_FILES
    store = store_of(run)
    if at is None:
        start, messages = newest_good(store, look_only=look_only, files=files)
    else:
        start, messages = CheckpointReference(store.at(at), at).fetch(files), []
    for message in messages:
        print(visible(f"A damaged checkpoint is passed over: {message}"), file=sys.stderr)
        if not look_only:
            run.record_event(Event.CHECKPOINT_SET_ASIDE, message=message)
    seen = SeenFiles.read(run.verified)
    cache = IndexCache(run.index_cache) if run.index_cache.is_dir() else None
    inputs = open_inputs(config, verify=True, resolve=resolve_model, seen=seen, cache=cache)
    inputs.require_samples()
    if not look_only:
        seen.write(run.verified)
    require_not_lost(run, start)
    if start is None:
        return None
    state = checkpoints.read_trainer_state(start)
    damage = damage_of_log(run)
    found = {
        **({run.log.name: damage} if damage else {}),
        **_differences(orjson.loads(orjson.dumps(state.identity)), identity_of(config)),
        **_differences(
            {
                "data.tokens": state.store_fingerprints,
                "data.tokenizer": hash_file(start / checkpoints.TOKENIZER_FILE)[0],
                "objective.teacher": _teachers(read_manifest(start).inputs),
            },
            {
                "data.tokens": [store.fingerprint for store in inputs.stores],
                "data.tokenizer": xxhash.xxh3_128_hexdigest(inputs.vocabulary.tokenizer_json.encode()),
                "objective.teacher": _teachers(inputs.entries),
            },
        ),
    }
    # A checkpoint from before an allowed change still differs by it.
    known = {(key, text) for event in run.events(Event.CHANGED) for key, text in event["differences"].items()}
    found = {key: text for key, text in found.items() if (key, text) not in known}
    allowed = {key: text for key, text in found.items() if _is_allowed(key, allow_changed)}
    if refused := {key: text for key, text in found.items() if key not in allowed}:
        listed = "\n".join(f"  {key} {text}" for key, text in refused.items())
        keys = " ".join(f"--allow-changed {key}" for key in refused)
        raise ResumeRefusedError(
            f"{run.path.name} at step {state.step} does not continue under this configuration:\n{listed}",
            kept=f"the run and its checkpoint {start}",
            next_step=f"undo the changes, or if you mean them: cloze resume {run.typed} {keys} ...",
        )
    if any(_is_allowed(key, ("model", "objective")) for key in allowed):
        _require_same_shapes(start, inputs)
    if allowed and not look_only:
        run.record_event(Event.CHANGED, step=state.step, differences=allowed)
    if (allowed or at is not None) and not look_only:
        roll_back(run, store, state.step)
    return start


def roll_back(run: RunDirectory, store: CheckpointStore, step: int) -> None:
    """Make the checkpoint of `step` the newest one of the run, whose lock the caller holds.

    Later checkpoints are renamed to `step-*.rolled-back`, and the metrics of later steps count no more: they are logged
    again when these steps are made again. Where there is neither, nothing is done. After a kill in the middle, the same
    call does the rest.

    Raises:
        StorageError: the file system refuses, or a worker on another machine still trains.
    """
    end_leftovers(run)
    later = [one for one in store.steps() if one > step]
    with closing(RunLog(run, since=step)) as log:
        reached = log.last_step(LogKind.STEP)
        if reached > step:
            log.roll_back(step, {"from": reached, "steps": later, "best": best_step(store, step)})
    if later or reached > step:
        places = [store.set_aside(one, "rolled-back") for one in reversed(later)]
        run.record_event(Event.ROLLED_BACK, step=step, reached=reached, set_aside=places)


def require_not_lost(run: RunDirectory, start: Path | None) -> None:
    """Raise CorruptCheckpointError if a run has had checkpoints and none is left: it would begin again."""
    if start is not None or (last := last_logged(run, LogKind.CHECKPOINT)) is None:
        return
    raise CorruptCheckpointError(
        f"{run.path.name} had a checkpoint of step {last[0]} at {last[1]['directory']}, and none is left there.",
        kept="the run's log and history",
        next_step="bring the place back (is it mounted?), or restore a checkpoint from a backup; to begin anew, start a"
        " new run with `cloze pretrain`",
    )


def _teachers(inputs: Sequence[InputEntry]) -> list[str]:
    return [entry.fingerprint for entry in inputs if entry.kind == OUTSIDE_KIND]


def _require_same_checkpoints(run: RunDirectory, config: PretrainConfig) -> None:
    """Refuse a `checkpoint.directory` without the run's checkpoints: the run would start from nothing."""
    before, after = run.config().checkpoint.directory, config.checkpoint.directory
    if before == after:
        return
    old = store_of(run)
    new = CheckpointStore(run.checkpoints) if after is None else open_store(after, run.info.name)
    if (steps := old.steps()) and new.steps()[-1:] != steps[-1:]:
        raise ResumeRefusedError(
            f"checkpoint.directory is to change, and the newest checkpoint {old.place(steps[-1])} is not there.",
            kept="the run and its checkpoints",
            next_step=f"copy the checkpoints to {new.directory} first, or leave the setting",
        )


def _require_same_shapes(start: Path, inputs: Inputs) -> None:
    """Refuse a network that could not take over the checkpoint's parameters, before anything is written.

    A checkpoint elsewhere, whose weights are not on this machine, is compared by the workers alone.
    """
    import torch
    from safetensors import safe_open

    weights = start / checkpoints.MODEL_FILE
    if not weights.exists():
        return
    with torch.device("meta"):
        model = inputs.build_model()
    with contents_of(weights, CorruptCheckpointError), safe_open(weights, framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    unlike = [
        f"{name} has the shape {tuple(one.shape)}, the checkpoint's {saved.get(name, 'none, it is not there')}"
        for name, one in model.named_parameters()
        if saved.get(name) != tuple(one.shape)
    ]
    if unlike:
        raise ResumeRefusedError(
            f"This network cannot take over the weights of {start}: {unlike[0]}"
            f" ({len(unlike)} parameters do not fit).",
            kept="the run, its configuration and its checkpoints",
            next_step="leave what gives the parameters their shapes as it was, or start a new run with"
            " `cloze pretrain`",
        )


def _differences(old: Any, new: Any, key: str = "") -> dict[str, str]:
    """Values of `old` and `new` by dotted key, where they differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, str] = {}
        for name in sorted(old.keys() | new.keys()):
            found |= _differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
        return found
    return {} if old == new else {key: f"was {old}, is {new}"}


def _is_allowed(key: str, allow_changed: Sequence[str]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in allow_changed)
