"""Order, micro-batches and padding."""

from __future__ import annotations

import numpy as np
import pytest

from data_prep.ragged import Ragged
from pipeline.tune.batches import UpdatePlan, example_order, pad_rows, sample_examples


def test_order_is_a_pure_function_of_seed_and_epoch():
    assert example_order(1, 0, 50).tolist() == example_order(1, 0, 50).tolist()
    assert sorted(example_order(1, 0, 50)) == list(range(50))
    assert example_order(1, 0, 50).tolist() != example_order(1, 1, 50).tolist()
    assert example_order(1, 0, 50).tolist() != example_order(2, 0, 50).tolist()


@pytest.mark.parametrize(("examples", "batch", "micro"), [(10, 4, 2), (10, 4, 3), (7, 8, 8), (1, 4, 1)])
def test_every_example_is_in_one_micro_batch_of_every_epoch(examples, batch, micro):
    plan = UpdatePlan(examples, 2, batch, micro, seed=1)
    batches = plan.epoch_batches(1)
    assert len(batches) == plan.updates_per_epoch
    pieces = [piece for rows in batches for piece in plan.micro_batches(rows)]
    assert sorted(np.concatenate(pieces)) == list(range(examples))
    assert max(map(len, pieces)) <= micro


def test_limited_training_examples_are_a_fixed_sample():
    assert sample_examples(5, None).tolist() == [0, 1, 2, 3, 4]
    assert sample_examples(5, 9).tolist() == [0, 1, 2, 3, 4]
    chosen = sample_examples(1000, 10)
    assert len(set(chosen.tolist())) == 10
    assert chosen.tolist() == sample_examples(1000, 10).tolist() == sorted(chosen)
    assert set(sample_examples(1000, 5)) <= set(chosen)


def test_padding_goes_to_the_longest_of_the_batch_on_the_right():
    rows = Ragged(np.arange(10, 19), np.array([0, 2, 5, 9]))
    padded, present = pad_rows(rows, np.array([1, 0]), fill=1)
    assert padded.tolist() == [[12, 13, 14], [10, 11, 1]]
    assert present.tolist() == [[True, True, True], [True, True, False]]
