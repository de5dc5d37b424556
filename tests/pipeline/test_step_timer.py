"""A profile says what the parts of a step take: measured on a real network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.pretrain.step_timer import MAX_PROFILED_RANKS, StepTimer
from pipeline.run.settings import ProfileConfig

CPU = torch.device("cpu")


def train(timer: StepTimer, steps: range) -> None:
    network = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(network.parameters())
    for update in steps:
        timer.start_step(update)
        with timer.part("data"):
            batch = torch.randn(64, 256)
        for _ in range(2):
            with timer.part("forward"):
                loss = network(batch).square().mean()
            with timer.part("backward"):
                loss.backward()
        with timer.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        torch.randn(1000).sort()  # belongs to no part
    timer.close()


def calls_in(table: str) -> dict[str, int]:
    """By part, how often it is counted in torch's table, whose last column is the number of calls."""
    rows = (line.split() for line in table.splitlines() if line.strip().startswith("cloze.part"))
    return {row[1]: int(row[-1]) for row in rows}


def test_table_and_trace_have_every_part_of_the_profiled_steps_and_operators(tmp_path: Path):
    train(StepTimer(CPU, ProfileConfig(steps=(3, 5)), tmp_path, 0), range(8))
    table = (tmp_path / "rank-0-steps-3-5.txt").read_text()
    assert calls_in(table) == {"data": 2, "forward": 4, "backward": 4, "optimizer": 2}
    assert "aten::addmm" in table
    events = json.loads((tmp_path / "rank-0-steps-3-5.json").read_text())["traceEvents"]
    assert len([event for event in events if event.get("name") == "cloze.part forward"]) == 4


def test_a_profile_is_written_when_the_run_ends_before_it_and_not_behind_its_steps(tmp_path: Path):
    train(StepTimer(CPU, ProfileConfig(steps=(1, 3)), tmp_path, 0), range(3, 5))
    train(StepTimer(CPU, None, tmp_path, 0), range(3))
    train(StepTimer(CPU, ProfileConfig(steps=(1, 3)), tmp_path, MAX_PROFILED_RANKS), range(3))
    assert list(tmp_path.iterdir()) == []
    train(StepTimer(CPU, ProfileConfig(steps=(1, 50)), tmp_path, 0), range(3))
    assert calls_in((tmp_path / "rank-0-steps-1-3.txt").read_text())["data"] == 2


def test_what_was_written_is_told_and_a_place_that_takes_nothing_ends_no_run(tmp_path: Path):
    told: list[tuple[str, dict[str, Any]]] = []

    def record(event: str, **details: Any) -> None:
        told.append((event, details))

    (tmp_path / "file").write_text("")
    for place, rank in (("profile", 0), ("other", 1), ("file", 0)):
        train(StepTimer(CPU, ProfileConfig(steps=(1, 2)), tmp_path / place, rank, record), range(3))
    assert [event for event, _ in told] == ["profiled", "profile-failed"]
    assert Path(told[0][1]["table"]).is_file()
