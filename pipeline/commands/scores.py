"""`cloze finetune show` and `cloze finetune list`: finished scores, their worst errors, and their page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.finetune import percent, show_scores, show_teachers
from pipeline.commands.output import Html, Json, RunsDir, print_json, print_table, require_place, write_page

if TYPE_CHECKING:
    from pipeline.tune.report.errors import WrongPrediction
    from pipeline.tune.report.listing import Listed


def show(
    scores: Annotated[
        str,
        typer.Argument(help="Scores, in a directory or at a URI, or SCORES@TRAINING.", show_default=False),
    ],
    trial: Annotated[
        str | None, typer.Option(help="The training whose errors are shown; else the first one.")
    ] = None,
    errors: Annotated[int, typer.Option(min=0, help="Errors to show, the worst first.")] = 20,
    runs_dir: RunsDir = Path("runs"),
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Show scores, and the worst errors of a training with their texts."""
    import dataclasses

    from cluster.artefacts.errors import MissingInputError
    from cluster.artefacts.places import folded_uri
    from cluster.copies import place_of
    from pipeline.tune.report.errors import worst_of
    from pipeline.tune.report.page import render_page
    from pipeline.tune.report.scores import ScoresDirectory
    from pipeline.tune.results import Trial
    from pipeline.tune.scores import split_scores

    require_place(html)
    directory, named = split_scores(scores)
    if uri := folded_uri(directory):
        raise MissingInputError(f"There are no scores at {uri}.", next_step="cloze finetune list URI")
    opened = ScoresDirectory.open(directory)
    shown = Trial.of(opened.score(trial or named))
    found = worst_of(opened.lines(shown), errors)
    if html is not None:
        write_page(html, render_page(directory, runs_dir, errors))
    if as_json:
        print_json(
            {
                "directory": place_of(directory),
                "scores": [score.model_dump(mode="json") for score in opened.scores],
                "trial": shown.name,
                "errors": [dataclasses.asdict(error) for error in found],
            }
        )
        return
    show_scores(opened.scores, {score.task: opened.kind(score.task) for score in opened.scores})
    show_teachers(directory)
    if found:
        typer.echo(f"\nworst errors of {shown.name}")
    for error in found:
        typer.echo(_described(error))


def list_(
    directory: Annotated[
        str, typer.Argument(help="Directory or URI with scores, such as a configuration's `out`.")
    ] = "finetuned",
    as_json: Json = False,
) -> None:
    """List all scores below a directory, the newest first; damaged ones are named."""
    from cluster.artefacts.places import as_place
    from pipeline.tune.report.listing import list_scores

    found = list_scores(as_place(directory))
    if as_json:
        print_json([_as_dict(each) for each in found])
        return
    if not found:
        typer.echo(f"There are no scores below {directory}.")
        return
    # To the second, in UTC, as manifests have it.
    rows = [
        [each.name, each.reference or "", _main_scores(each), each.time[:19].replace("T", " ")]
        for each in found
    ]
    print_table("scores, in percent", ("name", "from", "scores", "made at"), rows, copied=("name", "from"))
    for each in found:
        if each.problem:
            typer.echo(f"{each.directory} is damaged: {each.problem}", err=True)


def _main_scores(listed: Listed) -> str:
    """The main metric of every task and start."""
    if listed.problem:
        return "damaged"
    return "\n".join(
        f"{row.task}{'' if row.initial == 'pretrained' else ', random weights'}: {row.main_metric}"
        f" {percent(row.mean[row.main_metric], row.std[row.main_metric])}"
        for row in listed.rows
        if row.initial is not None
    )


def _as_dict(listed: Listed) -> dict[str, object]:
    import dataclasses

    plain = dataclasses.asdict(listed)
    return plain | {"directory": str(listed.directory), "tasks": listed.tasks}


def _described(error: WrongPrediction) -> str:
    from cluster.artefacts.visible import visible

    facts = {**error.texts, "right": error.right, "predicted": error.predicted}
    lines = [f"  {name:<10}{visible(text)}" for name, text in facts.items()]
    return "\n".join(["", f"{visible(error.id)}, {error.remark}", *lines])
