"""`cloze cluster render`: the files that make a Ray cluster on Kubernetes, Slurm, cloud machines or plain hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
            " file that has `kind`.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory for the files.", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting that wins over the file: a.b=c; repeatable.", show_default=False
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace files that differ.")] = False,
) -> None:
    """Write the files of a cluster, and print the commands that bring it up; nothing is started."""
    from cluster.templates.base import NEXT, SETTINGS, render, write
    from pipeline.config.cluster_templates import load_template
    from pipeline.config.loading import to_yaml

    chosen = load_template(kind, tuple(settings or ()))
    files = {**render(chosen), SETTINGS: to_yaml(chosen)}
    write(out, files, replace=replace)
    typer.echo("\n".join(f"written: {out / name}" for name in files), err=True)
    typer.echo(files[NEXT], nl=False)
