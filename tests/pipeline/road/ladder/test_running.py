"""Stages side by side, in order, with real processes that note when they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.artefacts.errors import CorruptArtefactError, StagesFailedError
from pipeline.config.loading import validate
from pipeline.road.ladder import stages as running
from pipeline.road.ladder.config import Ladder, LadderConfig
from pipeline.road.ladder.stages import Stage, run_stages

NOTE = """
import sys, time
from pathlib import Path
directory, name, code = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with (directory / "order").open("a") as order: order.write(f"+{name} ")
print("this is the output of", name)
time.sleep(0.2)
with (directory / "order").open("a") as order: order.write(f"-{name} ")
if not code: (directory / f"{name}.done").touch()
sys.exit(code)
"""


def noted(
    ladder: Ladder, name: str, needs: tuple[str, ...] = (), *, alone: bool = False, exit_code: int = 0
) -> Stage:
    """A stage that is finished when its file is there."""
    out = ladder.config.out

    def place() -> Path | None:
        return path if (path := out / f"{name}.done").exists() else None

    command = [sys.executable, "-c", NOTE, str(out), name, str(exit_code)]
    return Stage("data" if alone else "pretrain", name, place, lambda: command, needs)


@pytest.fixture
def ladder(tmp_path: Path) -> Ladder:
    comparison = {"title": "t", "order": "a < b", "tasks": ["x"], "source": "s", "finding": "f"}
    plain = {
        "name": "noted",
        "out": str(tmp_path),
        "runs_dir": str(tmp_path / "runs"),
        "data": ["data.yaml"],
        "tokens": 1,
        "seeds": [1, 2],
        "finetune": "finetune.yaml",
        "arms": {"a": {"pretrain": "a.yaml"}, "b": {"pretrain": "b.yaml"}},
        "comparisons": {"c": comparison},
    }
    return Ladder(validate(LadderConfig, plain, "test"), tmp_path / "ladder.yaml", {}, {})


def seconds_of(ladder: Ladder, stage: Stage) -> None:
    """No stage has recorded its time; that of "unreadable" cannot be read."""
    if stage.name == "unreadable" and stage.place() is not None:
        raise CorruptArtefactError("a checkpoint is missing")


@pytest.fixture
def order_of(ladder: Ladder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run stages, and tell the order in which they began (+) and ended (-)."""

    def ran(*stages: Stage) -> list[str]:
        monkeypatch.setattr(running, "stages_of", lambda _: {stage.name: stage for stage in stages})
        monkeypatch.setattr(running, "seconds_of", seconds_of)
        run_stages(ladder, "cloze ladder ladder.yaml")
        return (ladder.config.out / "order").read_text().split()

    return ran


def most_at_once(order: list[str]) -> int:
    running_now = [sum(1 if each[0] == "+" else -1 for each in order[: n + 1]) for n in range(len(order))]
    return max(running_now)


def test_two_run_at_once_and_none_before_those_that_it_needs(ladder: Ladder, order_of):
    stages = [
        noted(ladder, "data", alone=True),
        noted(ladder, "one", ("data",)),
        noted(ladder, "tuned-one", ("one",)),
        noted(ladder, "two", ("data",)),
        noted(ladder, "three", ("data",)),
        noted(ladder, "more-data", alone=True),
        noted(ladder, "four", ("more-data",)),
    ]
    order = order_of(*stages)
    assert order[:2] == ["+data", "-data"]
    assert most_at_once(order) == 2
    assert order.index("-one") < order.index("+tuned-one")
    assert order[order.index("+more-data") + 1] == "-more-data"
    assert len(order) == 2 * len(stages)


def test_an_estimate_that_cannot_be_made_ends_no_stage(ladder: Ladder, order_of):
    order = order_of(noted(ladder, "unreadable"), noted(ladder, "next", ("unreadable",)))
    assert order == ["+unreadable", "-unreadable", "+next", "-next"]


def test_finished_data_keeps_no_stage_waiting(ladder: Ladder, order_of):
    (ladder.config.out / "data.done").touch()
    data = noted(ladder, "data", alone=True)
    order = order_of(data, *(noted(ladder, name, ("data",)) for name in "abcd"))
    # The second one starts before the first has ended, and the third after one of them.
    assert {*order[:2]} == {"+a", "+b"}
    assert most_at_once(order) == 2


def test_failed_stage_stops_only_those_that_need_it(ladder: Ladder, order_of):
    bad, after_bad = noted(ladder, "bad", exit_code=10), noted(ladder, "after-bad", ("bad",))
    with pytest.raises(StagesFailedError) as caught:
        order_of(bad, after_bad, noted(ladder, "good"))
    assert "exit code 10" in str(caught.value)
    assert "this is the output of bad" in str(caught.value)
    assert "1 of 3" in caught.value.kept
    assert "after-bad" not in (ladder.config.out / "order").read_text()


def test_stage_that_makes_nothing_has_failed(ladder: Ladder, order_of):
    nothing = replace(noted(ladder, "idle"), place=lambda: None)
    with pytest.raises(StagesFailedError, match="idle"):
        order_of(nothing)
