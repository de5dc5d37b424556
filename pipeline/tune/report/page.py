"""Scores as one HTML file that needs nothing else: tables, published scores, errors, curves, costs, lineage."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.visible import render, svg, visible
from cluster.copies import place_of
from pipeline.inspect.lineage import trace
from pipeline.run.tracking import connect, tracking_message, tracking_uri
from pipeline.tune.report.bootstrap import CONFIDENCE, NUM_RESAMPLES, confidence_interval
from pipeline.tune.report.predictions import form_of, worst_of
from pipeline.tune.scores import Line, Score, ScoresDirectory
from pipeline.tune.summary import SummaryRow, protocol, shown, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Path(__file__).with_name("page.html.j2")
NUM_ERRORS = 8
FOLDED_AT = 240
"""Characters of a text that are shown before a reader unfolds it."""
MOST_LABELS = 20
"""With more labels, the most frequent confusions are listed instead of a matrix."""
MOST_POINTS = 200
"""A longer curve is drawn as means of neighbouring points."""
COLOURS = ("#0b63a5", "#b4540a", "#3c7a33", "#8a3d8f")
"""Of curves, by the weights that trainings started from."""
MOST_FILES = 100
"""Files that are listed of one artefact."""
PAGE_FILE = "scores.html"
"""Name of the page among the artefacts of an MLflow run."""
TABLE_FILE = "scores-table.json"
"""MLflow shows it as a table."""


@dataclass(frozen=True, slots=True)
class Result:
    """A line of the summary, with all that the page shows of it."""

    row: SummaryRow
    interval: tuple[float, float] | None
    """Confidence interval of the main metric."""
    median: Score | None
    """The training whose predictions are shown; None for a baseline."""
    lines: Sequence[Line]
    """Its predictions."""


def render_page(directory: Path, runs_dir: Path, num_errors: int = NUM_ERRORS) -> str:
    """HTML of one self-contained page. The same artefacts give the same page.

    Args:
        runs_dir: where the runs lie that the lineage names.
        num_errors: worst errors of a training, at most.

    Raises:
        MissingInputError, CorruptArtefactError: `directory` holds no scores, or damaged ones.
    """
    opened = ScoresDirectory.open(directory)
    rows = summarise(opened.scores)
    results = [_result(opened, row) for row in rows]
    filters = {
        "percent": percent,
        "shown": lambda value, metric: shown(metric, value),
        "printed": printed,
        "number": lambda value: f"{value:,}",
        "visible": visible,
        "public": without_credentials,
    }
    costs = [
        {
            "trial": score.trial.name,
            "seconds": opened.seconds(score.trial),
            "examples": score.num_train_examples,
            "epochs": len(score.epochs),
            "updates": score.epochs[-1].update if score.epochs else 0,
            "run": opened.runs.get(score.trial.name, ""),
        }
        for score in opened.scores
    ]
    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        filters,
        name=f"{directory.resolve().parent.name}/{directory.resolve().name}",
        manifest=opened.manifest,
        results=results,
        protocol=protocol(opened.scores),
        confidence=CONFIDENCE,
        num_resamples=NUM_RESAMPLES,
        tasks=[_task(opened, name, results, num_errors) for name in dict.fromkeys(row.task for row in rows)],
        searched=[row for row in summarise(opened.scores, all_choices=True) if row.num_choices > 1],
        costs=costs,
        total_seconds=sum(cost["seconds"] or 0 for cost in costs),
        lineage=trace(place_of(directory), runs_dir),
        colours=COLOURS,
        most_files=MOST_FILES,
        folded_at=FOLDED_AT,
    )


def publish_page(
    directory: Path,
    scores: Sequence[Score],
    runs_dir: Path,
    tracked_runs: Sequence[str],
    on_page: Callable[[str], object] | None,
) -> None:
    """Render the page of committed scores once, hand it on, and log it. What fails is reported on stderr with the
    command that makes the page again.

    Args:
        tracked_runs: MLflow ids of the trainings' runs, which get the page and the table of the scores.
        on_page: takes the HTML.
    """
    try:
        page = render_page(directory, runs_dir)
        if on_page is not None:
            on_page(page)
    # The scores are committed: no error of whatever kind in their presentation may take them for failed.
    except Exception as error:
        print(
            f"The scores are complete, but their page is not: {tracking_message(error)}\n"
            f"Next: cloze finetune show {directory} --runs-dir {runs_dir} --html scores.html",
            file=sys.stderr,
        )
        return
    if tracked_runs:
        log_page(tracked_runs, page, runs_dir, scores)


def log_page(tracked_runs: Sequence[str], page: str, runs_dir: Path, scores: Sequence[Score]) -> None:
    """Log a page, and the table of the scores of all trainings, to MLflow runs. What cannot be logged is reported on
    stderr and no failure: the scores are committed by then.

    Args:
        tracked_runs: ids of the runs.
        runs_dir: holds the tracking store, unless `MLFLOW_TRACKING_URI` names another.
    """
    try:
        # MLflow shows JSON files of this form as tables: the summary's rows, one for each metric.
        columns = ["task", "from", "metric", "mean", "std", "median", "best", "seeds"]
        cells = [
            [
                *(row.task, row.start, name, row.mean[name], row.std[name]),
                *(row.median[name], row.best[name], row.num_seeds),
            ]
            for row in summarise(scores)
            for name in row.mean
        ]
        client = connect(tracking_uri(runs_dir))
        for run_id in tracked_runs:
            client.log_text(run_id, page, PAGE_FILE)
            client.log_dict(run_id, {"columns": columns, "data": cells}, TABLE_FILE)
    # Stores of artefacts raise the errors of their own libraries.
    except Exception as error:
        print(f"The page of the scores was not logged to MLflow: {tracking_message(error)}", file=sys.stderr)


def percent(share: float) -> str:
    """A share in percent with one decimal, as tables on the terminal show it."""
    return f"{100 * share:.1f}"


def printed(value: float) -> str:
    """A published score with one decimal, or two where the paper has two."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def confusion(lines: Sequence[Line], labels: Sequence[str]) -> dict[str, list[Any]]:
    """Count right and predicted labels.

    Returns:
        `counts` by right label, then by predicted label, which sum to the number of lines, and their `labels`; both
        empty where there are too many labels. `most` has (right, predicted, examples) of wrong predictions, the most
        frequent first.
    """
    pairs = Counter((line["label"], line["prediction"]) for line in lines)
    names = list(labels) if len(labels) <= MOST_LABELS else []
    most = [(*pair, count) for pair, count in pairs.most_common() if pair[0] != pair[1]][:MOST_LABELS]
    counts = [[pairs[right, predicted] for predicted in names] for right in names]
    return {"labels": names, "counts": counts, "most": most}


