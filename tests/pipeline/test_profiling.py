"""A profile says what the parts of a step take: measured on a real network with a real collective."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.pretrain.measuring.profiling import COLLECTIVES, MAX_PROFILED_RANKS, OTHER, StepProfiler
from pipeline.runs.settings import ProfileConfig

PARTS = ("data", "forward", "backward", "optimizer")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A gloo group of this process alone: its collectives are real, and appear in traces."""
    place = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(profiler: StepProfiler, steps: range) -> None:
    network = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(network.parameters())
    for update in steps:
        profiler.step(update)
        with profiler.part("data"):
            batch = torch.randn(64, 256)
        for _ in range(2):
            with profiler.part("forward"):
                loss = network(batch).square().mean()
            with profiler.part("backward"):
                loss.backward()
                for parameter in network.parameters():
                    dist.all_reduce(parameter.grad)
        with profiler.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        torch.randn(1000).sort()  # belongs to no part
    profiler.close()


def rows_of(directory: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((directory / f"{name}.parts.json").read_text())


@pytest.fixture(scope="module")
def profiled(group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "profile"
    train(StepProfiler(ProfileConfig(steps=(3, 5)), directory, 0), range(8))
    return directory


def test_parts_add_up_to_the_steps(profiled: Path):
    rows = {row["part"]: row for row in rows_of(profiled, "rank-0-steps-3-5")}
    assert set(rows) == {*PARTS, OTHER, COLLECTIVES}
    assert sum(rows[part]["share"] for part in (*PARTS, OTHER)) == pytest.approx(1)
    assert all(row["wall_s"] > 0 for row in rows.values())
    assert {part: rows[part]["calls"] for part in PARTS} == dict(zip(PARTS, (2, 4, 4, 2), strict=True))


def test_collectives_are_a_share_of_the_part_that_calls_them(profiled: Path):
    rows = {row["part"]: row for row in rows_of(profiled, "rank-0-steps-3-5")}
    assert rows[COLLECTIVES]["calls"] == 2 * 2 * 4
    assert rows[COLLECTIVES]["wall_s"] < rows["backward"]["wall_s"]


def test_the_slowest_operators_are_in_the_table_of_torch(profiled: Path):
    assert "aten::addmm" in (profiled / "rank-0-steps-3-5.operators.txt").read_text()


def test_wall_time_of_a_part_is_that_of_its_marks_in_the_trace(profiled: Path):
    events = json.loads((profiled / "rank-0-steps-3-5.json").read_text())["traceEvents"]
    marks = [event["dur"] for event in events if event.get("name") == "cloze.part forward"]
    assert len(marks) == 4
    rows = rows_of(profiled, "rank-0-steps-3-5")
    total_s = sum(row["wall_s"] for row in rows if row["part"] == "forward")
    assert total_s == pytest.approx(sum(marks) / 1e6, rel=1e-3)


def test_text_names_every_part(profiled: Path):
    text = (profiled / "rank-0-steps-3-5.parts.txt").read_text()
    assert "steps 3 to 4" in text
    assert all(part in text for part in (*PARTS, OTHER, COLLECTIVES))


def test_profile_of_steps_that_the_run_does_not_finish_is_written_when_it_ends(group: None, tmp_path: Path):
    train(StepProfiler(ProfileConfig(steps=(1, 50)), tmp_path, 0), range(3))
    rows = {row["part"]: row["calls"] for row in rows_of(tmp_path, "rank-0-steps-1-3")}
    assert rows["data"] == 2


def test_run_resumed_behind_the_steps_profiles_nothing(group: None, tmp_path: Path):
    train(StepProfiler(ProfileConfig(steps=(1, 3)), tmp_path, 0), range(3, 5))
    train(StepProfiler(None, tmp_path, 0), range(3))
    train(StepProfiler(ProfileConfig(steps=(1, 3)), tmp_path, MAX_PROFILED_RANKS), range(3))
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_is_told_and_a_place_that_takes_nothing_ends_no_run(group: None, tmp_path: Path):
    told: list[tuple[str, dict[str, Any]]] = []

    def record(event: str, **details: Any) -> None:
        told.append((event, details))

    config = ProfileConfig(steps=(1, 2))
    train(StepProfiler(config, tmp_path / "profile", 0, record), range(3))
    train(StepProfiler(config, tmp_path / "other", 1, record), range(3))
    assert [event for event, _ in told] == ["profiled"]
    assert Path(told[0][1]["table"]).is_file()
    (tmp_path / "file").write_text("")
    train(StepProfiler(config, tmp_path / "file", 0, record), range(3))
    assert [event for event, _ in told] == ["profiled", "profile-failed"]


def test_marks_outside_of_a_profile_are_one_object_that_does_nothing(tmp_path: Path):
    profiler = StepProfiler(None, tmp_path, 0)
    assert profiler.part("forward") is profiler.part("backward")
