"""Held-out samples are the same ones, however they are cut and shared out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cluster.group import Rank
from data_prep.token_store import TokenStore
from pipeline.objectives.base import Term
from pipeline.pretrain import evaluation
from pipeline.pretrain.batches import HostBatch
from pipeline.pretrain.evaluation import Evaluation
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.mixture import StoreShare
from pipeline.samples.packed import Packed

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
    dataset = TokenDataset([share], sequence_length=16, seed=1, held_out=0.2, split="held_out")
    expected = (dataset.identify(np.arange(SAMPLES))[0].astype(np.float64) ** 2).sum()
    of_ranks: list[tuple[float, float]] = []

    def summed(sums: Tensor, others: list[float]) -> tuple[list[float], list[float]]:
        of_ranks.append((float(sums[0]), others[0]))
        return sums.tolist(), others

    monkeypatch.setattr(evaluation, "summed", summed)
    engine: Any = Engine()
    for micro_batch_size, workers in ((64, 1), (6, 1), (9, 4), (100, 3)):
        measure = Evaluation(
            {"": dataset},
            prepare,
            {"mlm": Term()},
            (),
            samples=SAMPLES,
            micro_batch_size=micro_batch_size,
            lengths=lengths,
            before_batch=lambda number: None,
        ).measure
        of_ranks.clear()
        for rank in range(workers):
            measure(engine, Rank(rank, workers, rank, 1), lambda: None)
        assert np.sum(of_ranks, axis=0).tolist() == [expected, SAMPLES]
