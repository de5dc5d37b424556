"""The page of finished scores, for a file and for the MLflow runs of their trainings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipeline.run.tracking import connect, tracking_message, tracking_uri
from pipeline.tune.report.page import render_page
from pipeline.tune.scores import Score, read_scores
from pipeline.tune.summary import summarise

PAGE_FILE = "scores.html"
"""Name of the page among the artefacts of an MLflow run."""
TABLE_FILE = "scores-table.json"
"""MLflow shows it as a table."""


def publish_page(
    directory: Path, runs_dir: Path, tracked_runs: Sequence[str], on_page: Callable[[str], object] | None
) -> None:
    """Render the page of committed scores once, hand it on, and log it. What fails is reported on stderr with the
    command that makes the page again.

    Args:
        tracked_runs: MLflow ids of the trainings' runs, which get the page and the table of the scores.
        on_page: takes the HTML.
    """
    try:
        page, scores = render_page(directory, runs_dir), read_scores(directory)
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


def log_page(tracked_runs: Iterable[str], page: str, runs_dir: Path, scores: Sequence[Score] = ()) -> None:
    """Log a page, and the table of scores, to MLflow runs. What cannot be logged is reported on stderr and no failure:
    the scores are committed by then.

    Args:
        tracked_runs: ids of the runs; each is logged to once.
        runs_dir: holds the tracking store, unless `MLFLOW_TRACKING_URI` names another.
        scores: of all trainings; without them, the page alone is logged.
    """
    try:
        table = _table(scores)
        client = connect(tracking_uri(runs_dir))
        for run_id in dict.fromkeys(tracked_runs):
            client.log_text(run_id, page, PAGE_FILE)
            if table["data"]:
                client.log_dict(run_id, table, TABLE_FILE)
    # Stores of artefacts raise the errors of their own libraries.
    except Exception as error:
        print(f"The page of the scores was not logged to MLflow: {tracking_message(error)}", file=sys.stderr)


def _table(scores: Sequence[Score]) -> dict[str, list]:
    """The summary's lines, one for each metric, in the form in which MLflow shows JSON files as tables."""
    columns = ["task", "from", "metric", "mean", "std", "median", "best", "seeds"]
    data = [
        [
            *(row.task, row.reference or "random weights", name, row.mean[name], row.std[name]),
            *(row.median[name], row.best[name], row.num_seeds),
        ]
        for row in summarise(scores)
        for name in row.mean
    ]
    return {"columns": columns, "data": data}
