"""`cloze finetune show`, `list` and `submission`: finished scores, their worst errors, page and archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.output import Html, Json, RunsDir, print_json, print_table, require_place, write_page

if TYPE_CHECKING:
    from pipeline.tune.scores import Score


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
    from cluster.artefacts.errors import MissingInputError
    from cluster.artefacts.places import folded_uri
    from cluster.artefacts.visible import visible
    from cluster.copies import place_of
    from pipeline.tune.finetuned import split_scores
    from pipeline.tune.report.page import render_page
    from pipeline.tune.report.predictions import worst_of
    from pipeline.tune.scores import ScoresDirectory

    require_place(html)
    directory, named = split_scores(scores)
    if uri := folded_uri(directory):
        raise MissingInputError(f"There are no scores at {uri}.", next_step="cloze finetune list URI")
    opened = ScoresDirectory.open(directory)
    shown = opened.score(trial or named).trial
    found = worst_of(opened.lines(shown), errors)
    if html is not None:
        write_page(html, render_page(directory, runs_dir, errors))
    if as_json:
        print_json(
            {
                "directory": place_of(directory),
                "scores": [score.model_dump(mode="json") for score in opened.scores],
                "trial": shown.name,
                "errors": [asdict(error) for error in found],
            }
        )
        return
    show_scores(opened.scores, {score.task: opened.kind(score.task) for score in opened.scores})
    show_teachers(directory)
    if found:
        typer.echo(f"\nworst errors of {shown.name}")
    for error in found:
        typer.echo(f"\n{visible(error.id)}, {error.remark}")
        for name, text in {**error.texts, "right": error.right, "predicted": error.predicted}.items():
            typer.echo(f"  {name:<10}{visible(text)}")


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
        print_json([asdict(each) | {"directory": str(each.directory), "tasks": each.tasks} for each in found])
        return
    if not found:
        typer.echo(f"There are no scores below {directory}.")
        return
    rows = []
    for each in found:
        # The main metric of every task and start.
        scores = [
            f"{row.task}{'' if row.initial == 'pretrained' else ', random weights'}: {row.main_metric}"
            f" {_percent(row.mean[row.main_metric], row.std[row.main_metric])}"
            for row in each.rows
            if row.initial is not None
        ]
        # To the second, in UTC, as manifests have it.
        made_at = each.time[:19].replace("T", " ")
        shown = "damaged" if each.problem else "\n".join(scores)
        rows.append([each.name, each.reference or "", shown, made_at])
    print_table("scores, in percent", ("name", "from", "scores", "made at"), rows, copied=("name", "from"))
    for each in found:
        if each.problem:
            typer.echo(f"{each.directory} is damaged: {each.problem}", err=True)


def show_scores(scores: Sequence[Score], kinds: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print mean and standard deviation over seeds, of a search the best choice, and how the numbers came about.

    Args:
        kinds: of the tasks, by their names; where all of GLUE is among them, its average is printed.
    """
    from pipeline.tune.summary import glue_averages, protocol, shown, summarise

    rows = summarise(scores)
    searched = any(row.choice for row in rows)
    cells = []
    for row in rows:
        measured = []
        for name, mean in row.mean.items():
            std = row.std[name]
            spread = "" if std is None else f" ± {shown(name, std)}"
            measured.append(f"{name} {shown(name, mean)}{spread}")
        choice = [", ".join(f"{name} {value:g}" for name, value in row.choice.items())] if searched else []
        start = row.reference or "random weights"
        cells.append([row.task, start, *choice, row.num_seeds or "", ", ".join(measured)])
    headings = ["task", "from", *(["settings"] if searched else []), "seeds", "mean ± standard deviation"]
    print_table("scores, shares in percent", headings, cells)
    typer.echo(protocol(scores))
    for start, average in glue_averages(rows, kinds).items():
        typer.echo(f"GLUE's average from {start}, on the development sets: {_percent(average, None)}")


def show_teachers(directory: Path) -> None:
    """Print teachers beside their students, where trainings had teachers."""
    from pipeline.tune.report.page import distilled_rows
    from pipeline.tune.scores import ScoresDirectory
    from pipeline.tune.summary import shown

    rows = [
        (
            row.training,
            row.role,
            row.parameters,
            f"{row.size_bytes / 2**20:.1f} MiB",
            "" if row.examples_per_second is None else f"{row.examples_per_second:,.0f}",
            f"{row.metric} {shown(row.metric, row.score)}",
            "" if row.kept is None else f"{row.kept:.1%}",
        )
        for row in distilled_rows(ScoresDirectory.open(directory))
    ]
    if rows:
        headings = ("training", "network", "parameters", "weights", "examples/s", "score", "of the teacher's")
        print_table("teachers and students", headings, rows)


def _percent(mean: float, std: float | None) -> str:
    """Mean and standard deviation in percent, such as `56.3 ± 1.2`."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def submission(
    scores: Annotated[
        list[str], typer.Argument(help="Scores, in directories or at URIs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="The zip file to write.")] = Path("submission.zip"),
    seed: Annotated[
        int | None, typer.Option(help="Of trainings with this seed; else of each task's best.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the archive that GLUE's or SuperGLUE's leaderboard takes, of trainings with `submit: true`."""
    from cluster.artefacts.manifest import write_durably
    from cluster.artefacts.storage import storage_errors
    from pipeline.tune.finetuned import split_scores
    from pipeline.tune.report.leaderboard import make_archive

    require_place(out)
    archive = make_archive([split_scores(one)[0] for one in scores], seed)
    with storage_errors(out):
        write_durably(out, archive.content)
    if as_json:
        print_json({"archive": str(out), "files": archive.files, "missing": list(archive.missing)})
        return
    for name, trial in archive.files.items():
        typer.echo(f"{name}  {trial}")
    typer.echo(f"{archive.leaderboard}'s archive: {out}")
    if archive.missing:
        typer.echo(f"The leaderboard wants more: {', '.join(archive.missing)}", err=True)
