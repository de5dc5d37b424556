"""Loss on held-out samples: a fixed list of them, cut into micro-batches, shared out over ranks, each counted once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cluster.collectives import summed
from cluster.group import Rank
from pipeline.engine.deepspeed.engine import Engine
from pipeline.pretrain.batches import HostBatch, Totals, seed_dropout
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.loader import Lengths, sorted_by_length
from pipeline.samples.packed import Packed
from pipeline.terms import Term, with_perplexities


@dataclass
class Evaluation:
    """The held-out samples of a run, together and by source."""

    held_out: Mapping[str, TokenDataset]
    """The samples of everything under the name "", and of each source under its own."""
    prepare: Callable[[Packed], HostBatch]
    """Makes a micro-batch of samples."""
    terms: Mapping[str, Term]
    """The terms of the loss by name."""
    sources: Sequence[str]
    """Names of the sources that are distinguished among the samples of everything."""
    samples: int
    """Samples read from each dataset, over all ranks: its first ones."""
    micro_batch_size: int
    """Samples in a forward pass; the last one of a dataset may have fewer."""
    lengths: Lengths | None
    """The samples are sorted by them; None leaves them in their order."""
    seed: int
    """The run's seed: networks that draw tokens draw the same ones at every evaluation."""

    @property
    def weights(self) -> dict[str, float]:
        """By loss term, its weight in the loss."""
        return {name: term.weight for name, term in self.terms.items()}

    @torch.no_grad()
    def measure(self, engine: Engine, rank: Rank, beat: Callable[[], None]) -> dict[str, float]:
        """The metrics of `terms.metric_names`, `TERM/loss_standard_error`, and `TERM/loss/SOURCE` of every source;
        where sources are measured alone, all metrics of each.

        All ranks must call it.

        Args:
            beat: called before every micro-batch, as a sign of life.
        """
        engine.eval()
        found = {}
        for source, dataset in self.held_out.items():
            names = () if source else self.sources
            totals = Totals(self.weights, names, engine.device)
            metrics = self._mean(engine, dataset, totals, rank, beat)
            metrics = with_perplexities(metrics, self.terms)
            found |= {f"{name}/{source}": value for name, value in metrics.items()} if source else metrics
        engine.train()
        return found

    def _mean(
        self,
        engine: Engine,
        dataset: TokenDataset,
        totals: Totals,
        rank: Rank,
        beat: Callable[[], None],
    ) -> dict[str, float]:
        samples = np.arange(self.samples)
        if self.lengths is not None:
            samples = sorted_by_length(dataset, samples, self.lengths)
        batches = np.split(samples, range(self.micro_batch_size, self.samples, self.micro_batch_size))
        counts = dict.fromkeys(self.weights, 0.0)
        # [terms, 3]: the products l l, l n and n n, added up over micro-batches.
        squares = torch.zeros((len(self.weights), 3), dtype=torch.float64, device=engine.device)
        for turn in range(-(-len(batches) // rank.world_size)):
            beat()
            number = turn * rank.world_size + rank.rank
            # All ranks run equally many passes (ZeRO-3 gathers weights in each); surplus ones are not counted.
            read = min(number, len(batches) - 1)
            batch = self.prepare(dataset.batch(batches[read]))
            seed_dropout(self.seed, 0, read)
            losses, correct = engine(**batch.on(engine.device))
            if number == read:
                totals.add(losses, correct, batch.sources_on(engine.device))
                # Sums of l^2, l*n and n^2 over micro-batches with summed loss l and n predictions.
                sums = torch.stack([losses[term].double() for term in self.weights])
                numbers = sums.new_tensor([batch.counts[term] for term in self.weights])
                squares += torch.stack([sums * sums, sums * numbers, numbers * numbers], dim=-1)
                counts = {term: counts[term] + batch.counts[term] for term in counts}
        own = torch.cat([totals.sums, squares.flatten()])
        everywhere, all_counts = summed(own, list(counts.values()))
        counts = dict(zip(counts, all_counts, strict=True))
        products = np.reshape(everywhere[len(totals.sums) :], squares.shape)
        means = totals.means(everywhere[: len(totals.sums)], counts)
        if len(batches) < 2:
            return means
        return means | {
            f"{term}/loss_standard_error": standard_error(means[f"{term}/loss"], count, len(batches), row)
            for (term, count), row in zip(counts.items(), products, strict=True)
        }


def standard_error(mean: float, count: float, groups: int, products: Sequence[float]) -> float:
    """The standard error of a mean loss, in nats, from micro-batches as independent groups of predictions: predictions
    of one document are alike, and would by themselves promise too small an error (the ratio estimator of Cochran 1977,
    Sampling Techniques, section 2.11).

    Args:
        mean: loss of a prediction.
        count: predictions.
        groups: micro-batches, at least 2.
        products: [3] sums over micro-batches of l l, l n and n n, for summed loss l and number of predictions n.
    """
    loss_loss, loss_count, count_count = products
    residuals = max(0.0, loss_loss - 2 * mean * loss_count + mean * mean * count_count)
    return math.sqrt(residuals * groups / (groups - 1)) / max(count, 1.0)
