"""What a fault cost, from the heartbeats of rank 0."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.progress import Progress, Seen


def test_pauses_and_repeated_updates_are_those_of_the_fault_before_them(tmp_path: Path):
    progress = Progress(tmp_path / "none")
    progress.close()
    # Ten updates in ten seconds, a kill, a start from update 8 that trains from second 25 on, a pause of ten. The two
    # processes have one number.
    first, second = (7, 1.0), (7, 90.0)
    progress.seen = [Seen(0.0, first, -1), *(Seen(float(step), first, step) for step in range(1, 11))]
    progress.seen += [Seen(20.0, second, -1), Seen(24.0, second, 8)]
    progress.seen += [Seen(25.0 + number, second, 9 + number) for number in range(6)]
    progress.seen += [Seen(40.0, second, 15), Seen(41.0, second, 16)]
    end = float("inf")
    # The third has no update between its moments, the last begins with a fault before the first update.
    between = [(10.5, 29.5), (29.5, end), (11.0, 12.0), (0.5, 1.5)]
    assert [progress.pause_s(*moments) for moments in between] == [15.0, 10.0, 15.0, 1.5]
    assert [progress.repeated(*moments) for moments in between[:2]] == [2, 0]
    assert [progress.has_moved_since(at_s) for at_s in (30.5, 40.5)] == [True, False]
