"""The global batch of one update of a run, made again without any checkpoint.

The samples of an update are a function of the run's configuration, its stores, the ledger of skipped data, and the
update's number; which rank read which part of it, of the number of workers that the run's history records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cluster.artefacts.errors import MismatchError, ReferenceNotFoundError
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import newest_state
from pipeline.inspect.facts import attempt_facts
from pipeline.inspect.lineage import find_documents
from pipeline.inspect.sample import SampleReader, documents_of, located
from pipeline.objectives.base import Batch
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import CONFIG_FILE, RunDirectory
from pipeline.run.history import Attempt, list_attempts, logged
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.loader import StepLoader
from pipeline.samples.noise import Noise


@dataclass(frozen=True)
class RebuiltStep:
    """An update's data, with what decided about it."""

    run: RunDirectory
    step: int
    """The step that the update made; 1 is the first."""
    data_step: int
    """Index of the global batch, from 0; `step - 1` where nothing was left out before it."""
    spike: SkippedStep | None
    """Why the global batch was left out, if it was; the update that read it was rolled back."""
    skipped: tuple[SkippedStep, ...]
    """The entries of the ledger for global batches before this one."""
    attempts: tuple[Attempt, ...]
    """Those that may have made the update, oldest first; the last one made the run's weights. Empty: it was not
    started."""
    metrics: Mapping[str, Any] | None
    """The logged metrics; None for an update that was not made yet."""
    config: PretrainConfig
    """In force in the last attempt."""
    inputs: Inputs

    @property
    def world_size(self) -> int:
        """Ranks that shared the batch."""
        return self.attempts[-1].world_size if self.attempts else self.config.cluster.workers

    @property
    def phase(self) -> int:
        """Index of the phase in `config.phases`."""
        return bisect_right([first for first, _ in self.inputs.phases], self.data_step) - 1

    @property
    def dataset(self) -> TokenDataset:
        """The samples of the phase."""
        return self.inputs.phases[self.phase][1]

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of the step, over all ranks."""
        return self.config.batch_plan.num_micro_batches(self.data_step)

    @cached_property
    def _loader(self) -> StepLoader[Batch]:
        noise = Noise.of("train", self.config.seed)
        return StepLoader(
            self.inputs.phases,
            self.config.batch_plan,
            lambda packed: self.inputs.corrupt(packed, noise),
            rank=0,
            world_size=1,
            lengths=self.inputs.lengths(noise),
        )

    def batch(self, micro_batch: int) -> Batch:
        """The arguments of the network, bit for bit as the update's rank had them."""
        return self._loader.micro_batch(self.data_step, micro_batch)

    def samples(self, micro_batch: int) -> np.ndarray:
        """int64 [micro_batch_size]: the sample indices of a micro-batch."""
        return self._loader.samples(self.data_step, micro_batch)

    def rank_of(self, micro_batch: int) -> int:
        """The rank that read a micro-batch."""
        return micro_batch % self.world_size


def rebuild_step(run: RunDirectory, step: int, overrides: Sequence[str] = ()) -> RebuiltStep:
    """Find out what the update that made `step` read.

    Args:
        overrides: settings that changed since without changing any update, such as where the stores lie now.

    Raises:
        ReferenceNotFoundError: the run has no such step.
        MismatchError: the stores are not those that the run was trained on.
        CorruptArtefactError, MissingInputError, ConfigError: the stores cannot be read.
    """
    if step < 1:
        raise ReferenceNotFoundError(
            f"Steps are numbered from 1, as they are logged; there is no step {step}."
        )
    ledger = SkipLedger(run)
    return _rebuild(run, step, ledger.data_step(step - 1), ledger, overrides)


def rebuild_data_step(run: RunDirectory, data_step: int, overrides: Sequence[str] = ()) -> RebuiltStep:
    """Inspect a global batch by its number, also one that was skipped after a loss spike.

    Its step is the update that read it; for a skipped one, the update that was rolled back.
    """
    if data_step < 0:
        raise ReferenceNotFoundError(
            f"Global batches are numbered from 0; there is no global batch {data_step}."
        )
    ledger = SkipLedger(run)
    spikes = [entry for entry in ledger.entries if entry.data_step == data_step]
    step = data_step + 1 - sum(entry.data_step < data_step for entry in ledger.entries)
    return _rebuild(run, spikes[-1].at_update + 1 if spikes else step, data_step, ledger, overrides)


def _rebuild(
    run: RunDirectory, step: int, data_step: int, ledger: SkipLedger, overrides: Sequence[str]
) -> RebuiltStep:
    # Those that began before the step may have made it; the last of them counts.
    attempts = [one for one in list_attempts(run.events()) if one.first_step < step]
    config = run.config(overrides, attempts[-1].config_file if attempts else CONFIG_FILE)
    if step > config.num_steps:
        raise ReferenceNotFoundError(
            f"{run.path.name} has {config.num_steps} steps; there is no step {step}."
        )
    spike = next((entry for entry in ledger.entries if entry.data_step == data_step), None)
    rebuilt = RebuiltStep(
        run=run,
        step=step,
        data_step=data_step,
        spike=spike,
        skipped=tuple(entry for entry in ledger.entries if entry.data_step < data_step),
        attempts=tuple(attempts),
        metrics=None if spike else logged(run, step),
        config=config,
        inputs=open_inputs(config, verify=False, resolve=resolve_model),
    )
    _require_same_stores(rebuilt)
    return rebuilt


