"""Two runs side by side: true differences, and losses compared where both have been."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest

from pipeline.inspect.comparison import compare, curves_in_mlflow, flat_settings
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.run.history import list_attempts, tokens_by_step
from pipeline.run.log.log import RunLog
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from pipeline.run.tracking import connect, start_run
from tests.conftest import write_store
from tests.pipeline.command import cloze
from tests.pipeline.ranks import make_config, make_run

SPIKE = 700


def log_steps(run: RunDirectory, losses: list[float], *, speed: float = 1000.0) -> None:
    log = RunLog(run)
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
    SkipLedger(run).add(SkippedStep(at_update=90, data_step=90, loss=99.0, score=20.0))
    run.record_event("failed", error="NonFiniteError", message="no finite number")
    return run


def test_where_they_end_is_told_of_runs_in_any_state(left: RunDirectory, right: RunDirectory, tmp_path: Path):
    finished, failed = (SimpleNamespace(**own) for own in compare(left, right)["runs"])
    assert (finished.state, finished.step, finished.tokens) == ("finished", 1000, 1000 * 16 * 32)
    assert (failed.state, failed.step, failed.tokens) == ("failed", 400, 400 * 32 * 32)
    assert (finished.loss, finished.mean_loss) == (pytest.approx(2.0), pytest.approx(6.0 - 0.004 * 950.5))
    held_out = [finished.held_out, finished.best_held_out, failed.held_out]
    assert held_out == pytest.approx([2.5, 2.5, 5.5])
    assert (finished.tokens_per_s, failed.tokens_per_s) == (1000.0, 3000.0)
    assert (failed.workers, failed.skipped) == ([4], [90])
    fresh = compare(left, make_run(tmp_path, left.config().data.stores[0].path, "empty"))
    assert (fresh["runs"][1]["state"], fresh["runs"][1]["loss"]) == ("created", None)
    assert fresh["common"]["mean_loss"] == [None, None]


def test_runs_are_compared_at_the_last_place_that_both_reached(left: RunDirectory, right: RunDirectory):
    by_step, by_tokens = compare(left, right)["common"], compare(left, right, "tokens")["common"]
    assert by_step["place"] == 400
    assert by_step["mean_loss"] == [pytest.approx(6.0 - 0.004 * 350.5), 5.0]
    assert by_step["held_out"] == [pytest.approx(6.0 - 1.6 + 0.5), 5.5]
    # Where the one has read as many tokens as the other in 400 steps, it has made 800.
    assert by_tokens["place"] == 400 * 32 * 32
    assert by_tokens["held_out"] == [pytest.approx(6.0 - 3.2 + 0.5), 5.5]


def test_tokens_follow_warm_up_phases_and_what_was_changed_on_the_way(tmp_path: Path, store: Path):
    stages = ("batch.warmup=[{steps: 4, samples: 4}]", "batch.phases=[{steps: 6, sequence_length: 16}]")
    run = make_run(tmp_path, store, "changed", "steps=30", *stages)
    expected = [run.config().tokens_before(step) for step in range(1, 11)]
    expected += [expected[-1] + 8 * 32 * step for step in range(1, 21)]
    run.record_event("started", step=0, world_size=1)
    run.record_event("started", step=20, world_size=1)
    run.reconfigure(make_config(tmp_path, store, "steps=30", *stages, "batch.samples=8"))
    run.record_event("started", step=10, world_size=1)
    assert [*map(tokens_by_step(run), range(1, 31))] == expected
    # Without its first line.
    run.history.write_bytes(run.history.read_bytes()[9:])
    assert len(list_attempts(run.events())) == 2
    assert [*map(tokens_by_step(run), range(1, 31))] == expected


def test_curves_are_drawn_by_the_tracking_store_of_both_runs():
    def told(*uris: str) -> str:
        infos = [RunInfo(name="r", run_id=f"id{n}", tracking_uri=uri) for n, uri in enumerate(uris)]
        return curves_in_mlflow(*infos)

    database = "sqlite:////runs/mlflow.db"
    assert f"`mlflow ui --backend-store-uri {database}`" in told(database, database)
    assert told("http://tracking:5000/", "http://tracking:5000/").startswith("Open http://tracking:5000/#/")
    for uris in (("http://one", "http://two"), ("", "")):
        assert "not in one MLflow tracking store" in told(*uris)


@pytest.mark.parametrize("experiments", [("one", "one"), ("one", "other")])
def test_printed_address_asks_for_both_runs(
    experiments: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracked = [start_run(name, "run", config={}, tags={}, runs_dir=tmp_path) for name in experiments]
    infos = [
        RunInfo(name="r", run_id=run.run_id, tracking_uri=run.uri, experiment_id=run.experiment_id)
        for run in tracked
    ]
    address = urlsplit(curves_in_mlflow(*infos).rpartition("open ")[2])
    path, _, query = address.fragment.partition("?")
    asked = dict(parse_qsl(query))
    ids = json.loads(asked["experiments"]) if "experiments" in asked else [path.split("/")[2]]
    found = connect(tracked[0].uri).search_runs(ids, asked["searchFilter"])
    assert {one.info.run_id for one in found} == {run.run_id for run in tracked}


def test_settings_in_lists_have_numbers_and_plain_lists_stay_whole():
    nested = {"a": {"b": [1, 2]}, "c": [{"d": None}, {"d": []}], "e": {}}
    assert dict(flat_settings(nested)) == {"a.b": [1, 2], "c.0.d": None, "c.1.d": [], "e": {}}


def test_command_answers_people_and_programs(left: RunDirectory, right: RunDirectory):
    place = ["--runs-dir", str(left.path.parent)]
    printed = cloze("runs", *place, "compare", "left", "right")
    assert all(text in printed for text in ("batch.samples", "left out", "held-out loss", "curves: "))
    found = json.loads(cloze("runs", "compare", "left", "right", *place, "--by", "tokens", "--json"))
    assert found == json.loads(json.dumps(compare(left, right, "tokens")))


def test_list_of_runs_names_its_directory_and_the_list_of_fine_tunings_where_there_are_any(
    tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    empty = cloze("runs")
    assert "runs in runs" in empty
    assert "finetune list" not in empty
    made = tmp_path / "scores" / "glue" / "run@100"
    made.mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    assert "Fine-tunings: cloze finetune list scores" in cloze("runs")


def test_differences_are_those_of_the_runs_and_their_data_and_no_others(
    left: RunDirectory, right: RunDirectory, tmp_path: Path
):
    found = compare(left, right)
    assert found["settings"] == {"batch.samples": (16, 32), "optimizer.lr": (1e-3, 2e-3)}
    assert found["data"] == {"left out": ([], [90])}
    assert compare(left, left)["settings"] == compare(left, left)["data"] == {}
    other = write_store(tmp_path / "other" / "tokens", seed=3)
    found = compare(left, make_run(tmp_path, other, "other", "steps=1000"))
    assert found["settings"].keys() == {"data.stores.0.path"}
    assert "stores.0.fingerprint" in found["data"]
