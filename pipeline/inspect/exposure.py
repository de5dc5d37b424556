"""The updates of a run that read a document: exact, because the order of samples is a function of data and seed.

No sample is made again and no text is read: the indices of the epochs until the last update are looked through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class DocumentExposure:
    """The updates of one run that read one document."""

    store: str
    """Fingerprint of the token store."""
    number: int
    """Index of the document in the store."""
    first_step: int
    last_step: int
    num_updates: int


@dataclass(frozen=True, slots=True)
class RunExposure:
    """The exposure of a run to some documents, and its outcome."""

    run: str
    steps: int
    """Updates that the run has made."""
    documents: tuple[DocumentExposure, ...] = ()
    """Only those that an update read."""
    clean_checkpoint: int | None = None
    """Step of the newest checkpoint from before the first of these updates."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the checkpoints from after it."""
    models: tuple[str, ...] = ()
    """Versions of published models with such weights."""
    scores: tuple[str, ...] = ()
    """Directories of scores that began with such weights."""
    problem: str = ""
    """Why it is unknown for some steps."""


def exposure_of(run: RunDirectory, wanted: Mapping[str, np.ndarray], scores_dir: Path) -> RunExposure:
    """Find out which updates of a run, without those rolled back, read documents.

    Args:
        wanted: int64 ascending indices of documents, by the fingerprint of their token store.
        scores_dir: where fine-tunings leave their scores.
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
        read = np.unique(np.concatenate(own))
        documents.append(DocumentExposure(store, number, int(read[0]), int(read[-1]), len(read)))
    if not documents:
        return RunExposure(run.path.name, made, problem=problem)
    since, saved = min(one.first_step for one in documents), []
    with suppress(ClozeError, OSError):
        saved = store_of(run).steps()
    return RunExposure(
        run=run.path.name,
        steps=made,
        documents=tuple(documents),
        clean_checkpoint=max((step for step in saved if step < since), default=None),
        checkpoints=tuple(step for step in saved if step >= since),
        models=tuple(
            f"models:/{event['model']}/{event['version']}"
            for event in run.events(Event.PUBLISHED)
            if event["step"] >= since
        ),
        scores=tuple(_scores(run, since, scores_dir)),
        problem=problem,
    )


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
