"""What a fault cost, from the heartbeats of rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.progress import Progress, Seen

FIRST, SECOND = (7, 1.0), (7, 90.0)
"""Two processes with one number."""


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    """Ten updates in ten seconds, a kill, a start from update 8 that trains from second 25 on, a pause of ten."""
    followed = Progress(tmp_path / "none")
    followed.close()
    followed.seen = [Seen(0.0, FIRST, -1), *(Seen(float(step), FIRST, step) for step in range(1, 11))]
    followed.seen += [Seen(20.0, SECOND, -1), Seen(24.0, SECOND, 8)]
    followed.seen += [Seen(25.0 + number, SECOND, 9 + number) for number in range(6)]
    followed.seen += [Seen(40.0, SECOND, 15), Seen(41.0, SECOND, 16)]
    return followed


def test_a_pause_is_counted_for_the_fault_before_its_end_and_for_no_other(progress: Progress):
    assert progress.pause_s(10.5, 29.5) == 15.0
    assert progress.pause_s(29.5, float("inf")) == 10.0


def test_where_no_update_was_finished_between_two_faults_the_pause_across_them_is_counted(progress: Progress):
    assert progress.pause_s(11.0, 12.0) == 15.0


def test_before_the_first_update_a_pause_begins_with_the_fault(progress: Progress):
    assert progress.pause_s(0.5, 1.5) == 1.5


def test_updates_are_repeated_by_the_process_that_began_after_the_fault(progress: Progress):
    assert progress.repeated(10.5, 29.5) == 2
    assert progress.repeated(29.5, float("inf")) == 0


def test_training_has_moved_once_an_update_began_and_ended_after_the_fault(progress: Progress):
    assert progress.has_moved_since(30.5)
    assert not progress.has_moved_since(40.5)
