"""The updates of a run that read a document: exact, because the order of samples is a function of data and seed.

No sample is made again and no text is read: the indices of the epochs until the last update are looked through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from cluster.artefacts.errors import ClozeError, CorruptArtefactError, MismatchError
from cluster.artefacts.manifest import MANIFEST_NAME, read_manifest
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import store_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import Attempt, last_logged, list_attempts
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.run.skipped_data import SkipLedger
from pipeline.samples.index_cache import IndexCache


def exposure_of(run: RunDirectory, wanted: Mapping[str, np.ndarray], scores_dir: Path) -> dict[str, Any]:
    """Find out which updates of a run, without those rolled back, read documents, and what depends on them.

    Args:
        wanted: int64 ascending indices of documents, by the fingerprint of their token store.
        scores_dir: where fine-tunings leave their scores.

    Returns:
        JSON-like data: the `run` and its `steps`; `documents` that an update read, by store and index, with the first
        and last step and the number of updates; the newest `clean_checkpoint` from before the first of these, and the
        `checkpoints`, published `models` and `scores` from after it; and the `problem`, why it is unknown for some
        steps, empty without one.
    """
    made = (last_logged(run) or (0, {}))[0]
    steps: dict[tuple[str, int], list[np.ndarray]] = {}
    problem, opened = "", dict[str, Inputs]()
    for first, last, attempt in _stretches(list_attempts(run.events()), made):
        used = attempt.event.get("store_fingerprints")
        if used is not None and not wanted.keys() & set(used):
            continue
        try:
            if (inputs := opened.get(attempt.config_file)) is None:
                config, cache = run.config((), attempt.config_file), IndexCache(run.index_cache)
                inputs = open_inputs(config, verify=False, resolve=resolve_model, cache=cache)
                if used is not None and list(used) != [store.fingerprint for store in inputs.stores]:
                    raise MismatchError("its token stores are not there any more, or hold something else")
                opened[attempt.config_file] = inputs
            for key, found in _read(inputs, run, first, last, wanted):
                steps.setdefault(key, []).append(found)
        except ClozeError as error:
            problem = f"steps {first + 1} to {last}: {error.problem}"
    documents = []
    for (store, number), own in sorted(steps.items()):
        read = np.unique(np.concatenate(own)).tolist()
        places = {"store": store, "number": number}
        documents.append(places | {"first_step": read[0], "last_step": read[-1], "num_updates": len(read)})
    since = min((one["first_step"] for one in documents), default=made + 1)
    saved, published = [], []
    if documents:
        published = [event for event in run.events(Event.PUBLISHED) if event["step"] >= since]
        with suppress(ClozeError, OSError):
            saved = store_of(run).steps()
    return {
        "run": run.path.name,
        "steps": made,
        "documents": documents,
        "clean_checkpoint": max((step for step in saved if step < since), default=None),
        "checkpoints": [step for step in saved if step >= since],
        "models": [f"models:/{event['model']}/{event['version']}" for event in published],
        "scores": list(_scores(run, since, scores_dir)) if documents else [],
        "problem": problem,
    }


def _stretches(attempts: Sequence[Attempt], made: int) -> Iterator[tuple[int, int, Attempt]]:
    """(updates before, updates until, attempt) of the updates that made the run's weights; the newest attempt
    counts."""
    last = made
    for attempt in reversed(attempts):
        if attempt.first_step < last:
            yield attempt.first_step, last, attempt
            last = attempt.first_step


def _read(
    inputs: Inputs, run: RunDirectory, first: int, last: int, wanted: Mapping[str, np.ndarray]
) -> Iterator[tuple[tuple[str, int], np.ndarray]]:
    """((store, document), int64 steps) of the updates `first <= update < last`."""
    plan, ledger = inputs.config.batch_plan, SkipLedger(run)
    skipped, behind = np.array(ledger.steps, dtype=np.int64), ledger.data_step(last - 1) + 1
    begins = [begin for begin, _ in inputs.phases]
    for number, (begin, dataset) in enumerate(inputs.phases):
        end = min([behind, *begins[number + 1 : number + 2]])
        num_samples = plan.samples_between(begin, end) if end > begin else 0
        for place, store in enumerate(dataset.stores):
            documents = wanted.get(store.fingerprint, ())
            for document, samples in dataset.samples_with(place, np.asarray(documents), num_samples):
                data_steps = np.unique(plan.steps_of(samples, since=begin))
                data_steps = data_steps[~np.isin(data_steps, skipped)]
                found = data_steps - np.searchsorted(skipped, data_steps) + 1
                found = found[(found > first) & (found <= last)]
                if len(found):
                    yield (store.fingerprint, document), found


def _scores(run: RunDirectory, since: int, directory: Path) -> Iterator[str]:
    """Scores whose network began with weights of the run from `since` on."""
    for path in sorted(directory.glob(f"*/*/{MANIFEST_NAME}")):
        try:
            inputs = read_manifest(path.parent).inputs
        except CorruptArtefactError:
            continue
        references = [entry.uri.rpartition("@") for entry in inputs if entry.kind == CHECKPOINT_KIND]
        if any(
            name == run.path.name and int(step) >= since for name, _, step in references if step.isdecimal()
        ):
            yield str(path.parent)
