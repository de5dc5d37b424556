"""What a run does on its way (phases, sizes of batches, budgets, averages, spikes, numbers that are none), and how it
ends: every part is closed, whatever the others do, and the first error is the one raised."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.manifest import read_manifest
from pipeline.checkpoint.checkpoint import (
    EMA_FILE,
    MODEL_FILE,
    TrainerState,
    list_checkpoints,
    read_trainer_state,
)
from pipeline.pretrain.schedule import Schedule
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import list_attempts
from pipeline.run.log.lines import log_size, read_metrics
from pipeline.run.state import ENDED, read_heartbeats
from tests.conftest import write_store
from tests.pipeline.one_rank import REFUSING, errors, train_alone
from tests.pipeline.process_group import run_group
from tests.pipeline.ranks import MASKED_LM, make_run

CAUSAL = "{kind: clm}"
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

    def make(name: str, settings: tuple[str, ...]) -> None:
        objective = CAUSAL if "model.network=decoder" in settings else MASKED_LM
        found[name] = make_run(directory, store, name, *settings, objective=objective)

    def train(*names: str) -> None:
        for name, ending in zip(names, train_alone([found[name] for name in names]), strict=True):
            (found[name].path / "ending").write_text(ending)

    for name, own in overrides.items():
        make(name, own)
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


@pytest.mark.parametrize("sharded", ["", "-whole"])
def test_no_clipping_is_clipping_at_a_norm_that_no_gradient_has(runs: dict[str, RunDirectory], sharded: str):
    unclipped, wide = runs[f"unclipped{sharded}"], runs[f"wide{sharded}"]
    assert max(column(unclipped, "grad_norm")[:-1]) > 1
    for name in ("loss", "grad_norm"):
        assert column(unclipped, name) == column(wide, name)


def test_updates_of_numbers_that_are_none_are_not_made_and_end_the_run(runs: dict[str, RunDirectory]):
    run = runs["exploding"]
    assert (run.path / "ending").read_text() == "NonFiniteError"
    skipped = run.events(Event.SKIPPED_UPDATE)
    assert len(skipped) == 3
    assert [event["data_step"] for event in skipped] == [event["step"] - 1 for event in skipped]
    assert len(skipped[0]["samples"]["rank 0"]) == 16


def test_profiled_steps_leave_a_trace_and_a_table(runs: dict[str, RunDirectory]):
    profile = runs["profiled"].path / "profile"
    assert {path.name for path in profile.iterdir()} == {
        f"rank-0-steps-3-5{end}" for end in (".json", ".txt")
    }
    table = (profile / "rank-0-steps-3-5.txt").read_text()
    parts = ("data", "forward", "backward", "optimizer", "logging")
    assert all(f"cloze.part {part}" in table for part in parts)


TIMER = "pipeline.pretrain.step_timer:StepTimer"
HEARTBEAT = "pipeline.run.state:Heartbeat"


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
            (*EXPLODES, "guards.max_skipped_updates=1"),
            [TIMER, HEARTBEAT],
            "NonFiniteError",
            id="after an error",
        ),
        pytest.param(("steps=4",), [TIMER, HEARTBEAT], "ValueError", id="after a good end"),
        pytest.param(("data.stores=[{path: gone}]",), [], "MissingInputError", id="at the start"),
    ],
)
def test_a_part_that_fails_to_close_hides_no_error_and_leaves_none_open(
    tmp_path: Path, store: Path, settings: tuple[str, ...], refusing: list[str], error: str
):
    run = make_run(tmp_path, store, "run", *settings)
    (end,) = errors(run_group("tests.pipeline.one_rank", [run.path], 1, {REFUSING: " ".join(refusing)}))
    assert end["error"] == error
    for part in refusing:
        said = f"{part.partition(':')[2]} does not close"
        assert any(said in text for text in (end["message"], *end["notes"]))
    (beat,) = read_heartbeats(run)
    assert beat.part == ENDED
    if refusing:
        assert orjson.loads(run.log_seals.read_bytes().split(b"\n")[-1])["end"] == log_size(run)
