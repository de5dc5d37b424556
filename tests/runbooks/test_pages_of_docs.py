"""The pages of `docs/` with commands: every command block, as printed, in the situation of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.run.directory import RunDirectory
from tests.benchmarks.published import PAGE, published, table
from tests.runbooks import map
from tests.runbooks.materials import (
    BLOCK,
    ROOT,
    Corpus,
    Prepares,
    Situation,
    follow,
    named,
    write_rows,
    write_run,
)

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.glob("*.md") if BLOCK.search(page.read_text()))


@pytest.fixture
def data(corpus: Corpus, tmp_path: Path, object_store: dict[str, str], situation: Prepares) -> Situation:
    """A package with a file that does not parse, which may be left out."""
    config, out, run = tmp_path / "data.yaml", tmp_path / "data", tmp_path / "run.yaml"
    corpus.write(config, out)
    write_run(run, out / "tokens", f"{tmp_path}/runs")
    settings = {"CONFIG": config, "OUT": out, "RUN_CONFIG": run, "STORE": "s3://bucket/corpus"}
    shown = ("what would be prepared", "target:", "the whole preparation", "artefacts", "bytes per token")
    return situation(settings, *shown, **object_store)


@pytest.fixture
def training(
    run: RunDirectory, run_config: Path, prepared: Path, tmp_path: Path, situation: Prepares
) -> Situation:
    """A run whose workers were killed."""
    name = run.path.name
    settings = named(run, CONFIG=run_config, TOKENS=prepared / "tokens")
    shown = ("what would be trained", "verified", f"{name}@20", "exported", "ways to spread the state")
    return situation(settings, *shown)


@pytest.fixture
def fine_tuning(run: RunDirectory, tmp_path: Path, situation: Prepares) -> Situation:
    """A run with checkpoints, and rows with labels."""
    write_rows(tmp_path, 60)
    shown = (
        "what would be trained",
        "worst errors",
        "AutoModelForSequenceClassification",
        "nearest at layer",
    )
    return situation(named(run, ROWS=tmp_path / "rows.csv"), *shown)


@pytest.fixture
def python(
    run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path, situation: Prepares
) -> Situation:
    """A finished preparation, a run whose workers were killed, and rows with labels."""
    write_rows(tmp_path, 60)
    corpus.write(tmp_path / "data.yaml", corpus.out)
    settings = named(run, CONFIG=tmp_path / "data.yaml", OUT=prepared, ROWS=tmp_path / "rows.csv")
    shown = ("documents,", "held out", f"{run.path.name}@", "parameters", "began again-", "reviews 1 ")
    scores = ("1 scores read", "prompted", "probed", "ReferenceNotFoundError")
    return situation(settings, *shown, *scores)


@pytest.fixture
def clusters(run_config: Path, tmp_path: Path, without_cluster: Prepares) -> Situation:
    """A machine without a cluster."""
    settings = {"CONFIG": run_config, "OPTIONS": "--dry-run", "FILES": tmp_path / "slurm"}
    return without_cluster(settings, "SUCCEEDED", "what would be trained", "cloze.sbatch")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_page_work(page: Path, request: pytest.FixtureRequest):
    follow(page, request.getfixturevalue(map.situation_of(page)))


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *DOCS.glob("*.md"), *map.RUNBOOKS.glob("*.md")], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page: Path):
    targets = re.findall(r"""\]\(([^)#]+)|<img src="([^"]+)""", page.read_text())
    assert [link or image for link, image in targets if not (page.parent / (link or image)).exists()] == []


def test_the_table_of_speeds_has_the_published_rows():
    assert table(published()) in PAGE.read_text()
