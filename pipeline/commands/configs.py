"""`cloze configs`, `cloze schema` and `cloze cluster render`: configurations that come with cloze, and all settings."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from cluster.artefacts.errors import ConfigError

configs_app = typer.Typer(
    help="The configurations that come with cloze: list, show, copy.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Such as pretrain/gpt-tiny, or gpt-tiny.")]


@configs_app.command("list")
def list_configs(
    folder: Annotated[str | None, typer.Argument(help="One folder only, such as pretrain.")] = None,
    as_json: output.Json = False,
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
    if output.show(rows, "configurations", as_json=as_json, columns=("name", "about")):
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
    replace: output.Replace = False,
) -> None:
    """Copy one, to be changed; it still finds the configurations that it builds on."""
    from pipeline.config.shipped import copy_shipped

    typer.echo(str(copy_shipped(name, directory, replace=replace)))


_KIND_HELP = (
    "`data`, `pretrain`, `finetune`, `prompt`, `probe`, `road`, `ladder`, a kind of `cloze cluster render`; after a dot"
    " a part: `data.filters.pii`, `pretrain.optimizer`."
)


def schema(
    kind: Annotated[str | None, typer.Argument(help=_KIND_HELP)] = None,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON Schema for editors.")
    ] = False,
) -> None:
    """Print every setting with its type, default, unit and meaning."""
    from pipeline.config import reference as config_reference

    if kind is None:
        rows = [[name, config_reference.reference(name)[0].meaning] for name in config_reference.KINDS]
        title = "kinds of YAML files; `cloze schema KIND` prints the settings of one"
        output.print_table(title, ("kind", ""), rows)
        return
    name, _, part = kind.partition(".")
    if name not in config_reference.KINDS:
        raise _no_such(f"There is no kind {name} of YAML files.", name, config_reference.KINDS)
    if json_schema:
        output.print_json(config_reference.json_schema(name))
        return
    sections = config_reference.reference(name)
    chosen = [
        each
        for each in sections
        if not part or any(f"{key}.".startswith(f"{part}.") for key in (each.key, *each.names))
    ]
    if not chosen:
        keys = [f"{name}.{key}" for each in sections if each.key for key in each.names]
        raise _no_such(f"{name} files have no settings below {part}.", kind, keys)
    columns = {"setting": "name", "type": "type", "default": "default", "meaning": "meaning"}
    for section in chosen:
        title = f"{name}.{section.key}".rstrip(".") + f": {section.meaning}"
        output.print_table(title, columns, section.settings)


def _no_such(problem: str, given: str, known: Collection[str]) -> ConfigError:
    from cluster.artefacts.errors import ConfigError
    from pipeline.config.problems import nearest

    near = nearest(given, known)
    hint = f"did you mean {near}? " if near else ""
    return ConfigError(problem, next_step=f"{hint}There are {', '.join(known)}")


cluster_app = typer.Typer(
    help="Get a Ray cluster: on Kubernetes, Slurm, cloud machines, plain hosts.", no_args_is_help=True
)


@cluster_app.callback()
def _group() -> None:
    """Keep `render` a verb of its own, though it is the only one."""


@cluster_app.command()
def render(
    kind: Annotated[
        str,
        typer.Argument(
            help="kuberay, slurm, ray-up or ssh, with the settings of `cloze configs show cluster/KIND`; or a YAML"
            " file that has `kind`."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory for the files.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting that wins over the file: a.b=c; repeatable.")
    ] = None,
    replace: output.Replace = False,
) -> None:
    """Write the files of a cluster, and print the commands that bring it up; nothing is started."""
    from cluster.templates.base import NEXT, SETTINGS, render, write
    from pipeline.config.loading import load_template, to_yaml

    chosen = load_template(kind, tuple(settings or ()))
    files = {**render(chosen), SETTINGS: to_yaml(chosen)}
    write(out, files, replace=replace)
    typer.echo("\n".join(f"written: {out / name}" for name in files), err=True)
    typer.echo(files[NEXT], nl=False)
