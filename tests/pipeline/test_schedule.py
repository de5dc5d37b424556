"""Learning-rate schedules."""

import pytest

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import validate
from pipeline.pretrain.schedule import SHAPES, Schedule
from pipeline.run.config import PretrainConfig


def make(
    steps: int | None = 100, *, batch: dict | None = None, budget: object = None, **schedule
) -> Schedule:
    plain = {
        "name": "schedule",
        "data": {"stores": [{"path": "tokens"}]},
        "model": {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "intermediate_size": 8},
        "objective": {"kind": "mlm"},
        "batch": {"sequence_length": 10, "samples": 4, "micro_batch_size": 4, **(batch or {})},
        "optimizer": {"lr": 1.0},
        "steps": steps,
        "schedule": schedule,
        "budget": budget,
    }
    return Schedule(validate(PretrainConfig, plain, "test"))


def rates(schedule: Schedule, total: int = 100) -> list[float]:
    return [schedule.learning_rate(step) for step in range(total)]


@pytest.mark.parametrize("kind", SHAPES)
def test_warm_up_rises_linearly_to_the_peak(kind: str):
    found = rates(make(kind=kind, warmup_steps=9))
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])


@pytest.mark.parametrize("kind", ["linear", "cosine", "polynomial", "wsd"])
def test_falling_shapes_reach_their_final_share_after_the_last_update(kind: str):
    values = rates(make(kind=kind, warmup_steps=10, final_share=0.1, power=2), 101)
    assert values[100] == pytest.approx(0.1)
    assert values[10] == pytest.approx(1.0)
    assert values[10:] == sorted(values[10:], reverse=True)


@pytest.mark.parametrize("kind", [*SHAPES, "inverse_sqrt"])
@pytest.mark.parametrize(
    "rest",
    [
        {"steps": 1},
        {"steps": 3, "warmup_steps": 2},
        {"steps": 100, "power": 2, "decay_share": 0.01},
        {"steps": 10**9 - 1, "warmup_steps": 10},
        {"steps": None, "budget": {"tokens": 1990}},
        {"steps": None, "budget": {"tokens": 1990}, "warmup_tokens": 1989},
    ],
)
def test_every_update_learns(kind: str, rest: dict):
    schedule, last = make(kind=kind, **rest), (rest["steps"] or 50) - 1
    assert schedule.is_over(last + 1, 0.0)
    assert min(schedule.learning_rate(step) for step in (0, last // 2, last)) > 0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"kind": "linear"}, {50: 0.5}),
        ({"kind": "polynomial", "power": 2}, {50: 0.25}),
        ({"kind": "wsd", "decay_share": 0.2}, dict.fromkeys(range(81), 1.0) | {90: 0.5, 99: 0.05}),
        ({"kind": "constant"}, dict.fromkeys(range(100), 1.0)),
        # T5: 1 / sqrt(max(step, k)).
        ({"kind": "inverse_sqrt", "constant_steps": 25}, {0: 1.0, 12: 1.0, 25: 1.0, 99: (25 / 99) ** 0.5}),
        ({"kind": "inverse_sqrt", "warmup_steps": 5}, {5: 1.0, 20: 0.5, 80: 0.25}),
    ],
)
def test_each_shape_has_its_formula(schedule: dict, expected: dict[int, float]):
    made = make(**schedule)
    assert {step: made.learning_rate(step) for step in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("steps", "budget", "at", "rate", "last", "over"),
    [
        (None, {"tokens": 1990}, (49, 0.0), 1 / 50, (49, 0.0), (50, 0.0)),
        (None, "1h", (10, 1800.0), 0.5, (10, 3599.0), (10, 3600.0)),
        (100, "1h", (98, 10.0), 2 / 100, (99, 10.0), (100, 10.0)),
        # A slow machine makes the least number of updates, whatever the time.
        (None, {"time_s": 3600, "min_steps": 200}, (50, 7200.0), 0.75, (199, 1e6), (200, 1e6)),
    ],
)
def test_budgets_lower_the_rate_and_end_the_run(steps, budget, at, rate: float, last, over):
    schedule = make(steps, budget=budget, kind="linear")
    assert schedule.learning_rate(*at) == pytest.approx(rate)
    assert not schedule.is_over(*last)
    assert schedule.is_over(*over)


def test_a_rate_rises_and_falls_over_a_number_of_tokens_and_stays():
    """GPT-3: warm-up and decay in tokens, with a batch that grows."""
    growing = {"samples": 8, "micro_batch_size": 4, "warmup": [{"steps": 10, "samples": 4}]}
    schedule = make(200, batch=growing, kind="cosine", warmup_tokens=800, decay_tokens=8400, final_share=0.1)
    values = rates(schedule, 200)
    # 10 steps of 40 tokens, then 80 each: 800 tokens are read before step 15, 8,400 before step 110.
    warm = {4: 200 / 800, 9: 400 / 800, 12: 640 / 800, 14: 1.0, 15: 1.0}
    assert {step: values[step] for step in warm} == pytest.approx(warm)
    half = 15 + (8400 - 800) // 80 // 2
    assert values[half] == pytest.approx(0.55, abs=0.02)
    assert values[109] > values[110] == pytest.approx(0.1)
    assert set(values[110:]) == {values[110]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "wsd", "decay_tokens": 100},
        {"kind": "linear", "constant_steps": 5},
        {"kind": "linear", "warmup_tokens": 100, "decay_tokens": 100},
        {"kind": "linear", "warmup_steps": 10, "decay_tokens": 400},
        *({"kind": kind, "decay_tokens": 3960} for kind in ("linear", "cosine", "polynomial")),
    ],
    ids=str,
)
def test_settings_of_another_schedule_and_updates_that_learn_nothing_are_refused(wrong: dict):
    with pytest.raises(ConfigError):
        make(**wrong)
    if wrong.get("decay_tokens") == 3960:
        assert make(kind=wrong["kind"], decay_tokens=3961).learning_rate(99) > 0
