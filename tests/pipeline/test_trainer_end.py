"""How a rank's attempt ends: every part is closed, whatever the others do, and the first error is the one raised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from pipeline.run.directory import RunDirectory
from pipeline.run.heartbeat import ENDED, read_heartbeats
from pipeline.run.log.lines import log_size
from tests.pipeline.process_group import Group
from tests.pipeline.ranks import make_run

PROFILER = "pipeline.pretrain.profiling:StepProfiler"
HEARTBEAT = "pipeline.run.heartbeat:Heartbeat"
EXPLODES = ("optimizer.lr=1e30", "schedule.warmup_steps=0", "guards.max_skipped_updates=1")


def end_of(run: RunDirectory, *refusing: str) -> dict[str, Any]:
    """How training ends when these classes raise after they have closed."""
    group = Group("tests.pipeline.refusing_parts", [run.path, *refusing], 1)
    group.wait()
    found = re.search(r"^END (.*)$", group.output, re.MULTILINE)
    assert found is not None, group.output[-3000:]
    return orjson.loads(found[1])


def is_closed(run: RunDirectory) -> bool:
    """Whether the rank's signs of life say that it ended, and the whole log is sealed."""
    (beat,) = read_heartbeats(run)
    stretches = run.log_seals.read_bytes().split(b"\n")
    return beat.part == ENDED and orjson.loads(stretches[-1])["end"] == log_size(run)


@pytest.mark.parametrize("refusing", [(PROFILER,), (PROFILER, HEARTBEAT)])
def test_a_part_that_fails_to_close_hides_no_error_and_leaves_none_open(
    tmp_path: Path, store: Path, refusing: tuple[str, ...]
):
    run = make_run(tmp_path, store, "exploding", *EXPLODES)
    end = end_of(run, *refusing)
    assert end["error"] == "NonFiniteError"
    for part in refusing:
        assert any(f"{part.partition(':')[2]} does not close" in note for note in end["notes"])
    assert is_closed(run)


def test_a_part_that_fails_to_close_after_a_good_end_is_told_and_leaves_none_open(
    tmp_path: Path, store: Path
):
    run = make_run(tmp_path, store, "good", "steps=4")
    end = end_of(run, PROFILER, HEARTBEAT)
    assert (end["error"], end["message"]) == ("ValueError", "StepProfiler does not close")
    assert any("Heartbeat does not close" in note for note in end["notes"])
    assert is_closed(run)


def test_a_rank_that_fails_while_it_starts_takes_its_alarm_back(tmp_path: Path, store: Path):
    run = make_run(tmp_path, store, "early", f"data.stores=[{{path: {tmp_path / 'gone'}}}]")
    assert end_of(run)["error"] == "MissingInputError"
    (beat,) = read_heartbeats(run)
    assert beat.part == ENDED
