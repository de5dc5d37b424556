"""`cloze finetune submission`: the predictions of test sets as the archive that a leaderboard takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import Json, print_json, require_place


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
    from pipeline.tune.report.leaderboard import make_archive
    from pipeline.tune.scores import split_scores

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
