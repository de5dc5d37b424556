"""Held-out samples are the same ones, however they are cut and shared out; means by source; standard errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cluster.group import Rank
from data_prep.token_store import TokenStore
from models.losses import EACH
from pipeline.pretrain import evaluation
from pipeline.pretrain.batches import HostBatch, Totals
from pipeline.pretrain.evaluation import Evaluation, standard_error
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.mixture import Sampling, StoreShare
from pipeline.samples.packed import Packed
from pipeline.terms import Term

SAMPLES = 64


class Engine:
    """Its loss is the sum of samples' squared numbers."""

    device = torch.device("cpu")

    def __call__(self, ids: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"mlm": (ids.double() ** 2).sum()}, {}

    def eval(self) -> None: ...

    def train(self) -> None: ...


def prepare(packed: Packed) -> HostBatch:
    ids = torch.from_numpy(packed.sample_ids.astype(np.int64))
    return HostBatch({"ids": ids}, {"mlm": len(ids)}, packed.sample_ids, None)


def by_remainder(sample_ids: np.ndarray, epochs: np.ndarray, length: int) -> np.ndarray:
    return (sample_ids % 5).astype(np.int64)


@pytest.mark.parametrize("lengths", [None, by_remainder])
def test_the_same_samples_are_measured_whatever_the_micro_batches_and_workers(
    store: Path, lengths: Any, monkeypatch: pytest.MonkeyPatch
):
    share = StoreShare(TokenStore.open(store))
    dataset = TokenDataset([share], Sampling(sequence_length=16, seed=1, held_out=0.2, split="held_out"))
    expected = (dataset.identify(np.arange(SAMPLES))[0].astype(np.float64) ** 2).sum()
    of_ranks: list[tuple[float, float]] = []

    def summed(sums: Tensor, others: list[float]) -> tuple[list[float], list[float]]:
        of_ranks.append((float(sums[0]), others[0]))
        return sums.tolist(), others

    monkeypatch.setattr(evaluation, "summed", summed)
    engine: Any = Engine()
    for micro_batch_size, workers in ((64, 1), (6, 1), (9, 4), (100, 3)):
        sizes = {"samples": SAMPLES, "micro_batch_size": micro_batch_size, "lengths": lengths, "seed": 0}
        measure = Evaluation({"": dataset}, prepare, {"mlm": Term()}, (), **sizes).measure
        of_ranks.clear()
        for rank in range(workers):
            measure(engine, Rank(rank, workers, rank, 1), lambda: None)
        assert np.sum(of_ranks, axis=0).tolist() == [expected, SAMPLES]


def test_means_of_sources_are_over_all_micro_batches_of_all_ranks_for_the_first_term():
    terms = {"forward": 0.5, "backward": 0.5}
    ranks = [Totals(terms, ["books", "common_crawl", "wikipedia"], torch.device("cpu")) for _ in range(2)]
    batches = (0, [1.0, 2.0, 6.0], [0, 2, 2]), (0, [], []), (1, [4.0, 100.0], [2, -1])
    for rank, each, sources in batches:
        losses = torch.tensor(each)
        numbers = torch.tensor(sources, dtype=torch.int64)
        ranks[rank].add(dict.fromkeys(terms, losses.sum()), {EACH: losses}, numbers)
    found = ranks[0].means((ranks[0].sums + ranks[1].sums).tolist(), dict.fromkeys(terms, 5.0))
    assert {name: mean for name, mean in found.items() if name.count("/") == 2} == {
        "forward/loss/books": 1.0,
        "forward/loss/wikipedia": pytest.approx(4.0),
    }


def measured(losses: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Mean loss of a prediction, and its standard error, from the micro-batches of one evaluation."""
    products = [(losses * losses).sum(), (losses * counts).sum(), (counts * counts).sum()]
    mean = losses.sum() / counts.sum()
    return mean, standard_error(mean, counts.sum(), len(losses), products)


def test_it_is_the_error_of_a_mean_where_micro_batches_are_equally_large():
    means = np.random.Generator(np.random.Philox(1)).normal(5.0, 0.3, 64)
    _, error = measured(20 * means, np.full(64, 20.0))
    assert error == pytest.approx(means.std(ddof=1) / 8)
    assert measured(np.array([10.0, 20.0]), np.array([5.0, 10.0])) == (2.0, 0.0)


def test_it_is_the_spread_of_the_loss_over_evaluations_with_alike_predictions_and_unequal_micro_batches():
    generator = np.random.Generator(np.random.Philox(2))
    found = []
    for _ in range(400):
        counts = generator.integers(10, 30, 100).astype(float)
        # Predictions of a micro-batch share a difficulty: they are no independent draws.
        losses = counts * generator.normal(5.0, 0.4, 100) + np.sqrt(counts) * generator.normal(0, 0.2, 100)
        found.append(measured(losses, counts))
    means, errors = np.array(found).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.1)
