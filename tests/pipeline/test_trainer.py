"""What a run does on its way (phases, sizes of batches, budgets, averages, spikes, numbers that are none), and how it
ends: every part is closed, whatever the others do, and the first error is the one raised."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.manifest import read_manifest
from pipeline.checkpoint.checkpoint import (
    EMA_FILE,
    MODEL_FILE,
    list_checkpoints,
    read_trainer_state,
    step_of,
)
from pipeline.pretrain.schedule import Schedule
from pipeline.run.directory import RunDirectory
from pipeline.run.history import list_attempts
from pipeline.run.log.lines import log_size, read_metrics
from pipeline.run.state import ENDED, read_heartbeats
from tests.conftest import write_store
from tests.pipeline.one_rank import train_alone
from tests.pipeline.process_group import Group
from tests.pipeline.ranks import make_run

CAUSAL = "{kind: clm}"
DECODER = ("model.network=decoder", "optimizer.lr=1e-2", "schedule.kind=constant")
OVERFLOW = (
    "model={initializer_std: 50, norm: post}",
    "optimizer={lr: 1, clip: 1e9}",
    "schedule.warmup_steps=0",
    "evaluation={every_steps: 1, samples: 20, metric: mlm/perplexity, patience: 9}",
)
"""The first perplexities are no numbers of the machine."""
NOISE_AT = 40
"""The data step that reads documents of another language."""
SPIKE = (
    *DECODER,
    "steps=60",
    f"batch.phases=[{{steps: {NOISE_AT}, weights: [1, 0]}}, {{steps: 1, weights: [0, 1]}},"
    " {steps: 18, weights: [1, 0]}]",
    "checkpoint.every_steps=16",
    "guards={spike_score: 6, spike_window: 16}",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, RunDirectory]:
    directory = tmp_path_factory.mktemp("runs")
    other = write_store(directory / "other", seed=9)
    mixed = f"data.stores=[{{path: {store}}}, {{path: {other}, weight: 1e-9}}]"
    overrides: dict[str, tuple[str, ...]] = {
        "plain": (),
        "average": ("ema.decay=0.5",),
        "growing": (
            "batch.warmup=[{steps: 3, samples: 4}, {steps: 2, samples: 8}]",
            "batch.phases=[{steps: 4, sequence_length: 16}]",
            "evaluation.per_source=true",
        ),
        "impatient": ("optimizer.lr=1e-12", "evaluation={every_steps: 2, patience: 2, min_improvement: 0.1}"),
        "timed": ("steps=null", "budget={time_s: 0.05, min_steps: 7}"),
        "tokens": ("steps=null", "budget={tokens: 5120}"),
        "exploding": (
            "optimizer.lr=1e30",
            "schedule.warmup_steps=0",
            "guards.max_skipped_updates=2",
            "steps=40",
        ),
        "spiking": (mixed, *SPIKE),
        "warned": (mixed, *SPIKE),
        "hopeless": (mixed, *SPIKE, "guards.max_rollbacks=0"),
        "profiled": ("profile.steps=[3, 5]",),
        "unclipped": ("optimizer.clip=null", "steps=4"),
        "wide": ("optimizer.clip=1e9", "steps=4"),
        "unclipped-whole": ("optimizer.clip=0", "steps=4", "zero.stage=0"),
        "wide-whole": ("optimizer.clip=1e9", "steps=4", "zero.stage=0"),
        "detecting": (
            "objective={kind: rtd}",
            "evaluation={every_steps: 3, samples: 20, metric: mlm/accuracy}",
        ),
        "overflowing": (*OVERFLOW, "checkpoint={every_steps: 2, keep_last: 9}"),
    }
    found = {}
    for name, own in overrides.items():
        objective = CAUSAL if "model.network=decoder" in own else "{kind: mlm, rate: 0.3}"
        found[name] = make_run(directory, store, name, *own, objective=objective)
    # One is told beforehand what another one finds out.
    endings: dict[str, str] = {}
    others = [name for name in found if name != "warned"]
    endings |= dict(zip(others, train_alone([found[name] for name in others]), strict=True))
    shutil.copy(found["spiking"].path / "skipped.json", found["warned"].path)
    # As a run was killed behind its first evaluations, of which none was a finite number.
    found["resumed"] = make_run(directory, store, "resumed", *overrides["overflowing"])
    shutil.copytree(found["overflowing"].path, found["resumed"].path, dirs_exist_ok=True)
    for checkpoint in list_checkpoints(found["resumed"].checkpoints)[1:]:
        shutil.rmtree(checkpoint)
    again = ("warned", "resumed")
    endings |= dict(zip(again, train_alone([found[name] for name in again]), strict=True))
    for name, run in found.items():
        (run.path / "ending").write_text(endings[name])
    return found


def ending(run: RunDirectory) -> str:
    return (run.path / "ending").read_text()


def column(run: RunDirectory, name: str) -> list[float]:
    return [step[name] for step in read_metrics(run)]


def test_a_run_logs_every_step_with_what_operators_look_at(runs: dict[str, RunDirectory]):
    steps = read_metrics(runs["plain"])
    assert [step["step"] for step in steps] == list(range(1, 13))
    for step in steps:
        assert min(step["loss"], step["grad_norm"], step["predicted_tokens"]) > 0
        assert step["tokens_per_s"] == pytest.approx(16 * 32 / step["step_s"])
        assert 0 <= step["data_wait_share"] < 1
        assert step["host_memory_bytes"] > 1e8
    held_out = read_metrics(runs["plain"], "held_out")
    assert [entry["step"] for entry in held_out] == [0, 6, 12]
    assert held_out[0]["mlm/loss"] == held_out[0]["loss"]
    assert 0 < held_out[0]["mlm/loss_standard_error"] < 0.1
    assert held_out[0]["mlm/perplexity"] == pytest.approx(math.exp(held_out[0]["loss"]))


def test_the_average_of_the_weights_follows_them(runs: dict[str, RunDirectory]):
    last, run = list_checkpoints(runs["average"].checkpoints)[-1], runs["average"]
    weights, average = load_file(last / MODEL_FILE), load_file(last / EMA_FILE)
    assert weights.keys() == average.keys()
    assert column(run, "loss") == column(runs["plain"], "loss")
    distance = sum((weights[name] - average[name]).abs().sum().item() for name in weights)
    assert 0 < distance < 10.0


def test_batches_grow_and_lengths_change_as_configured(runs: dict[str, RunDirectory]):
    run = runs["growing"]
    samples = [round(step["samples_per_s"] * step["step_s"]) for step in read_metrics(run)]
    tokens = [round(step["tokens_per_s"] * step["step_s"]) for step in read_metrics(run)]
    assert samples == [4, 4, 4, 8, 8, *([16] * 7)]
    assert tokens == [64, 64, 64, 128, 256, *([512] * 7)]
    assert read_trainer_state(list_checkpoints(run.checkpoints)[-1]).tokens == sum(tokens)
    held_out = read_metrics(run, "held_out")[-1]
    assert held_out["mlm/loss/test"] == pytest.approx(held_out["loss"])
    assert held_out["mlm/perplexity/test"] == pytest.approx(held_out["mlm/perplexity"])


def test_a_run_that_learns_nothing_more_ends_early_with_a_checkpoint(runs: dict[str, RunDirectory]):
    run = runs["impatient"]
    assert ending(run) == "ended"
    assert [entry["step"] for entry in read_metrics(run, "held_out")] == [0, 2, 4]
    assert step_of(list_checkpoints(run.checkpoints)[-1]) == 4


def test_every_term_is_reported_by_itself_and_the_named_metric_tells_the_best(runs: dict[str, RunDirectory]):
    run = runs["detecting"]
    evaluations = {entry["step"]: entry for entry in read_metrics(run, "held_out")}
    for metrics in evaluations.values():
        assert metrics["loss"] == pytest.approx(metrics["mlm/loss"] + 50 * metrics["rtd/loss"])
        assert metrics["mlm/perplexity"] == pytest.approx(math.exp(metrics["mlm/loss"]))
        assert "rtd/perplexity" not in metrics
    last = read_trainer_state(list_checkpoints(run.checkpoints)[-1])
    assert last.held_out == {name: value for name, value in evaluations[12].items() if name != "step"}
    assert last.best == max(metrics["mlm/accuracy"] for metrics in evaluations.values())
    assert last.metric == "mlm/accuracy"


def test_a_run_resumed_behind_evaluations_without_numbers_is_the_uninterrupted_one(
    runs: dict[str, RunDirectory],
):
    run, resumed = runs["overflowing"], runs["resumed"]
    values = [entry["mlm/perplexity"] for entry in read_metrics(run, "held_out")]
    finite = [value for value in values if math.isfinite(value)]
    assert not math.isfinite(values[2])
    assert finite
    states = [
        [read_trainer_state(one) for one in list_checkpoints(own.checkpoints)] for own in (run, resumed)
    ]
    assert (states[0][0].step, states[0][0].best, states[0][0].evaluations_since_best) == (2, None, 3)
    assert states[0][-1].best == min(finite)
    assert [attempt.first_step for attempt in list_attempts(resumed.events())][-1] == 2
    changing = {"attempt", "elapsed_s"}
    for left, right in zip(*states, strict=True):
        assert left.model_dump(exclude=changing) == right.model_dump(exclude=changing)
    fingerprints = [
        [read_manifest(one).fingerprint for one in list_checkpoints(own.checkpoints)]
        for own in (run, resumed)
    ]
    assert fingerprints[0] == fingerprints[1], "which holds no time and no name of the run"


def test_heartbeats_count_the_updates_of_their_process_and_not_those_before_the_checkpoint(
    runs: dict[str, RunDirectory],
):
    (beat,) = read_heartbeats(runs["resumed"])
    last = read_metrics(runs["resumed"])[-1]["step"]
    assert (beat.step, beat.num_steps) == (last, last - 2)


@pytest.mark.parametrize("sharded", ["", "-whole"])
def test_no_clipping_is_clipping_at_a_norm_that_no_gradient_has(runs: dict[str, RunDirectory], sharded: str):
    unclipped, wide = runs[f"unclipped{sharded}"], runs[f"wide{sharded}"]
    assert max(column(unclipped, "grad_norm")[:-1]) > 1
    for name in ("loss", "grad_norm"):
        assert column(unclipped, name) == column(wide, name)


def test_a_time_budget_ends_a_run_but_not_before_its_least_number_of_updates(runs: dict[str, RunDirectory]):
    run = runs["timed"]
    assert column(run, "step") == list(range(1, 8))
    schedule = Schedule(run.config())
    for step in read_metrics(run):
        assert step["lr"] == schedule.learning_rate(step["step"] - 1, step["elapsed_s"])
    assert step_of(list_checkpoints(run.checkpoints)[-1]) == 7


def test_a_token_budget_gives_the_number_of_steps(runs: dict[str, RunDirectory]):
    assert column(runs["tokens"], "step")[-1] == 5120 // 512


def test_updates_of_numbers_that_are_none_are_not_made_and_end_the_run(runs: dict[str, RunDirectory]):
    run = runs["exploding"]
    assert ending(run) == "NonFiniteError"
    skipped = [event for event in run.events() if event["event"] == "skipped-update"]
    assert len(skipped) == 3
    assert [event["data_step"] for event in skipped] == [event["step"] - 1 for event in skipped]
    assert len(skipped[0]["samples"]["rank 0"]) == 16


def test_a_spike_sends_the_run_back_and_its_data_is_left_out(runs: dict[str, RunDirectory]):
    run = runs["spiking"]
    assert ending(run) == "ended"
    (spike,) = [event for event in run.events() if event["event"] == "spike"]
    assert (spike["data_step"], spike["back_to"]) == (NOISE_AT, 32)
    assert spike["score"] > 6
    ledger = orjson.loads((run.path / "skipped.json").read_bytes())["skipped"]
    assert [entry["data_step"] for entry in ledger] == [NOISE_AT]
    assert column(run, "step") == list(range(1, 61))
    assert read_trainer_state(list_checkpoints(run.checkpoints)[-1]).skipped_data == [NOISE_AT]


def test_a_run_after_a_spike_is_bit_identical_to_one_that_never_read_its_data(runs: dict[str, RunDirectory]):
    spiking, warned = runs["spiking"], runs["warned"]
    assert not [event for event in warned.events() if event["event"] == "spike"]
    for name in ("loss", "grad_norm", "lr"):
        assert column(spiking, name) == column(warned, name)
    ends = [list_checkpoints(run.checkpoints)[-1] / MODEL_FILE for run in (spiking, warned)]
    for found, expected in zip(load_file(ends[0]).values(), load_file(ends[1]).values(), strict=True):
        assert torch.equal(found, expected)


def test_one_spike_more_than_allowed_ends_the_run(runs: dict[str, RunDirectory]):
    run = runs["hopeless"]
    assert ending(run) == "LossSpikeError"
    assert column(run, "step")[-1] == NOISE_AT
    assert step_of(list_checkpoints(run.checkpoints)[-1]) == 32


def test_profiled_steps_leave_a_trace_and_a_table(runs: dict[str, RunDirectory]):
    files = {path.name for path in (runs["profiled"].path / "profile").iterdir()}
    assert files == {f"rank-0-steps-3-5{end}" for end in (".json", ".txt")}
    table = (runs["profiled"].path / "profile" / "rank-0-steps-3-5.txt").read_text()
    assert all(
        f"cloze.part {part}" in table for part in ("data", "forward", "backward", "optimizer", "logging")
    )


PROFILER = "pipeline.pretrain.profiling:StepProfiler"
HEARTBEAT = "pipeline.run.state:Heartbeat"
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
