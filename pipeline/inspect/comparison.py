"""Two runs side by side: what differs in their settings and their data, where they stand, and their losses where both
have been. MLflow draws the curves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.places import as_place
from cluster.copies import manifest_at
from pipeline.checkpoint.store import newest_state
from pipeline.inspect.curves import Curve, read_curves
from pipeline.objectives.terms import higher_is_better
from pipeline.run.directory import RunDirectory
from pipeline.run.history import list_attempts, tokens_by_step
from pipeline.run.log.kinds import LogKind
from pipeline.run.skipped_data import SkipLedger
from pipeline.run.state import state_of
from pipeline.run.stored_settings import StoredSettings

Axis = Literal["step", "tokens"]

CURVES = ("loss", "tokens_per_s")
"""Of every step."""
LAST = 100
"""Steps over which the loss at a place is averaged: the loss of a single step is noisy."""
_OF_THE_PLACE = ("runs_dir", "name")
"""Settings that say where a run lies and what it is called."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One of the runs."""

    name: str
    state: str
    detail: str
    """Activity of its workers, or the reason of its end."""
    step: int
    steps: int | None
    """Of the whole run; None where only its time ends it."""
    tokens: int
    """Read until `step`."""
    loss: float | None
    """At the last step with a finite one."""
    mean_loss: float | None
    """Mean of the last LAST steps."""
    metric: str
    """The metric that decides between its evaluations."""
    held_out: float | None
    """The metric at the last evaluation."""
    best_held_out: float | None
    tokens_per_s: float | None
    """Median over steps."""
    workers: tuple[int, ...]
    """Of each attempt."""
    skipped: tuple[int, ...]
    """Global batches that were left out after loss spikes, from 0."""


@dataclass(frozen=True, slots=True)
class Common:
    """Both runs at the last place of the axis that both have reached."""

    axis: Axis
    place: int
    mean_loss: tuple[float | None, float | None]
    """Means of the last LAST steps up to there."""
    held_out: tuple[float | None, float | None]
    """The metric of each at the last evaluation up to there."""


@dataclass(frozen=True)
class RunComparison:
    """The answer of `cloze runs compare`."""

    facts: tuple[RunFacts, RunFacts]
    settings: Mapping[str, tuple[Any, Any]]
    """By dotted key, what differs; None for what one of them does not have."""
    data: Mapping[str, tuple[Any, Any]]
    """Differences of the data: fingerprints, sizes, skipped batches. Empty: both read the same samples."""
    common: Common

    def as_dict(self) -> dict[str, Any]:
        """JSON-like data."""
        return {
            "runs": [asdict(own) for own in self.facts],
            "settings": {key: list(pair) for key, pair in self.settings.items()},
            "data": {key: list(pair) for key, pair in self.data.items()},
            "common": asdict(self.common),
        }


def compare(left: RunDirectory, right: RunDirectory, axis: Axis = "step") -> RunComparison:
    """Compare two runs, whatever state they are in.

    Args:
        axis: what their curves are aligned by.
    """
    runs = (left, right)
    curves = tuple(read_curves(run, CURVES, StoredSettings.of(run).metric) for run in runs)
    tokens = tuple(tokens_by_step(run) for run in runs)
    facts = [_facts(*each) for each in zip(runs, curves, tokens, strict=True)]
    return RunComparison(
        facts=(facts[0], facts[1]),
        settings=differences(_settings(left), _settings(right)),
        data=differences(_data(left), _data(right)),
        common=_common(curves, tokens, axis),
    )


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By key, both values where they differ; None for a missing one."""
    keys = dict.fromkeys((*left, *right))
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def flat_settings(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in nested settings; items of lists by their number."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        items = list(enumerate(value))
    if not items:
        yield key, value
    for name, own in items:
        yield from flat_settings(own, f"{key}.{name}".lstrip("."))


def _settings(run: RunDirectory) -> dict[str, Any]:
    plain = run.settings()
    return dict(flat_settings({key: own for key, own in plain.items() if key not in _OF_THE_PLACE}))


def _data(run: RunDirectory) -> dict[str, Any]:
    """Everything that decides about the samples, as far as it can be read from here."""
    found: dict[str, Any] = {}
    for number, store in enumerate(StoredSettings.of(run).stores):
        try:
            place = as_place(store["path"])
            # A stranger may have written the run's settings, with any address.
            manifest = manifest_at(place) if isinstance(place, Path) else None
        except ClozeError:
            manifest = None
        if manifest is None:
            found[f"stores.{number}"] = f"{store['path']} (cannot be read here)"
            continue
        found[f"stores.{number}.fingerprint"] = manifest.fingerprint
        found[f"stores.{number}.documents"] = manifest.stats.get("rows")
        found[f"stores.{number}.tokens"] = manifest.stats.get("tokens")
    found["left out"] = [entry.data_step for entry in SkipLedger(run).entries]
    if state := newest_state(run):
        # Covers stores, mixture, lengths, seed and the held-out share.
        found["samples"] = state.data_fingerprint
    return found


def _facts(run: RunDirectory, curves: Mapping[str, Curve], tokens: Callable[[int], int]) -> RunFacts:
    loss, held_out, speeds = curves["loss"], curves[LogKind.HELD_OUT], curves["tokens_per_s"].finite
    state, settings = state_of(run), StoredSettings.of(run)
    best = max if higher_is_better(settings.metric) else min
    return RunFacts(
        name=run.path.name,
        state=state.name,
        detail=state.detail,
        step=loss.last_step,
        steps=settings.num_steps,
        tokens=tokens(loss.last_step),
        loss=loss.mean_of_last(1),
        mean_loss=loss.mean_of_last(LAST),
        metric=settings.metric,
        held_out=held_out.mean_of_last(1),
        best_held_out=best(held_out.finite.tolist(), default=None),
        tokens_per_s=float(np.median(speeds)) if len(speeds) else None,
        workers=tuple(attempt.world_size for attempt in list_attempts(run.events())),
        skipped=SkipLedger(run).data.steps,
    )


def _common(
    curves: Sequence[Mapping[str, Curve]], tokens: Sequence[Callable[[int], int]], axis: Axis
) -> Common:
    ends = [own["loss"].last_step for own in curves]
    place, steps = min(ends), [min(ends)] * 2
    if axis == "tokens":
        place = min(read(end) for read, end in zip(tokens, ends, strict=True))
        steps = [
            bisect_right(range(end + 1), place, key=read) - 1 for read, end in zip(tokens, ends, strict=True)
        ]

    def mean(name: str, count: int) -> tuple[float | None, float | None]:
        left, right = (own[name].until(step) for own, step in zip(curves, steps, strict=True))
        return left.mean_of_last(count), right.mean_of_last(count)

    return Common(axis=axis, place=place, mean_loss=mean("loss", LAST), held_out=mean(LogKind.HELD_OUT, 1))
