"""`cloze configs`: the configurations that come with cloze."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import Json
from pipeline.commands.output import show as answer

configs_app = typer.Typer(
    help="The configurations that come with cloze: list, show, copy.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Such as pretrain/gpt-tiny, or gpt-tiny.", show_default=False)]


@configs_app.command("list")
def list_configs(
    folder: Annotated[str | None, typer.Argument(help="One folder only, such as pretrain.")] = None,
    as_json: Json = False,
) -> None:
    """Name them, with a line about each."""
    from cluster.artefacts.errors import MissingInputError
    from pipeline.config.shipped import list_shipped

    found = list_shipped()
    folders = sorted({one.path.parent.name for one in found})
    if folder is not None and folder not in folders:
        raise MissingInputError(
            f"There is no folder {folder} of configurations.", next_step=f"one of {', '.join(folders)}"
        )
    rows = [{"name": one.name, "about": one.about} for one in found if folder in (None, one.path.parent.name)]
    if answer(rows, "configurations", as_json=as_json, columns=("name", "about")):
        typer.echo(
            "Next: cloze pretrain NAME --dry-run   |   cloze configs show NAME   |   cloze configs copy NAME DIR"
        )


@configs_app.command()
def show(name: Name) -> None:
    """Print one as it is."""
    from pipeline.config.shipped import require_shipped

    typer.echo(require_shipped(name).read_text(encoding="utf-8"), nl=False)


@configs_app.command()
def copy(
    name: Name,
    directory: Annotated[Path, typer.Argument(help="Where to; made if needed.")] = Path(),
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file of that name.")] = False,
) -> None:
    """Copy one, to be changed; it still finds the configurations that it builds on."""
    from pipeline.config.shipped import copy_shipped

    typer.echo(str(copy_shipped(name, directory, replace=replace)))
