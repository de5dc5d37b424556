"""Two runs side by side: differences in settings and data, progress, and losses at a common place.

MLflow draws the curves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
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


class _Logged:
    """The log of a run, read once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run, self.settings = run, StoredSettings.of(run)
        self.steps, self.held_out = read_metrics(run), read_metrics(run, LogKind.HELD_OUT)
        self.step = self.steps[-1]["step"] if self.steps else 0
        """The last logged step; 0 before the first."""
        self.tokens = tokens_by_step(run, self.settings)

    def loss(self, count: int, until: int | None = None) -> float | None:
        """Mean of the last losses up to a step, of those that are finite."""
        found = _finite(self.steps, "loss", until, count)
        return fmean(found) if found else None

    def metric(self, until: int | None = None) -> float | None:
        """The metric at the last evaluation up to a step."""
        return next(iter(_finite(self.held_out, self.settings.metric, until, 1)), None)

    def facts(self) -> dict[str, Any]:
        state, metric = state_of(self.run), self.settings.metric
        best = max if higher_is_better(metric) else min
        speeds = _finite(self.steps, "tokens_per_s")
        return {
            "name": self.run.path.name,
            "state": state.name,
            "detail": state.detail,
            "step": self.step,
            "steps": self.settings.num_steps,
            "tokens": self.tokens(self.step),
            "loss": self.loss(1),
            "mean_loss": self.loss(LAST),
            "metric": metric,
            "held_out": self.metric(),
            "best_held_out": best(_finite(self.held_out, metric), default=None),
            "tokens_per_s": median(speeds) if speeds else None,
            "workers": [attempt.world_size for attempt in list_attempts(self.run.events())],
            "skipped": list(SkipLedger(self.run).steps),
        }


def compare(left: RunDirectory, right: RunDirectory, axis: Axis = "step") -> dict[str, Any]:
    """Compare two runs, whatever state they are in.

    Args:
        axis: what their losses are aligned by.

    Returns:
        JSON-like data, of which pairs have a value for each run:
        `runs`: state, progress (`tokens` until `step`), loss at the last step and as a mean of the last LAST steps,
            `held_out` by the metric that decides, the median speed, workers of each attempt, and the global batches
            that were left out after spikes;
        `settings` and `data`: pairs of what differs, None for what one run does not have; without differences of data
            (fingerprints, sizes, batches left out), both read the same samples;
        `common`: pairs of losses at the last place of the axis that both have reached.
    """
    one, other = both = _Logged(left), _Logged(right)
    place = min(one.step, other.step)
    steps = [place, place]
    if axis == "tokens":
        place = min(own.tokens(own.step) for own in both)
        steps = [bisect_right(range(1, own.step + 1), place, key=own.tokens) for own in both]
    return {
        "runs": [one.facts(), other.facts()],
        "settings": _differences(*map(_settings, (left, right))),
        "data": _differences(*map(_data, both)),
        "common": {
            "axis": axis,
            "place": place,
            "mean_loss": [own.loss(LAST, step) for own, step in zip(both, steps, strict=True)],
            "held_out": [own.metric(step) for own, step in zip(both, steps, strict=True)],
        },
    }


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
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
    return dict(flat_settings({k: own for k, own in run.settings().items() if k not in ("runs_dir", "name")}))


def _data(logged: _Logged) -> dict[str, Any]:
    """Everything that decides about the samples, as far as it can be read from here."""
    found: dict[str, Any] = {}
    for number, store in enumerate(logged.settings.stores):
        manifest = None
        try:
            # A stranger may have written the run's settings, with any address.
            if isinstance(place := as_place(store["path"]), Path):
                manifest = manifest_at(place)
        except ClozeError:
            pass
        if manifest is None:
            found[f"stores.{number}"] = f"{store['path']} (cannot be read here)"
            continue
        found[f"stores.{number}.fingerprint"] = manifest.fingerprint
        found[f"stores.{number}.documents"] = manifest.stats.get("rows")
        found[f"stores.{number}.tokens"] = manifest.stats.get("tokens")
    found["left out"] = [entry.data_step for entry in SkipLedger(logged.run).entries]
    if state := newest_state(logged.run):
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
