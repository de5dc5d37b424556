"""Two runs side by side: differences in settings and data, progress, and losses at a common place.

MLflow draws the curves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.places import as_place
from cluster.copies import manifest_at
from pipeline.checkpoint.store import newest_state
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.run.history import StoredSettings, list_attempts, tokens_by_step
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.run.skipped_data import SkipLedger
from pipeline.run.state import state_of
from pipeline.run.tracking import runs_page
from pipeline.terms import higher_is_better

Axis = Literal["step", "tokens"]

LAST = 100
"""Steps over which the loss at a place is averaged: the loss of a single step is noisy."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One of the runs."""

    name: str
    state: str
    detail: str
    """Activity of its workers, or the reason of its end."""
    step: int
    steps: int | None
    """Steps of the whole run; None where only its time ends it."""
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
    """Number of workers of each attempt."""
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

    runs: tuple[RunFacts, RunFacts]
    settings: Mapping[str, tuple[Any, Any]]
    """By dotted key, what differs; None for what one of them does not have."""
    data: Mapping[str, tuple[Any, Any]]
    """Differences of the data: fingerprints, sizes, skipped batches. Empty: both read the same samples."""
    common: Common


@dataclass(frozen=True, slots=True)
class _Logged:
    """The log of a run, read once."""

    run: RunDirectory
    settings: StoredSettings
    steps: list[dict[str, Any]]
    held_out: list[dict[str, Any]]

    @classmethod
    def of(cls, run: RunDirectory) -> _Logged:
        return cls(run, StoredSettings.of(run), read_metrics(run), read_metrics(run, LogKind.HELD_OUT))

    @property
    def step(self) -> int:
        """The last logged step; 0 before the first."""
        return self.steps[-1]["step"] if self.steps else 0

    def tokens(self, step: int) -> int:
        return tokens_by_step(self.run, self.settings)(step)

    def loss(self, count: int, until: int | None = None) -> float | None:
        """Mean of the last losses up to a step, of those that are finite."""
        found = _finite(self.steps, "loss", until, count)
        return fmean(found) if found else None

    def metric(self, until: int | None = None) -> float | None:
        """The metric at the last evaluation up to a step."""
        return next(iter(_finite(self.held_out, self.settings.metric, until, 1)), None)

    def facts(self) -> RunFacts:
        state, metric = state_of(self.run), self.settings.metric
        best = max if higher_is_better(metric) else min
        speeds = _finite(self.steps, "tokens_per_s")
        return RunFacts(
            name=self.run.path.name,
            state=state.name,
            detail=state.detail,
            step=self.step,
            steps=self.settings.num_steps,
            tokens=self.tokens(self.step),
            loss=self.loss(1),
            mean_loss=self.loss(LAST),
            metric=metric,
            held_out=self.metric(),
            best_held_out=best(_finite(self.held_out, metric), default=None),
            tokens_per_s=median(speeds) if speeds else None,
            workers=tuple(attempt.world_size for attempt in list_attempts(self.run.events())),
            skipped=SkipLedger(self.run).steps,
        )


def compare(left: RunDirectory, right: RunDirectory, axis: Axis = "step") -> RunComparison:
    """Compare two runs, whatever state they are in.

    Args:
        axis: what their losses are aligned by.
    """
    one, other = _Logged.of(left), _Logged.of(right)
    place = min(one.step, other.step)
    steps = (place, place)
    if axis == "tokens":
        place = min(one.tokens(one.step), other.tokens(other.step))
        steps = tuple(
            bisect_right(range(own.step + 1), place, key=tokens_by_step(own.run, own.settings)) - 1
            for own in (one, other)
        )
    return RunComparison(
        runs=(one.facts(), other.facts()),
        settings=_differences(_settings(left), _settings(right)),
        data=_differences(_data(left), _data(right)),
        common=Common(
            axis=axis,
            place=place,
            mean_loss=(one.loss(LAST, steps[0]), other.loss(LAST, steps[1])),
            held_out=(one.metric(steps[0]), other.metric(steps[1])),
        ),
    )


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of each key where they differ; None for a missing one."""
    keys = dict.fromkeys((*left, *right))
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def flat_settings(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in nested settings; items of lists by their index."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        items = list(enumerate(value))
    if not items:
        yield key, value
    for name, own in items:
        yield from flat_settings(own, f"{key}.{name}".lstrip("."))


def curves_in_mlflow(left: RunInfo, right: RunInfo) -> str:
    """The command to type and the address to open for the curves of two runs in MLflow's own charts."""
    stores = {left.tracking_uri, right.tracking_uri}
    if len(stores) > 1 or "" in stores:
        return "The runs are not in one MLflow tracking store, which could draw their curves together."
    ids = sorted({left.experiment_id, right.experiment_id})
    return runs_page(left.tracking_uri, ids, (left.run_id, right.run_id))


def _settings(run: RunDirectory) -> dict[str, Any]:
    """Everything but where a run lies and what it is called."""
    plain = {key: own for key, own in run.settings().items() if key not in ("runs_dir", "name")}
    return dict(flat_settings(plain))


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


def _finite(
    entries: Sequence[Mapping[str, Any]], name: str, until: int | None = None, count: int = 0
) -> list[float]:
    """The finite values of a metric among the last `count` entries up to a step; 0 and None take all."""
    chosen = [entry for entry in entries if until is None or entry["step"] <= until][-count:]
    values = (entry.get(name) for entry in chosen)
    return [float(value) for value in values if isinstance(value, int | float) and isfinite(value)]
