"""The mean loss of every source is over its own predictions in all micro-batches."""

from __future__ import annotations

import pytest
import torch

from pipeline.pretrain.step.source_totals import SourceTotals

NAMES = ["books", "common_crawl", "wikipedia"]


def test_means_are_over_all_micro_batches_of_all_ranks():
    ranks = [SourceTotals(NAMES, {"mlm": 1.0}, torch.device("cpu")) for _ in range(2)]
    ranks[0].add(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 2]))
    ranks[0].add(torch.tensor([]), torch.tensor([], dtype=torch.int64))
    ranks[1].add(torch.tensor([4.0, 100.0]), torch.tensor([2, -1]))
    sums = (ranks[0].sums + ranks[1].sums).tolist()
    assert ranks[0].means(sums) == {"mlm/loss/books": 1.0, "mlm/loss/wikipedia": pytest.approx(4.0)}


def test_of_several_terms_the_first_is_named():
    totals = SourceTotals(NAMES, {"forward": 0.5, "backward": 0.5}, torch.device("cpu"))
    totals.add(torch.tensor([3.0]), torch.tensor([1]))
    assert totals.means(totals.sums.tolist()) == {"forward/loss/common_crawl": 3.0}
