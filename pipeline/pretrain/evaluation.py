"""Loss on held-out samples: a fixed list of them, shared out over ranks, every one counted once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from cluster.train_group import Rank
from pipeline.engine.interface import TrainingEngine
from pipeline.objectives.terms import Term, with_perplexities
from pipeline.pretrain.step.collectives import summed
from pipeline.pretrain.step.device_batches import HostBatch
from pipeline.pretrain.step.totals import Totals
from pipeline.samples.loader import StepLoader


class Evaluation:
    """The held-out samples of a run, together and by source."""

    def __init__(
        self,
        loaders: Mapping[str, StepLoader[HostBatch]],
        terms: Mapping[str, Term],
        sources: Sequence[str],
        *,
        micro_batches: int,
        before_batch: Callable[[int], None],
    ) -> None:
        """
        Args:
            loaders: the samples of everything under the name "", and of each source under its own.
            terms: of the loss, by name.
            sources: names of the sources that are told apart among the samples of everything.
            micro_batches: read from each loader, over all ranks.
            before_batch: called with the number of every micro-batch.
        """
        self._loaders = loaders
        self._terms = terms
        self._weights = {name: term.weight for name, term in terms.items()}
        self._sources = sources
        self._micro_batches = micro_batches
        self._before_batch = before_batch

    @torch.no_grad()
    def measure(self, engine: TrainingEngine, rank: Rank, beat: Callable[[], None]) -> dict[str, float]:
        """The metrics of `terms.metric_names`, and `TERM/loss/SOURCE` of every source; where sources are measured
        alone, all metrics of each.

        All ranks must call it.

        Args:
            beat: called before every micro-batch, as a sign of life.
        """
        engine.eval()
        found = {}
        for source, loader in self._loaders.items():
            names = () if source else self._sources
            totals = Totals(self._weights, names, engine.device)
            metrics = self._mean(engine, loader, totals, rank, beat)
            metrics = with_perplexities(metrics, self._terms)
            found |= {f"{name}/{source}": value for name, value in metrics.items()} if source else metrics
        engine.train()
        return found

    def _mean(
        self,
        engine: TrainingEngine,
        loader: StepLoader[HostBatch],
        totals: Totals,
        rank: Rank,
        beat: Callable[[], None],
    ) -> dict[str, float]:
        counts = dict.fromkeys(self._weights, 0.0)
        for turn in range(-(-self._micro_batches // rank.world_size)):
            beat()
            number = turn * rank.world_size + rank.rank
            # All ranks run equally many passes (ZeRO-3 gathers weights in each); surplus ones are not counted.
            batch = loader.micro_batch(0, min(number, self._micro_batches - 1))
            self._before_batch(batch.number)
            losses, correct = engine(**batch.data.on(engine.device))
            if number < self._micro_batches:
                totals.add(losses, correct, batch.data.sources_on(engine.device))
                counts = {term: counts[term] + batch.data.counts[term] for term in counts}
        sums, all_counts = summed(totals.sums, list(counts.values()))
        return totals.means(sums, dict(zip(counts, all_counts, strict=True)))
