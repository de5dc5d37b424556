"""Which samples each step has."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.run.skipped_data import SkippedData
from pipeline.samples.batch_plan import BatchPlan

stages = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=3)


@given(stages=stages, size=st.integers(1, 4), micro=st.integers(1, 3), since=st.integers(0, 8))
def test_steps_read_every_sample_once_and_in_order(
    stages: list[tuple[int, int]], size: int, micro: int, since: int
):
    warmup = tuple((steps, micro * count) for steps, count in stages)
    plan = BatchPlan(micro * size, micro, warmup)
    read = [
        plan.samples(step, number, since=since)
        for step in range(since, since + 20)
        for number in range(plan.num_micro_batches(step))
    ]
    assert np.concatenate(read).tolist() == list(range(plan.samples_between(since, since + 20)))


def test_the_batch_grows_stage_by_stage():
    plan = BatchPlan(8, 2, ((2, 2), (1, 4)))
    assert [plan.samples_at(step) for step in range(5)] == [2, 2, 4, 8, 8]
    assert plan.samples(3, 1).tolist() == [10, 11]


@given(st.sets(st.integers(0, 30), max_size=8), st.integers(0, 40))
def test_updates_read_the_data_steps_that_are_not_left_out(skipped: set[int], update: int):
    kept = [step for step in range(200) if step not in skipped]
    assert SkippedData(skipped).data_step(update) == kept[update]
