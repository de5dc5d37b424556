"""Several processes against one."""

from __future__ import annotations

import pytest

from tests.pipeline.tune import launched_run


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> dict[str, dict]:
    """What one process (this one) and what two report; see `launched_run.py`."""
    one = tmp_path_factory.mktemp("one")
    launched_run.main(one)
    two = launched_run.launch_two(launched_run.__file__, tmp_path_factory.mktemp("two"))
    return {"one": launched_run.read_report(one), "two": two}


def test_every_evaluation_example_counts_once_in_any_number_of_processes(launched):
    assert launched["one"]["processes"] == 1
    assert launched["two"]["processes"] == 2
    assert launched["two"]["gathered"] == launched["one"]["gathered"]
    assert all(int(count) == found for count, found in launched["two"]["gathered"].items())


def test_two_processes_compute_the_scores_of_one(launched):
    one, two = launched["one"]["scores"], launched["two"]["scores"]
    assert [score["num_evaluation_examples"] for score in one + two] == [45, 13, 13] * 2
    assert [score["metrics"] for score in one] == [score["metrics"] for score in two]
    assert one[0]["metrics"]["accuracy"] > 0.95
    losses, of_two = (
        [[epoch["loss"] for epoch in score["epochs"]] for score in scores] for scores in (one, two)
    )
    assert [pytest.approx(of_score, rel=1e-4) for of_score in losses] == of_two, (
        "not the share of one process"
    )
    assert all(last < first for first, *_, last in losses)


def test_two_processes_answer_and_write_what_one_does(launched):
    assert launched["one"]["answers"] == launched["two"]["answers"]
    assert launched["one"]["summaries"] == launched["two"]["summaries"]
    assert len(launched["one"]["answers"]) == len(launched["one"]["summaries"]) == 13


def test_two_processes_compute_the_logits_of_one_up_to_summation_order(launched):
    for left, right in zip(launched["one"]["logits"], launched["two"]["logits"], strict=True):
        assert left == pytest.approx(right, abs=1e-4)
