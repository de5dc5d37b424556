"""Two runs side by side: true differences, aligned curves, and no spike lost on the way to the screen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.commands.verbs import app
from pipeline.inspection.comparison import RunComparison, compare, flat_settings
from pipeline.inspection.comparison_plots import page, terminal_plot
from pipeline.inspection.curves import Curve, bin_curve, read_curves
from pipeline.runs.directory import EVENTS_FILE, RunDirectory
from pipeline.runs.history import list_attempts
from pipeline.runs.log.log import RunLog
from pipeline.runs.skip_ledger import SkipLedger, SkippedStep
from tests.conftest import write_store
from tests.pipeline.ranks import make_config, make_run

SPIKE = 700


def log_steps(run: RunDirectory, losses: list[float], *, speed: float = 1000.0) -> None:
    log = RunLog(run.path)
    for step, loss in enumerate(losses, start=1):
        log.write("train", step, {"loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_s": speed})
        if step % 100 == 0:
            log.write("held_out", step, {"loss": loss + 0.5})
    log.close()


@pytest.fixture
def left(tmp_path: Path, store: Path) -> RunDirectory:
    """A finished run of 1,000 steps."""
    run = make_run(tmp_path, store, "left", "steps=1000")
    run.record_event("started", step=0, world_size=2)
    losses = [6.0 - 0.004 * step for step in range(1, 1001)]
    losses[SPIKE - 1] = 50.0
    log_steps(run, losses)
    run.record_event("finished", step=1000)
    return run


@pytest.fixture
def right(tmp_path: Path, store: Path) -> RunDirectory:
    """A run with twice the batch that failed at step 400, after it had left out a batch."""
    run = make_run(tmp_path, store, "right", "steps=1000", "batch.samples=32", "optimizer.lr=2e-3")
    run.record_event("started", step=0, world_size=4)
    log_steps(run, [5.0] * 400, speed=3000.0)
    SkipLedger(run.path).add(SkippedStep(at_update=90, data_step=90, loss=99.0, score=20.0))
    run.record_event("failed", error="NonFiniteError", message="no finite number")
    return run


def test_differences_are_those_of_the_runs_and_no_others(left: RunDirectory, right: RunDirectory):
    found = compare(left, right)
    assert found.settings == {"batch.samples": (16, 32), "optimizer.lr": (1e-3, 2e-3)}
    assert found.data == {"left out": ([], [90])}
    assert compare(left, left).settings == compare(left, left).data == {}


def test_other_tokens_are_a_difference_of_the_data(left: RunDirectory, tmp_path: Path):
    other = write_store(tmp_path / "other" / "tokens", seed=3)
    run = make_run(tmp_path, other, "other", "steps=1000")
    found = compare(left, run)
    assert found.settings.keys() == {"data.stores.0.path"}
    assert "stores.0.fingerprint" in found.data


def test_where_they_end_is_told_of_runs_in_any_state(left: RunDirectory, right: RunDirectory, tmp_path: Path):
    finished, failed = compare(left, right).facts
    assert (finished.state, finished.step, finished.tokens) == ("finished", 1000, 1000 * 16 * 32)
    assert (failed.state, failed.step, failed.tokens) == ("failed", 400, 400 * 32 * 32)
    assert finished.loss == pytest.approx(6.0 - 0.004 * 950.5)
    assert (finished.held_out, failed.held_out) == (pytest.approx(2.5), 5.5)
    assert finished.best_held_out == pytest.approx(2.5)
    assert (finished.tokens_per_s, failed.tokens_per_s) == (1000.0, 3000.0)
    assert (failed.workers, failed.skipped) == ((4,), (90,))
    empty = make_run(tmp_path, left.config().data.stores[0].path, "empty")
    fresh = compare(left, empty)
    assert (fresh.facts[1].state, fresh.facts[1].loss, fresh.common.loss) == ("created", None, (None, None))


def test_runs_are_compared_at_the_last_place_that_both_reached(left: RunDirectory, right: RunDirectory):
    by_step, by_tokens = compare(left, right).common, compare(left, right, "tokens").common
    assert by_step.place == 400
    assert by_step.loss == (pytest.approx(6.0 - 0.004 * 350.5), 5.0)
    assert by_step.held_out == (pytest.approx(6.0 - 1.6 + 0.5), 5.5)
    # Where the one has read as many tokens as the other in 400 steps, it has made 800.
    assert by_tokens.place == 400 * 32 * 32
    assert by_tokens.held_out == (pytest.approx(6.0 - 3.2 + 0.5), 5.5)


def test_tokens_follow_warm_up_phases_and_what_was_changed_on_the_way(tmp_path: Path, store: Path):
    stages = ("batch.warmup=[{steps: 4, samples: 4}]", "batch.phases=[{steps: 6, sequence_length: 16}]")
    run = make_run(tmp_path, store, "changed", "steps=30", *stages)
    run.record_event("started", step=0, world_size=1)
    run.record_event("started", step=20, world_size=1)
    run.reconfigure(make_config(tmp_path, store, "steps=30", *stages, "batch.samples=8"))
    run.record_event("started", step=10, world_size=1)
    log_steps(run, [1.0] * 30)
    old = make_config(tmp_path, store, "steps=30", *stages)
    expected = [old.tokens_before(step) for step in range(1, 11)]
    expected += [expected[-1] + 8 * 32 * step for step in range(1, 21)]
    assert read_curves(run, ("loss",))["loss"].tokens.tolist() == expected
    history = run.path / EVENTS_FILE
    history.write_bytes(history.read_bytes()[9:])
    assert len(list_attempts(run.events())) == 2
    assert read_curves(run, ("loss",))["loss"].tokens.tolist() == expected


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300),
    num_columns=st.integers(1, 50),
)
@settings(max_examples=100, deadline=None)
def test_columns_hold_every_extreme_and_every_value_once(values: list[float], num_columns: int):
    numbers = np.array(values)
    steps = np.arange(1, len(values) + 1)
    bins = bin_curve(Curve(steps, steps * 2.0, numbers), "step", (0.0, float(len(values))), num_columns)
    finite = numbers[np.isfinite(numbers)]
    assert len(bins.places) <= num_columns
    assert (np.diff(bins.places) > 0).all()
    if len(finite):
        assert bins.lows.min() == finite.min()
        assert bins.highs.max() == finite.max()
        assert (bins.lows <= bins.means + 1e-6).all()
        assert (bins.means <= bins.highs + 1e-6).all()
    else:
        assert len(bins.places) == 0


def test_one_spike_among_many_steps_is_seen_on_a_terminal(left: RunDirectory, right: RunDirectory):
    text = terminal_plot(compare(left, right), "loss", 60, 16, colors=False)
    (line,) = [line for line in text.splitlines() if "^" in line]
    assert line.strip().startswith("50")
    # It stands above its step: the axis has about 52 characters for 1,000 steps.
    assert line.index("^") == pytest.approx(line.index("┤") + 52 * SPIKE / 1000, abs=2)
    assert max(map(len, text.splitlines())) <= 60


def test_page_needs_nothing_but_itself(left: RunDirectory, right: RunDirectory):
    text = page(compare(left, right), [("a <title>", [["key", "1", "2"]])])
    assert "a &lt;title&gt;" in text
    assert not re.search(r"""(src|href)=["'](?!#)""", text.replace("xlink:href", "href"))
    assert "<script" not in text
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 5
    assert all(ElementTree.fromstring(drawing) is not None for drawing in drawings)
    assert text == page(compare(left, right), [("a <title>", [["key", "1", "2"]])])


def test_settings_in_lists_have_numbers_and_plain_lists_stay_whole():
    nested = {"a": {"b": [1, 2]}, "c": [{"d": None}, {"d": []}], "e": {}}
    assert dict(flat_settings(nested)) == {"a.b": [1, 2], "c.0.d": None, "c.1.d": [], "e": {}}


def test_command_answers_people_programs_and_browsers(
    left: RunDirectory, right: RunDirectory, tmp_path: Path
):
    place, html = ["--runs-dir", str(left.path.parent)], tmp_path / "page.html"
    printed = cloze("runs", *place, "compare", "left", "right", "--html", str(html))
    assert all(text in printed for text in ("batch.samples", "left out", "training loss", "held-out loss"))
    assert "batch.samples" in html.read_text()
    found = json.loads(cloze("runs", "compare", "left", "right", *place, "--by", "tokens", "--json"))
    assert found == json.loads(json.dumps(as_json(compare(left, right, "tokens"))))


def as_json(comparison: RunComparison) -> dict:
    return json.loads(json.dumps(comparison.as_dict()))


def cloze(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
