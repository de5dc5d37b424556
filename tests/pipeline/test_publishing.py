"""Runs in MLflow's registry, and a copy of them in Weights & Biases."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.pyfunc
import mlflow.transformers
import pytest
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from cluster.artefacts.errors import ConfigError, MissingInputError, ReferenceNotFoundError
from pipeline.checkpoint.publishing import list_published, publish, track_anew
from pipeline.checkpoint.references import find_checkpoint
from pipeline.checkpoint.store import apply_retention, store_of
from pipeline.export.formats import Export, save_flavour
from pipeline.pretrain.launch import create_run
from pipeline.run.config import identity_of
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.run.events import Event
from pipeline.run.history import published_steps
from pipeline.run.lifecycle import replay
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog
from pipeline.run.log.wandb_sink import require_client, send_to_wandb
from pipeline.run.model_versions import find_version
from pipeline.run.tracking import connect, knows_run, start_run, tracking_uri
from tests.pipeline.ranks import make_config, make_run
from tests.pipeline.small_checkpoints import state_at, write_files


@pytest.fixture
def run(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of twelve steps with three checkpoints, tracked in SQLite beside it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = make_config(tmp_path, store)
    config.runs_dir.mkdir()
    connect(tracking_uri(config.runs_dir)).search_experiments()
    # A file that is deleted would stay open in this process.
    shutil.copy(config.runs_dir / "mlflow.db", tmp_path / "empty.db")
    tracked = start_run("test", "own", config={"a": 1}, tags={}, runs_dir=config.runs_dir)
    run = RunDirectory(config.runs_dir / "own")
    run.create(RunInfo(name="own", run_id=tracked.run_id, tracking_uri=tracked.uri), config)
    log_steps(run, 1, 13)
    return run


def log_steps(run: RunDirectory, first: int, last: int) -> None:
    kept = store_of(run)
    with closing(RunLog(run, since=first - 1)) as log:
        for step in range(first, last):
            log.write("train", step, {"loss": 1 / step})
            if step % 4 == 0:
                write_files(kept, state_at(step, 1 / step, run_name="own", run_id=run.info.run_id))
                place = {"directory": kept.place(step), "fingerprint": "f", "metrics": {}, "best": True}
                log.write("checkpoint", step, place)
    assert replay(run)


def history(run: RunDirectory) -> list[tuple[int, float]]:
    """All rows of the loss in the run's tracking store."""
    found = connect(run.info.tracking_uri).get_metric_history(run.info.run_id, "loss")
    return sorted((entry.step, entry.value) for entry in found)


def test_an_alias_leads_to_the_checkpoint_that_was_published_last_and_moves_back(run: RunDirectory):
    runs_dir = run.path.parent
    for name, alias in (("a/b", None), ("7", None), ("a", "latest"), ("a", "v2"), ("a", "b c")):
        with pytest.raises(ConfigError):
            publish("own@4", name, alias, runs_dir)
    assert published_steps(run) == set()
    first = publish("own@8", "tagger", "champion", runs_dir)
    assert publish("own@latest", "tagger", "champion", runs_dir).version == 2
    assert find_checkpoint("models:/tagger@champion", runs_dir).step == 12
    assert publish("models:/tagger/1", "tagger", "champion", runs_dir) == first
    assert find_checkpoint("models:/tagger@champion", runs_dir).step == 8
    listed = list_published("tagger", runs_dir)
    assert [(row["reference"], row["aliases"]) for row in listed] == [("own@8", ["champion"]), ("own@12", [])]
    assert list_published(None, runs_dir) == listed
    # Retention keeps what was published.
    assert apply_retention(store_of(run), 1, pinned=lambda: published_steps(run)) == [4]


