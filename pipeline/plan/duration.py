"""Duration of a run: operations of all its steps at the expected speed; and how often it reads its text."""

from __future__ import annotations

import re
import statistics
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.copies import committed_at, manifest_at
from data_prep.layout import TOKENS
from data_prep.token_store import TokenStore
from pipeline.engine.gpus import Gpu, find_gpu
from pipeline.plan.network import Network
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import Phase
from pipeline.samples.batch_plan import UNBOUNDED_STEPS

_DEFAULT_MFU = {"encoder": 0.35, "decoder": 0.35, "encoder_decoder": 0.30, "elmo": 0.05}
"""Expected shares of a GPU's peak, below the published ones: 52% of a V100's for BERT large (Rasley et al. 2020,
DeepSpeed), 44% to 52% of an A100's for GPTs (Narayanan et al. 2021, table 1), 46% of a TPU v4's for PaLM (Chowdhery
et al. 2022, table 3), 33% to 39% of an H100's for an 8B decoder (Liang et al. 2024, TorchTitan). LSTMs go word by word,
and their share is a guess."""


_GPU_NAME = re.compile(r'"gpu": ?"([^"]+)"')
"""In the tags of a run, which say what its workers ran on."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The expected share of the peak."""

    mfu: float
    source: str
    """Its origin, for people."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Duration of a run."""

    steps: int | None
    """None where only time ends the run, and the speed is not known."""
    tokens: int | None
    flops: float | None
    """Model FLOPs of the whole run."""
    speed: Speed | None
    """None where the peak is not known."""
    hours: float | None
    """Within the budget."""
    unlimited_hours: float | None
    """For all steps."""
    device_hours: float | None


def duration_of(
    config: PretrainConfig, network: Network, gpu: Gpu, world_size: int, mfu: float | None = None
) -> Duration:
    """Steps, tokens and hours of a run.

    Args:
        mfu: to be expected; None looks for measured runs, and takes a usual one where there are none.
    """
    speed = rate = None
    if (peak := gpu.flops.get(config.precision)) is not None:
        family = config.model.network
        note = f"usual for {family.replace('_', '-')} networks, not measured here"
        usual = Speed(_DEFAULT_MFU[family], note)
        speed = Speed(mfu, "as given") if mfu is not None else measured(config, gpu) or usual
        rate = peak * speed.mfu * world_size
    limit = None if config.budget is None else config.budget.time_s
    steps: int | None = config.num_steps
    if config.num_steps >= UNBOUNDED_STEPS:
        assert limit is not None
        steps = None
        if rate is not None:
            # The most steps that the operations of that time suffice for.
            beyond = bisect_right(range(1 << 50), rate * limit, key=partial(operations, config, network))
            steps = max(beyond - 1, 1)
    flops = None if steps is None else operations(config, network, steps)
    unlimited = None if rate is None or flops is None else flops / rate / 3600
    hours = unlimited
    if hours is not None and limit is not None and config.budget and not config.budget.min_steps:
        hours = min(hours, limit / 3600)
    return Duration(
        steps=steps,
        tokens=None if steps is None else config.tokens_before(steps),
        flops=flops,
        speed=speed,
        hours=hours,
        unlimited_hours=unlimited,
        device_hours=None if hours is None else hours * world_size,
    )


def operations(config: PretrainConfig, network: Network, steps: int) -> float:
    """Model FLOPs of the first `steps` steps."""
    plan = config.batch_plan
    return sum(
        network.flops_per_sample(config.length_of(phase)) * plan.samples_between(first, last)
        for first, last, phase in _stretches(config, steps)
    )


def _stretches(config: PretrainConfig, steps: int) -> Iterator[tuple[int, int, Phase]]:
    """First step, one past the last, and phase of every phase that begins before `steps`; the last phase does not end
    before them."""
    first = 0
    *shorter, rest = config.phases
    for phase in shorter:
        if first < min(steps, first + phase.steps):
            yield first, min(steps, first + phase.steps), phase
        first += phase.steps
    if first < steps:
        yield first, steps, rest


def measured(config: PretrainConfig, gpu: Gpu) -> Speed | None:
    """The median MFU of finished runs with the same kind of network, objective and precision on such a GPU; None where
    there is none, or no tracking store that can be asked."""
    from pipeline.run.tracking import connect, tracking_uri

    uri = tracking_uri(config.runs_dir)
    if uri.startswith("sqlite:///") and not (config.runs_dir / "mlflow.db").is_file():
        return None
    try:
        client = connect(uri)
        experiments = [each.experiment_id for each in client.search_experiments()]
        runs = client.search_runs(
            experiments, "metrics.mfu > 0 AND attributes.status = 'FINISHED'", max_results=200
        )
    except Exception:
        # A store that is down, or of another version, must not stop a plan.
        return None
    shares = [float(run.data.metrics["mfu"]) for run in runs if _is_like(run, config, gpu)]
    if not shares:
        return None
    return Speed(statistics.median(shares), f"median of {len(shares)} finished runs like this one")


def _is_like(run: Any, config: PretrainConfig, gpu: Gpu) -> bool:
    found, network = run.data.params, config.model.network
    names = {name for value in run.data.tags.values() for name in _GPU_NAME.findall(value)}
    return (
        found.get("objective.kind") == config.objective.kind
        and found.get("model.network", network) == network
        and found.get("precision", config.precision) == config.precision
        and any(find_gpu(name) == gpu for name in names)
    )


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Share of a token store that a run reads."""

    path: str
    tokens: int | None
    """Tokens of its documents that are trained on; None where it does not exist."""
    read: int | None
    """Tokens that the run reads of it, by the weights of the stores; None where the run's length is not known."""
    epochs: float | None


def store_uses(config: PretrainConfig, duration: Duration) -> list[StoreUse]:
    """Every store of the mixture."""
    found = []
    for number, store in enumerate(config.data.stores):
        tokens, read, epochs = _tokens_of(config, number), None, None
        if duration.steps is not None:
            read = 0.0
            for first, last, phase in _stretches(config, duration.steps):
                weights = phase.weights or [store.weight for store in config.data.stores]
                in_all = config.tokens_before(last) - config.tokens_before(first)
                read += in_all * weights[number] / sum(weights)
            read = round(read)
            epochs = None if tokens is None else read / max(tokens, 1)
        found.append(StoreUse(str(store.path), tokens, read, epochs))
    return found


def _tokens_of(config: PretrainConfig, number: int) -> int | None:
    """Tokens of the documents of a store that are trained on; None where it does not exist. Of a store at a URI,
    sources and languages are not distinguished."""
    wanted = config.data.stores[number]
    try:
        if isinstance(wanted.path, str):
            # A plan fetches no tokens: about as many are trained on as the manifest and the settings say.
            manifest = manifest_at(committed_at(wanted.path, TOKENS))
            tokens = manifest.stats.get("tokens") if manifest else None
            return None if tokens is None else round(tokens * (1 - config.data.held_out))
        store = TokenStore.open(wanted.path, verify=False)
    except (ClozeError, OSError):
        return None
    chosen = ~store.held_out(config.data.held_out)
    for names, (numbers, known) in ((wanted.sources, store.sources()), (wanted.langs, store.langs())):
        if names is not None:
            chosen &= np.isin(numbers, [known.index(name) for name in names if name in known])
    return int(store.lengths[chosen].sum())
