"""The pages of `docs/` with commands: every command block, as printed, in the situation of its page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.run.directory import RunDirectory
from tests.object_store import running_store
from tests.runbooks.follow import BLOCK, follow
from tests.runbooks.materials import ROOT, Corpus, Situation, copy_run, on_local_cluster
from tests.runbooks.picture import PICTURE, picture
from tests.runbooks.test_map import LINK

DOCS = ROOT / "docs"
PAGES = sorted(page.stem for page in DOCS.glob("*.md") if BLOCK.search(page.read_text()))


@pytest.fixture
def data(corpus: Corpus, tmp_path: Path) -> Iterator[Situation]:
    """A package with a file that does not parse, which may be left out."""
    config, out, run = tmp_path / "data.yaml", tmp_path / "data", tmp_path / "run.yaml"
    config.write_text(f"base: {corpus.config}\nout: {out}\nmax_rejects: 1\n")
    run.write_text(
        f"base: {ROOT}/configs/demo/practice-pretrain.yaml\nruns_dir: {tmp_path}/runs\n"
        f"data: {{stores: [{{path: {out}/tokens}}]}}\n"
    )
    settings = {"CONFIG": config, "OUT": out, "RUN_CONFIG": run, "STORE": "s3://bucket/corpus"}
    with running_store():
        store = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        environment = {**corpus.environment, **store, "CLOZE_CACHE": str(tmp_path / "cache")}
        expected = (
            "what would be prepared",
            "target:",
            "the whole preparation",
            "artefacts",
            "bytes per token",
        )
        yield Situation(tmp_path, settings, environment, expected)


@pytest.fixture
def training(killed_run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run whose workers were killed, and a copy of it under another name."""
    run = copy_run(killed_run, tmp_path / "runs")
    other = RunDirectory(tmp_path / "runs" / f"other-{run.path.name}")
    copy_run(killed_run, tmp_path / "more").path.rename(other.path)
    settings = {
        "CONFIG": killed_run.path.parents[1] / "run.yaml",
        "TOKENS": prepared / "tokens",
        "RUNS": run.path.parent,
        "RUN": run.path.name,
        "OTHER": other.path.name,
    }
    expected = (
        "what would be trained",
        "verified",
        f"{run.path.name}@20",
        "exported",
        "ways to spread the state",
    )
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def fine_tuning(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Situation:
    """A run with checkpoints, and rows with labels."""
    run = copy_run(killed_run, tmp_path / "runs")
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(60)))
    settings = {"RUN": run.path.name, "RUNS": run.path.parent, "ROWS": tmp_path / "rows.csv"}
    expected = (
        "what would be trained",
        "worst errors",
        "AutoModelForSequenceClassification",
        "nearest at layer",
    )
    return Situation(tmp_path, settings, corpus.environment, expected)


@pytest.fixture
def python(killed_run: RunDirectory, prepared: Path, corpus: Corpus, tmp_path: Path) -> Situation:
    """A finished preparation, a run whose workers were killed, and rows with labels."""
    run = copy_run(killed_run, tmp_path / "runs")
    config = tmp_path / "data.yaml"
    config.write_text(f"base: {corpus.config}\nmax_rejects: 1\n")
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(60)))
    settings = {"CONFIG": config, "OUT": prepared, "RUN": run.path.name, "RUNS": run.path.parent}
    expected = (
        "documents,",
        "held out",
        f"{run.path.name}@",
        "parameters",
        "began again-",
        "reviews 1 ",
        "1 scores read",
        "prompted",
        "probed",
        "ReferenceNotFoundError",
    )
    return Situation(tmp_path, settings | {"ROWS": tmp_path / "rows.csv"}, corpus.environment, expected)


@pytest.fixture
def clusters(killed_run: RunDirectory, corpus: Corpus, tmp_path: Path) -> Iterator[Situation]:
    """A machine without a cluster."""
    settings = {
        "CONFIG": killed_run.path.parents[1] / "run.yaml",
        "OPTIONS": "--dry-run",
        "FILES": tmp_path / "slurm",
    }
    yield from on_local_cluster(
        corpus, tmp_path, settings, ("SUCCEEDED", "what would be trained", "cloze.sbatch")
    )


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page_work(page: str, request: pytest.FixtureRequest):
    situation: Situation = request.getfixturevalue(page.replace("-", "_"))
    printed = follow(DOCS / f"{page}.md", situation)
    for text in situation.expected:
        assert text in printed, printed


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS.glob("*.md")], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path):
    targets = [match["target"] for match in LINK.finditer(page.read_text())]
    targets += re.findall(r'<img src="([^"]+)"', page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_picture_of_the_road_is_drawn_from_its_stages():
    assert PICTURE.read_text() == picture(), "python -m tests.runbooks.picture"
