"""The engine on real ranks, in all ZeRO stages, precisions, optimizers and offloads; one start of ranks for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.engine.deepspeed.masters import placed
from pipeline.optimizers import OPTIMIZERS
from tests.pipeline.engine_ranks import (
    CASES,
    MOVES,
    each_case,
    explore,
    move_between_stages,
    reshard,
    return_to_two,
)
from tests.pipeline.process_group import on_ranks

Part = Callable[..., dict[str, Any]]
TOLERANCES = {"fp32": 1e-6, "bf16": 1e-3, "fp16": 1e-4}
"""Largest difference of a weight between a run on 2, 1 and 2 ranks and a run on 2 ranks: sums in another order, and
gradients rounded to the precision. Measured on weights of up to 1 and updates of 0.01: 1e-7, 9e-5 and 1e-5."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> list[str]:
    """All cases, or those that this session's tests name where it leaves the tests of the whole system out."""
    own = [item for item in request.session.items if item.path == request.path]
    if any(item.get_closest_marker("system") for item in own):
        return list(CASES)
    return [case for case in CASES if any(item.name.endswith(f"[{case}]") for item in own)]


def found_by_ranks(part: Part, directory: Path, workers: int, cases: Iterable[str]) -> list[dict[str, Any]]:
    return on_ranks(each_case, part, directory, str(directory), list(cases), workers=workers)


@pytest.fixture(scope="module")
def explored(directory: Path, cases: list[str]) -> list[dict[str, Any]]:
    """The findings of each of two ranks, by case."""
    return found_by_ranks(explore, directory, 2, cases)


@pytest.fixture(scope="module")
def resharded(directory: Path, cases: list[str], explored: Any) -> dict[str, Any]:
    return found_by_ranks(reshard, directory, 1, cases)[0]


@pytest.fixture(scope="module")
def returned(directory: Path, cases: list[str], resharded: Any) -> dict[str, Any]:
    return found_by_ranks(return_to_two, directory, 2, cases)[0]


@pytest.mark.parametrize("case", CASES)
def test_updates_checkpoints_rollbacks_and_resumptions_are_exact_to_the_bit(
    explored: list[dict[str, Any]], case: str
) -> None:
    assert [rank[case]["outcomes"] for rank in explored] == [["Committed"], []]
    for rank in explored:
        found = rank[case]
        assert found["applied"] == [True, True, True, False, False]
        assert [claim for claim, holds in found.items() if holds is False] == []
        assert found["norms"][0] == pytest.approx(rank["0-fp32"]["norms"][0], rel=1e-2)
        assert all(math.isfinite(norm) for norm in found["norms"])


@pytest.mark.parametrize("case", CASES)
def test_other_workers_and_stages_take_over_every_bit_and_end_alike_but_for_rounding(
    resharded: dict[str, Any], returned: dict[str, Any], case: str
) -> None:
    assert resharded[case]["taken over"], f"{case} into {MOVES[case]} on one rank"
    assert returned[case]["taken over"], f"{MOVES[case]} into {case} on two ranks"
    assert returned[case]["distance"] < TOLERANCES.get(case.split("-")[-1], TOLERANCES["fp32"])


@pytest.mark.parametrize("stage", range(4))
def test_only_fp16_scales_losses_and_does_so_dynamically(explored: list[dict[str, Any]], stage: int) -> None:
    scales = explored[0][f"{stage}-fp16"]["loss_scales"]
    assert scales[0] == 2**16
    # DeepSpeed's ZeRO forgives one overflow; without ZeRO it halves the scale at once.
    assert scales[-1] == (2**16 if stage else 2**15)
    assert explored[0][f"{stage}-fp32"]["loss_scales"] == [None] * 5


@pytest.mark.parametrize("case", [case for case in CASES if "fp16" in case or "bf16" in case])
def test_gradients_add_up_in_float32_and_are_sent_so_unless_set_otherwise(
    explored: list[dict[str, Any]], case: str
) -> None:
    assert explored[0][case]["added"] == pytest.approx(1, abs=0.1)
    assert explored[0][case]["sent"] == pytest.approx(0 if "sent" in case else 1, abs=0.1)


def test_every_optimizer_moves_between_any_two_stages_with_its_step(directory: Path) -> None:
    (found,) = found_by_ranks(move_between_stages, directory, 1, OPTIMIZERS)
    assert [f"{kind}: {one}" for kind in OPTIMIZERS for one in found[kind]["wrong"]] == []


def test_single_numbers_of_a_state_lie_where_the_optimizer_reads_them() -> None:
    weights, step = nn.Parameter(torch.empty(3, device="meta")), torch.tensor(2.0)
    fused, plain = (torch.optim.AdamW([nn.Parameter(torch.ones(1))], fused=each) for each in (True, False))
    assert placed(fused, step, weights).is_meta
    assert placed(plain, step, weights).device.type == "cpu"
