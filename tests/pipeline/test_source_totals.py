"""The mean loss of every source is over its own predictions in all micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.losses import EACH
from pipeline.pretrain.batches import Totals

NAMES = ["books", "common_crawl", "wikipedia"]


def add(totals: Totals, each: Tensor, sources: Tensor, *terms: str) -> None:
    totals.add(dict.fromkeys(terms, each.sum()), {EACH: each}, sources)


def by_source(means: dict[str, float]) -> dict[str, float]:
    return {name: mean for name, mean in means.items() if name.count("/") == 2}


def test_means_are_over_all_micro_batches_of_all_ranks():
    ranks = [Totals({"mlm": 1.0}, NAMES, torch.device("cpu")) for _ in range(2)]
    add(ranks[0], torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 2]), "mlm")
    add(ranks[0], torch.tensor([]), torch.tensor([], dtype=torch.int64), "mlm")
    add(ranks[1], torch.tensor([4.0, 100.0]), torch.tensor([2, -1]), "mlm")
    found = ranks[0].means((ranks[0].sums + ranks[1].sums).tolist(), {"mlm": 5.0})
    assert by_source(found) == {"mlm/loss/books": 1.0, "mlm/loss/wikipedia": pytest.approx(4.0)}


def test_of_several_terms_the_first_is_named():
    terms = {"forward": 0.5, "backward": 0.5}
    totals = Totals(terms, NAMES, torch.device("cpu"))
    add(totals, torch.tensor([3.0]), torch.tensor([1]), *terms)
    assert by_source(totals.means(totals.sums.tolist(), dict.fromkeys(terms, 1.0))) == {
        "forward/loss/common_crawl": 3.0
    }
