"""Fine-tuning by several processes: each with all weights, against one process, or sharded by DeepSpeed ZeRO."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.tune.launched_run import every_form, launch


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of this process and of two."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    return every_form(one), launch(two, "every form")


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, Any]:
    """The reports of all cases of sharding, in two processes."""
    return {
        name: case
        for precision in ("fp32", "bf16")
        for name, case in launch(tmp_path_factory.mktemp(precision), precision).items()
    }


def test_every_evaluation_example_counts_once_in_any_number_of_processes(one_and_two):
    one, two = one_and_two
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["gathered"] == two["gathered"]
    assert all(int(count) == found for count, found in two["gathered"].items())


def test_two_processes_compute_the_scores_of_one_up_to_summation_order(one_and_two):
    one, two = (report["scores"] for report in one_and_two)
    assert [score["num_evaluation_examples"] for score in one + two] == [45, 13, 13] * 2
    assert [score["metrics"] for score in one] == [score["metrics"] for score in two]
    assert one[0]["metrics"]["accuracy"] > 0.95
    losses, of_two = ([[epoch["loss"] for epoch in score["epochs"]] for score in own] for own in (one, two))
    # Not the share of one process.
    assert [pytest.approx(each, rel=1e-4) for each in losses] == of_two
    assert all(last < first for first, *_, last in losses)
    for left, right in zip(*(report["logits"] for report in one_and_two), strict=True):
        assert left == pytest.approx(right, abs=1e-4)
    for written in ("answers", "summaries"):
        assert len(one_and_two[0][written]) == 13
        assert one_and_two[0][written] == one_and_two[1][written]


@pytest.mark.parametrize(
    ("sharded", "plain"),
    [
        ("stage 0", "plain"),
        ("stage 1", "plain"),
        ("stage 3", "plain"),
        ("stage 2, lora", "plain, lora"),
        ("stage 2, bf16", "plain, bf16"),
    ],
)
def test_every_stage_computes_the_scores_of_plain_training_up_to_summation_order(cases, sharded, plain):
    one, two = cases[plain], cases[sharded]
    assert cases["plain"]["metrics"][-1]["accuracy"] > 0.9
    # Another order of summation changes roundings to bfloat16, too, and with them one choice of 45 between near ties.
    near, ties = (1e-3, 1.01 / 45) if "bf16" in plain else (1e-5, 0.0)
    for epoch, other in zip(one["metrics"], two["metrics"], strict=True):
        assert epoch == pytest.approx(other, abs=ties)
    assert one["losses"] == pytest.approx(two["losses"], abs=near)
    for left, right in zip(one["logits"], two["logits"], strict=True):
        assert left == pytest.approx(right, abs=10 * near)
    assert one["weights"] == pytest.approx(two["weights"], abs=10 * near)
    assert bool(one["weights"]) == ("lora" not in plain)


def test_zero_3_trains_in_a_process_that_no_launcher_started(tmp_path):
    assert launch(tmp_path, "alone", processes=1)["losses"]


def test_stopped_sharded_training_is_bit_identical_to_an_uninterrupted_one(cases):
    assert cases["stage 3 -> stage 3"] == cases["stage 3"]


@pytest.mark.parametrize("change", ["stage 1 -> plain", "plain -> stage 1"])
def test_stopped_training_continues_in_another_stage(cases, change):
    assert cases[change]["losses"] == pytest.approx(cases["plain"]["losses"], abs=1e-5)
    assert cases[change]["metrics"] == cases["plain"]["metrics"]