def inspect_step(
    rebuilt: RebuiltStep, micro_batch: int | None = None, *, texts: bool = False
) -> dict[str, Any]:
    """Find out what an update, or one of its micro-batches, is made of.

    Args:
        texts: whether to read the samples, which takes longer.

    Returns:
        JSON-like data: the settings that decided about the batch; `samples`, each with its index in the phase, epoch of
        its store, slices of documents from left to right, and its `pieces` with `texts`; and `documents`, the ones with
        the most tokens first, each with its place in the store and the samples that it is in.

    Raises:
        ReferenceNotFoundError: there is no such micro-batch.
    """
    dataset, count = rebuilt.dataset, rebuilt.num_micro_batches
    if micro_batch is not None and not 0 <= micro_batch < count:
        raise ReferenceNotFoundError(
            f"Step {rebuilt.step} has the micro-batches 0 to {count - 1}; there is no micro-batch {micro_batch}."
        )
    drawn = [
        (number, sample, dataset.origin(sample))
        for number in (range(count) if micro_batch is None else (micro_batch,))
        for sample in rebuilt.samples(number).tolist()
    ]
    places = find_documents(dataset.stores, (key for *_, origin in drawn for key in documents_of(origin)))
    reader = SampleReader(rebuilt.inputs, dataset) if texts else None
    samples: list[dict[str, Any]] = []
    tokens = dict.fromkeys(places, 0)
    read_by: dict[tuple[int, int], list[int]] = {key: [] for key in places}
    for number, sample, origin in drawn:
        for one in origin.slices:
            key = origin.store, one.document
            tokens[key] += one.stop - one.start
            read_by[key] += [sample] if sample not in read_by[key][-1:] else []
        own = {
            "sample": sample,
            "micro_batch": number,
            "rank": rebuilt.rank_of(number),
            "store": dataset.stores[origin.store].place,
            "epoch": origin.epoch,
            "slices": [located(origin, one, places) for one in origin.slices],
        }
        if reader is not None:
            own["pieces"] = [piece.as_dict() for piece in reader.read(sample, origin, places)]
        samples.append(own)
    documents = [
        places[key]
        | {"store": dataset.stores[key[0]].place, "number": key[1]}
        | {"tokens": tokens[key], "samples": read_by[key]}
        for key in sorted(places, key=lambda key: (-tokens[key], key))
    ]
    return _facts(rebuilt) | {"samples": samples, "documents": documents}


def _facts(rebuilt: RebuiltStep) -> dict[str, Any]:
    config, first = rebuilt.config, rebuilt.inputs.phases[rebuilt.phase][0]
    phase = config.phases[rebuilt.phase]
    return {
        "run": rebuilt.run.path.name,
        "step": rebuilt.step,
        "of_steps": config.num_steps,
        "metrics": rebuilt.metrics,
        "data_step": rebuilt.data_step,
        "left_out": None if rebuilt.spike is None else rebuilt.spike.model_dump(mode="json"),
        "left_out_before": [entry.model_dump(mode="json") for entry in rebuilt.skipped],
        "phase": {
            "number": rebuilt.phase,
            "first_step": first + 1,
            "sequence_length": config.length_of(phase),
            "weights": phase.weights,
        },
        "objective": config.objective.kind,
        "num_samples": config.batch_plan.samples_at(rebuilt.data_step),
        "num_micro_batches": rebuilt.num_micro_batches,
        "world_size": rebuilt.world_size,
        "attempts": [
            {name: value for name, value in own.items() if name != "environment"}
            for own in attempt_facts(rebuilt.attempts)
        ],
    }


def _require_same_stores(rebuilt: RebuiltStep) -> None:
    """Compare the stores with those that the attempt named at its start, or else a checkpoint of the run."""
    used = rebuilt.attempts[-1].event.get("store_fingerprints") if rebuilt.attempts else None
    if used is None:
        state = newest_state(rebuilt.run)
        used = None if state is None else state.store_fingerprints
    if used is None or list(used) == [store.fingerprint for store in rebuilt.inputs.stores]:
        return
    changed = [
        store.place
        for number, store in enumerate(rebuilt.inputs.stores)
        if number >= len(used) or used[number] != store.fingerprint
    ]
    raise MismatchError(
        f"{rebuilt.run.path.name} was trained on other tokens than {' and '.join(changed)} now hold:"
        f" what step {rebuilt.step} read cannot be inferred from them.",
        next_step=f"restore the tokens that `cloze lineage {rebuilt.run.typed}` names by fingerprint",
    )
