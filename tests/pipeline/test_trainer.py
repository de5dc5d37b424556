"""What a run does on its way (phases, sizes of batches, budgets, averages, spikes, numbers that are none), and how it
ends: every part is closed, whatever the others do, and the first error is the one raised."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.manifest import read_manifest
from pipeline.checkpoint.checkpoint import (
    EMA_FILE,
    MODEL_FILE,
    TrainerState,
    list_checkpoints,
    read_trainer_state,
)
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.spikes import LossWindow
from pipeline.pretrain.step_timer import StepTimer
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import list_attempts
from pipeline.run.log.lines import log_size, read_metrics
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from pipeline.run.state import ENDED, Heartbeat, read_heartbeats
from tests.conftest import write_store
from tests.pipeline.process_group import on_ranks
from tests.pipeline.ranks import MASKED_LM, Ending, make_run, train_alone, train_here

CAUSAL = "{kind: clm}"
PARTS = (StepTimer, Heartbeat)
EXPLODES = ("optimizer.lr=1e30", "schedule.warmup_steps=0")
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
    """Runs by name; how each ended lies in its file `ending`."""
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
        "exploding": (*EXPLODES, "guards.max_skipped_updates=2", "steps=40"),
        "spiking": (mixed, *SPIKE),
        "hopeless": (mixed, *SPIKE, "guards.max_rollbacks=0"),
        "profiled": ("profile.steps=[10, 50]",),
        "unclipped": ("optimizer.clip=null", "steps=4", "profile.steps=[1, 2]"),
        "wide": ("optimizer.clip=1e9", "steps=4"),
        "detecting": (
            "objective={kind: rtd}",
            "evaluation={every_steps: 3, samples: 20, metric: mlm/accuracy}",
        ),
        "overflowing": (*OVERFLOW, "checkpoint={every_steps: 2, keep_last: 9}"),
    }
    found = {}

    def make(name: str, settings: tuple[str, ...]) -> None:
        objective = CAUSAL if "model.network=decoder" in settings else MASKED_LM
        found[name] = make_run(directory, store, name, *settings, objective=objective)

    def train(*names: str) -> None:
        for name, ending in zip(names, train_alone([found[name] for name in names]), strict=True):
            (found[name].path / "ending").write_text(ending)

    for name, own in overrides.items():
        make(name, own)
    (found["unclipped"].path / "profile").write_text("a file stands here")
    train(*overrides)
    # One is told beforehand what another one finds out.
    make("warned", overrides["spiking"])
    shutil.copy(found["spiking"].path / "skipped.json", found["warned"].path)
    # As a run was killed behind its first evaluations, of which none was a finite number.
    make("resumed", overrides["overflowing"])
    shutil.copytree(found["overflowing"].path, found["resumed"].path, dirs_exist_ok=True)
    for checkpoint in list_checkpoints(found["resumed"].checkpoints)[1:]:
        shutil.rmtree(checkpoint)
    train("warned", "resumed")
    return found


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
    last = list_checkpoints(runs["average"].checkpoints)[-1]
    weights, average = load_file(last / MODEL_FILE), load_file(last / EMA_FILE)
    assert weights.keys() == average.keys()
    assert column(runs["average"], "loss") == column(runs["plain"], "loss")
    assert 0 < sum((weights[name] - average[name]).abs().sum().item() for name in weights) < 10.0


def test_batches_grow_and_lengths_change_as_configured(runs: dict[str, RunDirectory]):
    run = runs["growing"]
    samples = [round(step["samples_per_s"] * step["step_s"]) for step in read_metrics(run)]
    tokens = [round(step["tokens_per_s"] * step["step_s"]) for step in read_metrics(run)]
    assert samples == [4, 4, 4, 8, 8, *([16] * 7)]
    assert tokens == [64, 64, 64, 128, 256, *([512] * 7)]
    assert last_state(run).tokens == sum(tokens)
    held_out = read_metrics(run, "held_out")[-1]
    for name in ("loss", "perplexity"):
        assert held_out[f"mlm/{name}/test"] == pytest.approx(held_out[f"mlm/{name}"])


def test_a_run_that_learns_nothing_more_ends_early_with_a_checkpoint(runs: dict[str, RunDirectory]):
    run = runs["impatient"]
    assert (run.path / "ending").read_text() == "ended"
    assert [entry["step"] for entry in read_metrics(run, "held_out")] == [0, 2, 4]
    assert last_state(run).step == 4


def test_every_term_is_reported_by_itself_and_the_named_metric_tells_the_best(runs: dict[str, RunDirectory]):
    run = runs["detecting"]
    evaluations = {entry.pop("step"): entry for entry in read_metrics(run, "held_out")}
    for metrics in evaluations.values():
        assert metrics["loss"] == pytest.approx(metrics["mlm/loss"] + 50 * metrics["rtd/loss"])
        assert metrics["mlm/perplexity"] == pytest.approx(math.exp(metrics["mlm/loss"]))
        assert "rtd/perplexity" not in metrics
    last = last_state(run)
    assert (last.held_out, last.metric) == (evaluations[12], "mlm/accuracy")
    assert last.best == max(metrics["mlm/accuracy"] for metrics in evaluations.values())


def test_a_run_resumed_behind_evaluations_without_numbers_is_the_uninterrupted_one(
    runs: dict[str, RunDirectory],
):
    both = [runs["overflowing"], runs["resumed"]]
    values = [entry["mlm/perplexity"] for entry in read_metrics(both[0], "held_out")]
    finite = [value for value in values if math.isfinite(value)]
    assert not math.isfinite(values[2])
    checkpoints = [list_checkpoints(run.checkpoints) for run in both]
    first = read_trainer_state(checkpoints[0][0])
    assert (first.step, first.best, first.evaluations_since_best) == (2, None, 3)
    assert last_state(both[0]).best == min(finite)
    assert [attempt.first_step for attempt in list_attempts(both[1].events())][-1] == 2
    for left, right in zip(*checkpoints, strict=True):
        states = [
            read_trainer_state(one).model_dump(exclude={"attempt", "elapsed_s"}) for one in (left, right)
        ]
        assert states[0] == states[1]
        # It holds no time and no name of the run.
        assert read_manifest(left).fingerprint == read_manifest(right).fingerprint
    # Heartbeats count the updates of their process, and not those before the checkpoint.
    (beat,) = read_heartbeats(both[1])
    last = read_metrics(both[1])[-1]["step"]
    assert (beat.step, beat.num_steps) == (last, last - 2)


def test_no_clipping_is_clipping_at_a_norm_that_no_gradient_has(runs: dict[str, RunDirectory]):
    unclipped, wide = (read_metrics(runs[name]) for name in ("unclipped", "wide"))
    assert max(step["grad_norm"] for step in unclipped) > 1
    assert [(step["loss"], step["grad_norm"]) for step in unclipped] == [
        (step["loss"], step["grad_norm"]) for step in wide
    ]


def test_updates_of_numbers_that_are_none_are_not_made_and_end_the_run(runs: dict[str, RunDirectory]):
    run = runs["exploding"]
    assert (run.path / "ending").read_text() == "NonFiniteError"
    skipped = run.events(Event.SKIPPED_UPDATE)
    assert [event["data_step"] for event in skipped] == [event["step"] - 1 for event in skipped]
    assert [len(event["samples"]["rank 0"]) for event in skipped] == [16] * 3


def test_profiled_steps_leave_a_trace_and_a_table_of_every_part_and_operator(runs: dict[str, RunDirectory]):
    profile = runs["profiled"].path / "profile"
    (event,) = runs["profiled"].events(Event.PROFILED)
    assert Path(event["table"]) == profile / "rank-0-steps-10-12.txt"
    table = (profile / "rank-0-steps-10-12.txt").read_text()
    rows = [line.split() for line in table.splitlines() if line.strip().startswith("cloze.part")]
    # Two steps of four micro-batches.
    calls = {row[1]: int(row[-1]) for row in rows}
    once = dict.fromkeys(("data", "exchange", "optimizer", "logging"), 2)
    assert calls == once | {"forward": 8, "backward": 8}
    assert "aten::addmm" in table
    events = orjson.loads((profile / "rank-0-steps-10-12.json").read_bytes())["traceEvents"]
    assert len([event for event in events if event.get("name") == "cloze.part forward"]) == 8
    assert (runs["unclipped"].path / "ending").read_text() == "ended", "where no profile can be written"
    assert len(runs["unclipped"].events(Event.PROFILE_FAILED)) == 1


def last_state(run: RunDirectory) -> TrainerState:
    return read_trainer_state(list_checkpoints(run.checkpoints)[-1])


def test_budgets_of_time_and_tokens_end_a_run_but_not_before_its_least_number_of_updates(
    runs: dict[str, RunDirectory],
):
    timed = runs["timed"]
    assert column(timed, "step") == list(range(1, 8))
    schedule = Schedule(timed.config())
    for step in read_metrics(timed):
        assert step["lr"] == schedule.learning_rate(step["step"] - 1, step["elapsed_s"])
    assert last_state(timed).step == 7
    assert column(runs["tokens"], "step")[-1] == 5120 // 512


def test_a_run_after_a_spike_is_bit_identical_to_one_that_never_read_its_data(runs: dict[str, RunDirectory]):
    spiking, warned = runs["spiking"], runs["warned"]
    assert (spiking.path / "ending").read_text() == "ended"
    (spike,) = spiking.events(Event.SPIKE)
    assert (spike["data_step"], spike["back_to"]) == (NOISE_AT, 32)
    assert spike["score"] > 6
    assert last_state(spiking).skipped_data == [NOISE_AT]
    assert column(spiking, "step") == list(range(1, 61))
    assert warned.events(Event.SPIKE) == []
    for name in ("loss", "grad_norm", "lr"):
        assert column(spiking, name) == column(warned, name)
    ends = [load_file(list_checkpoints(run.checkpoints)[-1] / MODEL_FILE) for run in (spiking, warned)]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_one_spike_more_than_allowed_ends_the_run(runs: dict[str, RunDirectory]):
    run = runs["hopeless"]
    assert (run.path / "ending").read_text() == "LossSpikeError"
    assert column(run, "step")[-1] == NOISE_AT
    assert last_state(run).step == 32


@pytest.mark.parametrize(
    ("settings", "refusing", "error"),
    [
        pytest.param(
            (*EXPLODES, "guards.max_skipped_updates=1"), PARTS, "NonFiniteError", id="after an error"
        ),
        pytest.param(("steps=4",), PARTS, "ValueError", id="after a good end"),
        pytest.param(("data.stores=[{path: gone}]",), (), "MissingInputError", id="at the start"),
    ],
)
def test_a_part_that_fails_to_close_hides_no_error_and_leaves_none_open(
    tmp_path: Path, store: Path, settings: tuple[str, ...], refusing: tuple[type, ...], error: str
):
    run = make_run(tmp_path, store, "run", *settings)
    (((name, said),),) = on_ranks(train_with_parts_that_refuse, run.path, refusing, workers=1)
    assert name == error
    assert all(any(f"{part.__name__} does not close" in text for text in said) for part in refusing)
    (beat,) = read_heartbeats(run)
    assert beat.part == ENDED
    if refusing:
        assert orjson.loads(run.log_seals.read_bytes().split(b"\n")[-1])["end"] == log_size(run)


def train_with_parts_that_refuse(run: Path, parts: tuple[Any, ...]) -> list[Ending]:
    """Parts close as always, and then raise."""
    for part in parts:

        def close_and_raise(self: object, close: Any = part.close, name: str = part.__name__) -> None:
            close(self)
            raise ValueError(f"{name} does not close")

        part.close = close_and_raise
    return train_here([run])


LEFT_OUT = SkippedStep(at_update=7, data_step=7, loss=9.5, score=12.0)


@pytest.mark.parametrize(
    ("losses", "loss", "score"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 6.0, (6.0 - 3.0) / (1.4826 * 1.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.0, (0.0 - 3.0) / (1.4826 * 1.0)),
        # Mostly equal ones are compared by their mean deviation.
        ([1.0] * 7 + [1.8], 1.4, 0.4 / (1.2533 * 0.1)),
        ([1.0] * 8, 1.0, 0.0),
        ([1.0] * 8, 1e9, math.inf),
    ],
)
def test_score_is_the_robust_z_score(losses: list[float], loss: float, score: float):
    assert LossWindow(len(losses), None, losses).score(loss) == pytest.approx(score)
    assert LossWindow(len(losses) + 1, None, losses).score(loss) is None, "before the window is full"


def test_a_healthy_run_has_no_spike_and_a_jump_is_one():
    window = LossWindow(64, 8.0)
    noise = random.Random(1)
    losses = [10 * math.exp(-step / 200) + noise.gauss(0, 0.05) for step in range(600)]
    for loss in losses:
        assert not window.is_spike(loss)
        window.add(loss)
    assert window.is_spike(losses[-1] + 1.0)
    assert not window.is_spike(losses[-1] - 1.0)
    assert not LossWindow(64, None, losses[-64:]).is_spike(1e9), "without a threshold"
    assert LossWindow(64, 8.0, losses[:44] + [50.0] * 20).is_spike(50.0), "outliers do not hide the next one"
    before = window.losses
    for loss in (math.nan, math.inf, -math.inf):
        assert window.is_spike(loss)
        window.add(loss)
    assert window.losses == before


@given(st.lists(st.floats(-1e6, 1e6), min_size=10, max_size=40), st.integers(0, 40))
def test_a_window_restored_from_json_scores_on_bit_for_bit(losses: list[float], at: int):
    whole, resumed = LossWindow(8, 3.0), LossWindow(8, 3.0)
    for number, loss in enumerate(losses):
        if number == at:
            resumed = LossWindow(8, 3.0, json.loads(json.dumps(resumed.losses)))
        assert resumed.score(loss) == (score := whole.score(loss))
        assert (score is None) == (number < 8)
        resumed.add(loss)
        whole.add(loss)


def test_what_is_left_out_is_read_again_by_the_next_attempt(tmp_path):
    ledger = SkipLedger(RunDirectory(tmp_path))
    assert ledger.entries == ()
    ledger.add(LEFT_OUT)
    # Update 7 now reads the batch behind; a second spike there leaves out batch 8.
    assert SkipLedger(RunDirectory(tmp_path)).data_step(7) == 8
    ledger.add(SkippedStep(at_update=7, data_step=8, loss=9.5, score=None))
    again = SkipLedger(RunDirectory(tmp_path))
    assert [entry.data_step for entry in again.entries] == [7, 8]
    assert [again.data_step(update) for update in (6, 7, 8)] == [6, 9, 10]


@pytest.mark.parametrize(
    ("old", "new"), [('"data_step": 7', '"data_step": 6'), ("{", ""), ('"skipped"', '"x"')]
)
def test_a_damaged_ledger_is_refused_instead_of_reading_other_data(tmp_path, old: str, new: str):
    SkipLedger(RunDirectory(tmp_path)).add(LEFT_OUT)
    path = RunDirectory(tmp_path).skipped
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CorruptArtefactError, match=r"skipped\.json"):
        SkipLedger(RunDirectory(tmp_path))
