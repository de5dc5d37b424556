"""The end of a road: one artefact with its results, one page, and the pages of its stages beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.manifest import read_manifest, write_durably
from cluster.artefacts.storage import commit, staging_directory, storage_errors
from cluster.artefacts.visible import finalize
from data_prep.report import render_report
from data_prep.stats import describe_store
from data_prep.token_store import TokenStore
from pipeline.road.run import Finished
from pipeline.road.stages import RoadConfig
from pipeline.run.history import StoredSettings, tokens_by_step
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.tune.report.curves import Curve, plot
from pipeline.tune.report.page import percent, render_page, start_of
from pipeline.tune.results import file_entries
from pipeline.tune.scores import Score
from pipeline.tune.summary import protocol, summarise

KIND = "road"
RESULTS_FILE = "road.json"
PAGE_FILE = "index.html"
TEMPLATE = Path(__file__).with_name("page.html.j2")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out evaluations of the run."""

    metric: str
    steps: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Results:
    """Results of a road: facts that depend on its inputs and settings, never on the time or the place."""

    stores: list[dict[str, Any]]
    """Documents and tokens of every token store."""
    steps: int
    tokens: int
    """Tokens of text that the run read."""
    held_out: HeldOut
    scores: list[dict[str, Any]]
    """Of every training, without the name of its checkpoint."""


def read_results(found: Finished) -> Results:
    """The results of finished stages."""
    assert found.run is not None, "a road has a run"
    settings = StoredSettings.of(found.run)
    trained = read_metrics(found.run)
    step = trained[-1]["step"] if trained else 0
    evaluated = [
        (entry["step"], value)
        for entry in read_metrics(found.run, LogKind.HELD_OUT)
        if (value := entry.get(settings.metric)) is not None
    ]
    stats = [read_manifest(store).stats for store in found.stores]
    return Results(
        stores=[{"documents": one["rows"], "tokens": one["tokens"]} for one in stats],
        steps=step,
        tokens=tokens_by_step(found.run, settings)(step),
        held_out=HeldOut(settings.metric, [step for step, _ in evaluated], [value for _, value in evaluated]),
        scores=[
            score.model_dump(mode="json", exclude={"reference"})
            for scores in found.scores.values()
            for score in scores
        ],
    )


def commit_report(road: RoadConfig, found: Finished) -> Path:
    """Write the results and the pages, and commit them; returns the page.

    The artefact's hashes cover the results. The pages beside them hold times and paths, and are made anew each time.

    Raises:
        StorageError: the file system refuses.
    """
    assert found.run is not None, "a road has a run"
    results, directory = read_results(found), road.out / road.name
    staging = staging_directory(directory, "report")
    with storage_errors(directory):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        contents = orjson.dumps(asdict(results), option=orjson.OPT_INDENT_2)
        write_durably(staging / RESULTS_FILE, contents)
        pages = _write_stage_pages(staging, found)
        (staging / PAGE_FILE).write_text(_page(road, found, results, pages), encoding="utf-8")
    files = file_entries(staging, [RESULTS_FILE])
    config = {"checkpoint": road.checkpoint}
    stats = {"trainings": len(results.scores), "seconds": found.seconds, "run": found.run.path.name}
    commit(staging, directory, KIND, config=config, inputs=found.inputs, files=files, stats=stats)
    return directory / PAGE_FILE


def all_scores(found: Finished) -> list[Score]:
    """The scores of all fine-tunings, in order."""
    return [score for scores in found.scores.values() for score in scores]


def facts(found: Finished, results: Results) -> dict[str, str]:
    """The lines above the table of scores."""
    assert found.run is not None, "a road has a run"
    held_out = results.held_out
    return {
        **{
            str(path): f"{store['documents']:,} documents, {store['tokens']:,} tokens"
            for path, store in zip(found.stores, results.stores, strict=True)
        },
        "run": f"{found.run.path}  (MLflow run {found.run.info.run_id})",
        "pre-training": f"{results.steps:,} steps, {results.tokens:,} tokens",
        **(
            {f"held-out {held_out.metric}": f"{held_out.values[0]:.3f} first, {held_out.values[-1]:.3f} last"}
            if held_out.values
            else {}
        ),
        "fine-tuned": found.reference,
        **{f"scores of {place.parent.name}": str(place) for place in found.scores},
        "time of this command": ", ".join(
            f"{title} {spent:,.0f} s" for title, spent in found.seconds.items()
        ),
    }


def _write_stage_pages(directory: Path, found: Finished) -> list[tuple[str, str]]:
    """Write the pages that stages have of their own; returns their titles and file names."""
    assert found.run is not None, "a road has a run"
    pages = []
    for number, place in enumerate(found.stores):
        store = TokenStore.open(place, verify=False)
        text = render_report(store, describe_store(store))
        pages.append((f"the corpus {place.parent.name}", f"data-{number}.html", text))
    for number, place in enumerate(found.scores):
        text = render_page(place, found.run.path.parent)
        pages.append((f"the scores of {place.parent.name}", f"scores-{number}.html", text))
    for _, name, text in pages:
        (directory / name).write_text(text, encoding="utf-8")
    return [(title, name) for title, name, _ in pages]


def _page(road: RoadConfig, found: Finished, results: Results, pages: Sequence[tuple[str, str]]) -> str:
    from jinja2 import Environment, StrictUndefined

    rows = summarise(all_scores(found))
    held_out = results.held_out
    curve = Curve(held_out.metric, 0, held_out.steps, held_out.values, marked=True)
    environment = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "start": start_of}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=road.name,
        facts=facts(found, results),
        rows=rows,
        protocol=protocol(all_scores(found)),
        curve=plot([curve], title=held_out.metric, y_format=lambda y: f"{y:g}"),
        metric=held_out.metric,
        pages=pages,
    )
