"""From a score to the bytes of the source files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from cluster.artefacts.manifest import InputEntry, hash_file, read_manifest
from cluster.artefacts.remote import Remote
from cluster.artefacts.storage import commit
from cluster.publication import push
from pipeline.checkpoint.checkpoint import EMA_FILE, MODEL_FILE
from pipeline.checkpoint.store import CheckpointStore
from pipeline.commands.output import json_text
from pipeline.inspect import lineage
from pipeline.inspect.lineage import Node, trace
from pipeline.run.config import identity_of
from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import RunLog
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from tests.pipeline.command import cloze
from tests.pipeline.ranks import make_run
from tests.pipeline.small_checkpoints import state_at, write_files


def entry_of(kind: str, directory: Path) -> InputEntry:
    """The entry that users of an artefact record."""
    return InputEntry(kind, str(directory), read_manifest(directory).fingerprint)


def make(directory: Path, kind: str, *inputs: InputEntry) -> InputEntry:
    """Commit an artefact of one file and return the entry that its users record."""
    staging = directory.with_name(f"{directory.name}.staging")
    staging.mkdir(parents=True)
    (staging / "data").write_text(kind)
    commit(staging, directory, kind, config={}, inputs=inputs)
    return entry_of(kind, directory)


@pytest.fixture
def road(tmp_path: Path) -> Path:
    """Source file -> documents -> tokens -> checkpoint -> scores; returns the directory of all."""
    source = tmp_path / "dump.xml"
    source.write_text("<page/>")
    file = InputEntry("source-file", str(source), hash_file(source)[0])
    documents = make(tmp_path / "data" / "documents", "documents", file)
    tokens = make(tmp_path / "data" / "tokens", "tokens", documents)
    run = make_run(tmp_path, tmp_path / "data" / "tokens", "run").path
    checkpoints = CheckpointStore(run / "checkpoints")
    write_files(checkpoints, state_at(10), inputs=[tokens])
    # As fine-tuning records them: the checkpoint by reference, the tokens by their preparation.
    checkpoint = replace(entry_of("checkpoint", checkpoints.fetch(10)), uri="run@10")
    preparation = replace(tokens, uri=str(tmp_path / "data"))
    make(tmp_path / "scores" / "run@10", "scores", checkpoint, preparation)
    return tmp_path


def nodes(node: Node) -> list[Node]:
    return [node, *(each for child in node.children() for each in nodes(child))]


def kinds(node: Node) -> list[str]:
    return [each.kind for each in nodes(node)]


def problems(node: Node) -> list[str]:
    return [each.problem for each in nodes(node) if each.problem]


def test_a_score_leads_to_the_bytes_of_its_source_files(road: Path):
    tree = trace(str(road / "scores" / "run@10"), road / "runs")
    assert kinds(tree)[:5] == ["scores", "checkpoint", "tokens", "documents", "source-file"]
    assert problems(tree) == []
    assert nodes(tree)[4].fingerprint == hash_file(road / "dump.xml")[0]


def test_documents_that_several_were_made_from_are_read_once_and_their_files_counted_named_and_listed(
    road: Path, monkeypatch: pytest.MonkeyPatch
):
    files = [InputEntry("source-file", f"part-{number}.xml", f"{number:032x}") for number in range(5)]
    tokens = road / "many" / "tokens"
    documents = make(road / "many" / "documents", "documents", *files)
    make(tokens, "tokens", documents, make(road / "many" / "dedup", "dedup", documents))
    read: list[Path] = []
    manifest_at = lineage.manifest_at
    monkeypatch.setattr(lineage, "manifest_at", lambda place: read.append(place) or manifest_at(place))
    tree = trace(str(tokens), road / "runs")
    assert kinds(tree).count("documents") == 2
    assert read.count(road / "many" / "documents") == 1
    assert cloze("lineage", tokens, "--json") == json_text(tree.as_dict()) + "\n"
    summary, listed = cloze("lineage", tokens), cloze("lineage", tokens, "--files")
    counts = {"5 source files": 1, "as above": 1, "part-2.xml": 1, "part-3.xml": 0}
    assert {text: summary.count(text) for text in counts} == counts
    assert [listed.count(f"{one.fingerprint}  source-file {one.uri}\n") for one in files] == [1] * 5


def test_an_artefact_that_was_made_anew_is_not_taken_for_the_one_that_was_used(road: Path):
    (road / "data" / "tokens").rename(road / "data" / "old")
    anew = make(road / "data" / "tokens", "tokens")
    (problem,) = problems(trace("run@10", road / "runs"))
    assert anew.fingerprint in problem


def test_data_and_runs_that_moved_together_are_found_again(
    road: Path, tmp_path_factory: pytest.TempPathFactory
):
    moved = tmp_path_factory.mktemp("moved") / "data"
    (road / "data").rename(moved)
    assert kinds(trace(str(moved / "tokens"), road / "runs")) == ["tokens", "documents", "source-file"]


def save_as_trainer(run: RunDirectory, step: int, tokens: InputEntry, **changes: Any) -> None:
    """Commit a checkpoint with the state of a run of this configuration."""
    config = run.config()
    state = state_at(
        step,
        2.5,
        samples=config.batch_plan.samples_between(0, step),
        store_fingerprints=[tokens.fingerprint],
        identity=orjson.loads(orjson.dumps(identity_of(config))),
        run_id=run.info.run_id,
        run_name=run.info.name,
        **changes,
    )
    files = dict.fromkeys((MODEL_FILE, EMA_FILE), b"weights")
    write_files(CheckpointStore(run.checkpoints), state, files, inputs=[tokens])


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    """A run with phases and an average, that left data out, was changed, and went on with other workers."""
    stretches = (
        "batch.warmup=[{steps: 2, samples: 8}]",
        "batch.phases=[{steps: 5, sequence_length: 16, weights: [1]}]",
    )
    made = make_run(tmp_path, store, "changed", "ema={decay: 0.99}", *stretches)
    workers = [{"rank": rank, "host": host, "pid": 1} for rank, host in enumerate(("alpha", "beta"))]
    made.record_event("started", step=0, world_size=2, workers=workers, environment={"python": "3.11.9"})
    SkipLedger(made).add(SkippedStep(at_update=3, data_step=3, loss=9.0, score=11.0))
    made.record_event("spike", step=4, at_update=3, data_step=3, back_to=0)
    change = {"step": 4, "differences": {"optimizer.lr": "was 0.001, is 0.002"}}
    made.record_event("changed", **change)
    made.record_event("started", step=4, world_size=1)
    made.record_event("started", step=8, world_size=1)
    save_as_trainer(made, 8, entry_of("tokens", store), skipped_data=[3], allowed_changes=[change])
    log = RunLog(made)
    log.write("train", 9, {"loss": 3.0})
    log.close()
    return made


def test_checkpoint_says_how_training_went_until_it(run: RunDirectory):
    node = trace("changed@8", run.path.parent)
    facts = node.facts
    expected = {
        "phases": [{"steps": 5, "sequence_length": 16, "weights": [1.0]}],
        "warmup": [{"steps": 2, "samples": 8}],
        "mixture": [{"weight": 1.0}],
        "ema": {"decay": 0.99, "file": "ema.safetensors"},
        "left_out": [3],
    }
    assert {name: facts[name] for name in expected} == expected
    assert (facts["batch"]["samples"], facts["batch"]["sequence_length"]) == (16, 32)
    assert facts["allowed_changes"][0]["differences"] == {"optimizer.lr": "was 0.001, is 0.002"}
    created = read_manifest(run.checkpoints / "step-00000008").created_by
    assert facts["saved_by"]["commit"] == created.commit
    assert facts["saved_by"]["host"] == created.host
    # The third attempt began with this very checkpoint.
    first, second = facts["attempts"]
    assert [(own["from_step"], own["workers"]) for own in (first, second)] == [(1, 2), (5, 1)]
    assert (first["hosts"], first["environment"]) == (["alpha", "beta"], {"python": "3.11.9"})
    assert [own["event"] for own in facts["events"]] == ["spike", "changed"]
    assert (kinds(node), problems(node)) == (["checkpoint", "tokens"], [])
    printed = cloze("lineage", "changed@8", "--runs-dir", run.path.parent)
    shown = ("left out: 3", "decay 0.99", "hosts alpha, beta", "event spike", "was 0.001, is 0.002")
    assert [text for text in shown if text not in printed] == []


def test_checkpoint_that_was_copied_away_keeps_its_own_facts(run: RunDirectory, tmp_path: Path):
    moved = tmp_path / "elsewhere" / "step-00000008"
    moved.parent.mkdir()
    (run.checkpoints / "step-00000008").rename(moved)
    alone = trace(str(moved), tmp_path / "nothing").facts
    assert alone["left_out"] == [3]
    assert "attempts" not in alone
    assert "attempts" in trace(str(moved), run.path.parent).facts


def test_run_leads_to_its_newest_checkpoint_and_says_where_it_stands(run: RunDirectory):
    for reference in ("changed", str(run.path)):
        node = trace(reference, run.path.parent)
        assert kinds(node) == ["run", "checkpoint", "tokens"]
        assert (node.facts["step"], len(node.facts["attempts"])) == (9, 3)
        assert node.facts["left_out"][0]["loss"] == 9.0


def test_run_without_a_checkpoint_leads_to_its_stores(tmp_path: Path, store: Path):
    made = make_run(tmp_path, store, "fresh")
    node = trace("fresh", made.path.parent)
    assert kinds(node) == ["run", "tokens"]
    assert node.inputs[0].fingerprint == read_manifest(store).fingerprint
    assert node.facts["state"] == "created"


def test_teacher_is_named_as_one(run: RunDirectory):
    teacher = run.checkpoints / "step-00000008"
    save_as_trainer(run, 12, entry_of("checkpoint", teacher))
    (node,) = trace("changed@12", run.path.parent).inputs
    assert node.note.startswith("teacher, step 8")
    assert [child.kind for child in node.inputs] == ["tokens"]


def test_an_address_in_a_manifest_is_opened_only_below_a_place_that_the_user_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, opened = f"memory://{tmp_path.name}", []
    documents = make(tmp_path / "documents", "documents")
    push(tmp_path / "documents", f"{store}/made/documents")
    strange = [f"http://h{tmp_path}/x", "hf://datasets/a/b", f"{store}/made/../x", "s3://"]
    inputs = [replace(documents, uri=f"{store}/made/documents")]
    inputs += [InputEntry("checkpoint", uri, uri) for uri in strange]
    make(tmp_path / "tokens", "tokens", *inputs)
    (tmp_path / "documents").rename(tmp_path / "moved")
    push(tmp_path / "tokens", f"{store}/made/tokens")
    open_uri = Remote.open
    monkeypatch.setattr(Remote, "open", lambda uri: opened.append(uri) or open_uri(uri))
    for reference, follow, found in (
        (str(tmp_path / "tokens"), (), False),
        (str(tmp_path / "tokens"), (store,), True),
        (f"{store}/made/tokens", (), True),
    ):
        first, *others = trace(reference, tmp_path, follow).inputs
        assert (first.problem == "") is found
        assert all(node.problem for node in others)
    assert {uri.rpartition("/")[0] for uri in opened} <= {f"{store}/made", f"{store}/made/documents"}