def _result(opened: ScoresDirectory, row: SummaryRow) -> Result:
    if row.initial is None:
        return Result(row, None, None, ())
    scores = row.of(opened.scores)
    trainings = [(opened.lines(score.trial), score.value) for score in scores]
    interval = confidence_interval(row.main_metric, trainings, opened.labels.get(row.task, ()))
    # The lower one of two in the middle.
    median = sorted(scores, key=lambda score: score.value)[(len(scores) - 1) // 2]
    return Result(row, interval, median, trainings[scores.index(median)][0])


def _task(opened: ScoresDirectory, name: str, results: Sequence[Result], num_errors: int) -> dict[str, Any]:
    own = [result for result in results if result.row.task == name]
    trained = [result for result in own if result.median is not None]
    published = published_scores(opened.kind(name))
    return {
        "name": name,
        "kind": opened.kind(name),
        "num_examples": trained[0].row.of(opened.scores)[0].num_evaluation_examples,
        "own": own,
        "metrics": [name for name in own[0].row.mean if any(name in each["metrics"] for each in published)],
        "published": published,
        "notes": list(dict.fromkeys((each["source"], each["note"]) for each in published if each["note"])),
        "plots": _plots(opened, trained),
        "starts": [result.row.start for result in trained],
        "details": [
            {
                "trial": result.median.trial.name,
                "start": result.row.start,
                "confusion": confusion(result.lines, opened.labels.get(name, []))
                if result.lines and form_of(result.lines[0]) == "label"
                else None,
                "num_lines": len(result.lines),
                "errors": worst_of(result.lines, num_errors),
            }
            for result in trained
            if result.median is not None
        ],
    }


def _plots(opened: ScoresDirectory, results: Sequence[Result]) -> list[tuple[str, str]]:
    """Titles and drawings: the loss of every update, and the main metric of every scored epoch."""
    trainings = [
        (COLOURS[number % len(COLOURS)], score, opened.losses(score.trial))
        for number, result in enumerate(results)
        for score in result.row.of(opened.scores)
    ]
    metric = results[0].row.main_metric

    def draw_losses(axes: Axes) -> None:
        for colour, _, losses in trainings:
            axes.plot(*thinned(losses), color=colour)
        axes.set_xlabel("update")

    def draw_metric(axes: Axes) -> None:
        for colour, score, _ in trainings:
            scored = [epoch for epoch in score.epochs if metric in epoch.metrics]
            values = [100 * epoch.metrics[metric] for epoch in scored]
            axes.plot([epoch.update for epoch in scored], values, color=colour, marker="o")
        axes.set_xlabel("update")

    drawings = []
    if any(losses for _, _, losses in trainings):
        drawings.append(("loss, nats per prediction", draw_losses))
    # A network that is scored once has no curve; its score is in the table.
    if any(sum(metric in epoch.metrics for epoch in score.epochs) > 1 for _, score, _ in trainings):
        drawings.append((f"{metric}, percent", draw_metric))
    return [(title, svg(draw, width=4.8, height=2.8)) for title, draw in drawings]


def thinned(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Numbers of updates, from 1, and values; of more than MOST_POINTS values, means of equally many neighbours."""
    width = math.ceil(len(values) / MOST_POINTS) or 1
    starts = range(0, len(values), width)
    means = [float(np.mean(values[first : first + width])) for first in starts]
    return [first + (min(width, len(values) - first) + 1) / 2 for first in starts], means


_FILE = Path(__file__).with_name("published.yaml")


def published_scores(kind: str) -> list[dict[str, Any]]:
    """The published scores on a kind of task, in order of publication; none where we know of none.

    Returns:
        Of each system its name as `system`, `metrics` in percent as printed, under our names, the `split` that was
        scored, `dev` or `test`, the `source`, a paper and its table, and a `note`, which may be empty.
    """
    return [
        {"system": system, "metrics": tasks[kind], "note": "", **table}
        for table in _published()
        for system, tasks in table["scores"].items()
        if kind in tasks
    ]


@cache
def _published() -> list[dict[str, Any]]:
    import yaml

    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))