def test_a_published_export_is_loaded_by_mlflow_alone(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = {word: n for n, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two"))}
    BertTokenizer(vocab=words).save_pretrained(tmp_path / "export")
    shape: Any = {"vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertForMaskedLM(BertConfig(intermediate_size=8, **shape)).save_pretrained(tmp_path / "export")
    exported = Export(tmp_path / "export", "BERT", "AutoModelForMaskedLM", "f", None, ())
    save_flavour(exported, tmp_path / "flavour")
    runs_dir = run.path.parent
    publish("own@8", "tagger", None, runs_dir)
    first, again = (
        publish("own@8", "tagger", "champion", runs_dir, flavour=tmp_path / "flavour") for _ in range(2)
    )
    assert first == again
    assert find_checkpoint("models:/tagger@champion", runs_dir).step == 8
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", tracking_uri(runs_dir))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(runs_dir))
    (filled, *_) = mlflow.transformers.load_model("models:/tagger@champion")("one [MASK]")
    assert mlflow.pyfunc.load_model("models:/tagger@champion").predict("one [MASK]") == [filled["token_str"]]
    found = connect(tracking_uri(runs_dir)).get_model_version("tagger", str(first.version))
    assert "own@8" in (found.description or "")


def test_a_store_that_lost_everything_gets_metrics_checkpoints_and_published_models_again(run: RunDirectory):
    runs_dir, before, old = run.path.parent, history(run), run.info
    for reference in ("own@8", "own@12", "own@8"):
        publish(reference, "tagger", "champion", runs_dir)
    shutil.copy(runs_dir.parent / "empty.db", runs_dir / "mlflow.db")
    assert track_anew(run, move=False) == tracking_uri(runs_dir)
    assert (run.info.run_id != old.run_id, run.info.name, history(run)) == (True, old.name, before)
    client = connect(run.info.tracking_uri)
    assert client.get_model_version_by_alias("own", "best").tags["cloze.step"] == "12"
    assert find_checkpoint("models:/tagger@champion", runs_dir).step == 8
    assert client.get_run(run.info.run_id).data.tags["cloze.earlier_run_id"] == old.run_id


def test_a_store_restored_from_a_backup_gets_what_came_after_it_and_nothing_twice(run: RunDirectory):
    database = run.path.parent / "mlflow.db"
    shutil.copy(database, database.with_suffix(".backup"))
    log_steps(run, 13, 17)
    after, old = history(run), run.info
    shutil.copy(database.with_suffix(".backup"), database)
    assert len(history(run)) < len(after)
    for _ in range(2):
        track_anew(run, move=False)
        assert history(run) == after
    assert run.info == old
    assert find_version(connect(old.tracking_uri), "own", 16) is not None


def test_another_store_is_taken_only_where_that_is_meant(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = history(run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(ConfigError):
        track_anew(run, move=False)
    track_anew(run, move=True)
    assert run.info.tracking_uri == tracking_uri(run.path.parent)
    assert history(run) == before
    with pytest.raises(ReferenceNotFoundError):
        publish("own@5", "tagger", None, run.path.parent)


def test_a_run_that_was_deleted_in_mlflow_is_begun_anew_and_a_deleted_experiment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    start = partial(start_run, "e", "n", config={}, tags={}, runs_dir=tmp_path)
    first = start()
    assert start(resume=first.run_id).run_id == first.run_id
    client = connect(first.uri)
    client.delete_run(first.run_id)
    other = start(resume=first.run_id)
    assert other.run_id != first.run_id
    assert (knows_run(first.uri, first.run_id), knows_run(first.uri, other.run_id)) == (False, True)
    client.delete_experiment(first.experiment_id)
    with pytest.raises(ConfigError) as refusal:
        start()
    assert f"mlflow experiments restore -x {first.experiment_id}" in refusal.value.next_step


IS_INSTALLED = getattr(find_spec("wandb"), "origin", None) is not None
OFFLINE = "wandb={project: tests, offline: true}"
STAND_IN = '''
"""The calls that a run makes of the client, as lines of JSON in the file `calls` of its directory."""
import json, pathlib

class Run:
    def __init__(self, **options):
        self.file = pathlib.Path(options["dir"], "calls")
        self.note("init", options)

    def note(self, name, *arguments):
        with self.file.open("a") as stream:
            print(json.dumps([name, *arguments]), file=stream)

    def __getattr__(self, name):
        return lambda *arguments, **options: self.note(name, *arguments, *options.values())

init, Settings = Run, dict
'''


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a client that writes down its calls in the place of the real one, here and in programs started from here."""
    (directory / "client").mkdir()
    (directory / "client" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(directory / "client")
    # Set before it is deleted, so that whatever is imported in its place goes with the test.
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    del sys.modules["wandb"]


def calls(directory: Path, name: str) -> list[Any]:
    """The arguments of every call of this name."""
    found = map(json.loads, (directory / "calls").read_text().splitlines())
    return [arguments for called, *arguments in found if called == name]


def test_attempts_at_a_run_are_one_run_there_with_every_entry_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stand_in(tmp_path, monkeypatch)
    run = make_run(tmp_path, tmp_path, "tiny", OFFLINE)
    first = RunLog(run)
    first.senders.append(send_to_wandb(run))
    for step in (1, 2, 3):
        first.write(LogKind.STEP, step, {"loss": 4.0 - step})
    first.write(LogKind.HELD_OUT, 3, {"loss": 1.5})
    first.close()
    second = RunLog(run, since=2)
    second.senders.append(send_to_wandb(run))
    assert not second.write(LogKind.STEP, 3, {"loss": 1.0}), "a repeated step is in the log already"
    second.write(LogKind.STEP, 4, {"loss": float("nan")})
    second.event(LogKind.SPIKE, 4, {"loss": 9.0, "reason": "spike"})
    second.close()
    assert not run.events(Event.TRACKING_BEHIND)
    # The MLflow id of `make_run`, so that another attempt continues the run.
    expected = {"id": "0" * 32, "project": "tests", "name": "tiny", "resume": "allow", "mode": "offline"}
    begun = [options for (options,) in calls(run.path, "init")]
    assert [{name: options[name] for name in expected} for options in begun] == [expected] * 2
    rows, places = zip(*calls(run.path, "log"), strict=True)
    losses = [{"step": step, "loss": 4.0 - step} for step in (1, 2, 3)]
    assert list(rows[:4]) == [*losses, {"step": 3, "held_out_loss": 1.5}]
    assert (rows[4]["step"], str(rows[4]["loss"])) == (4, "nan")
    assert rows[5:] == ({"step": 4, "spike/loss": 9.0},)
    # The client leaves out what comes again at a place.
    assert list(places) == sorted(set(places))
    assert calls(run.path, "finish") == [[1], [1]], "its last step is not made yet"


def test_a_missing_client_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Set before it is deleted, so that whatever is imported in its place goes with the test.
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    del sys.modules["wandb"]
    if IS_INSTALLED:
        monkeypatch.setitem(sys.modules, "wandb", None)
    # The client makes a directory of its name where it runs, which Python takes for a package.
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    require_client(None)
    config = make_config(tmp_path, tmp_path, "wandb={}")
    with pytest.raises(MissingInputError) as refusal:
        create_run(config)
    assert "pip install wandb" in refusal.value.next_step
    assert not config.runs_dir.exists()


def test_a_copy_changes_no_update_of_a_run(tmp_path: Path):
    plain, copied = (make_config(tmp_path, tmp_path, *options) for options in ((), (OFFLINE,)))
    assert identity_of(copied) == identity_of(plain)
