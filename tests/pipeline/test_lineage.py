"""From a score to the bytes of the source files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import ReferenceNotFoundError
from cluster.manifest import InputEntry, hash_file
from cluster.storage import commit
from pipeline.lineage import Node, trace
from pipeline.pretrain import checkpoint as checkpoints
from pipeline.pretrain.run_directory import RUN_FILE, RunInfo
from tests.pipeline.test_checkpoint import save


def make(directory: Path, kind: str, *inputs: InputEntry) -> InputEntry:
    """Commit an artefact of one file and return the entry that its users record."""
    staging = directory.with_name(f"{directory.name}.staging")
    staging.mkdir(parents=True)
    (staging / "data").write_text(kind)
    manifest = commit(staging, directory, kind, config={}, inputs=inputs)
    return InputEntry(kind=kind, uri=str(directory), fingerprint=manifest.fingerprint)


@pytest.fixture
def road(tmp_path: Path) -> Path:
    """Source file -> documents -> tokens -> checkpoint -> scores; returns the directory of all."""
    source = tmp_path / "dump.xml"
    source.write_text("<page/>")
    file = InputEntry(kind="source-file", uri=str(source), fingerprint=hash_file(source)[0])
    documents = make(tmp_path / "data" / "documents", "documents", file)
    tokens = make(tmp_path / "data" / "tokens", "tokens", documents)
    run = tmp_path / "runs" / "run"
    (run / "checkpoints").mkdir(parents=True)
    info = RunInfo(name="run", run_id="0" * 32, tracking_uri="")
    (run / RUN_FILE).write_text(info.model_dump_json())
    path = save(run / "checkpoints", 10, inputs=[tokens])
    fingerprint = checkpoints.read_manifest(path).fingerprint
    make(
        tmp_path / "scores" / "run@10",
        "scores",
        # As fine-tuning records them: the checkpoint by reference, the tokens by their preparation.
        InputEntry(kind="checkpoint", uri="run@10", fingerprint=fingerprint),
        tokens.model_copy(update={"uri": str(tmp_path / "data")}),
    )
    return tmp_path


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.inputs:
        yield from nodes(child)


def test_a_score_leads_to_the_bytes_of_its_source_files(road: Path):
    tree = trace(str(road / "scores" / "run@10"), road / "runs")
    main_line = ["scores", "checkpoint", "tokens", "documents", "source-file"]
    assert [node.kind for node in nodes(tree)][:5] == main_line
    assert not [node.problem for node in nodes(tree) if node.problem]
    assert list(nodes(tree))[4].fingerprint == hash_file(road / "dump.xml")[0]


def test_an_artefact_that_was_made_anew_is_not_taken_for_the_one_that_was_used(road: Path):
    (road / "data" / "tokens").rename(road / "data" / "old")
    make(road / "data" / "tokens", "tokens")
    problems = [node.problem for node in nodes(trace("run@10", road / "runs")) if node.problem]
    assert len(problems) == 1
    assert "now holds something else" in problems[0]


def test_data_and_runs_that_moved_together_are_found_again(
    road: Path, tmp_path_factory: pytest.TempPathFactory
):
    moved = tmp_path_factory.mktemp("moved") / "data"
    (road / "data").rename(moved)
    tree = trace(str(moved / "tokens"), road / "runs")
    assert [node.kind for node in nodes(tree)] == ["tokens", "documents", "source-file"]


def test_what_does_not_exist_is_refused_with_the_nearest_name(road: Path):
    with pytest.raises(ReferenceNotFoundError, match=r"Did you mean run\?"):
        trace("rum@10", road / "runs")
