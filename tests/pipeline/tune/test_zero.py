"""Fine-tuning sharded by DeepSpeed ZeRO, on two processes."""

from __future__ import annotations

import pytest

from tests.pipeline.tune import zero_run
from tests.pipeline.tune.launched_run import launch, launch_two


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, dict]:
    """What each case of `zero_run.py` reports."""
    # An accelerator computes in one precision for the life of a process.
    plain, half = (tmp_path_factory.mktemp(name) for name in ("fp32", "bf16"))
    return launch_two(zero_run.__file__, plain) | launch_two(zero_run.__file__, half, "bf16")


def test_trainings_of_the_other_tests_learn(cases):
    assert cases["plain"]["metrics"][-1]["accuracy"] > 0.9


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
    # Another order of summation changes roundings to bfloat16, too, and with them one choice of 45 between near ties.
    near, ties = (1e-3, 1.01 / 45) if "bf16" in plain else (1e-5, 0.0)
    for epoch, other in zip(one["metrics"], two["metrics"], strict=True):
        assert epoch == pytest.approx(other, abs=ties)
    assert one["losses"] == pytest.approx(two["losses"], abs=near)
    for left, right in zip(one["logits"], two["logits"], strict=True):
        assert left == pytest.approx(right, abs=10 * near)
    assert one["weights"].keys() == two["weights"].keys()
    for name, total in one["weights"].items():
        assert total == pytest.approx(two["weights"][name], abs=10 * near), name


def test_zero_3_trains_in_a_process_that_no_launcher_started(tmp_path):
    launch(zero_run.__file__, tmp_path, (), "alone")


def test_stopped_sharded_training_is_bit_identical_to_an_uninterrupted_one(cases):
    assert cases["stage 3 -> stage 3"] == cases["stage 3"]


@pytest.mark.parametrize("change", ["stage 1 -> plain", "plain -> stage 1"])
def test_stopped_training_continues_in_another_stage(cases, change):
    assert cases[change]["losses"] == pytest.approx(cases["plain"]["losses"], abs=1e-5)
    assert cases[change]["metrics"] == cases["plain"]["metrics"]
