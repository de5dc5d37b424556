"""`cloze demo`: the whole road on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import Json, print_json


def register(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Directory for everything that the demo makes.")] = Path("demo"),
    kill_a_worker: Annotated[
        bool, typer.Option("--kill-a-worker", help="SIGKILL one trainer process half-way; the run recovers.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Text to scores on two cores: documents, tokens, pre-training, fine-tuning; about ten minutes."""
    from pipeline.demo.demo import render, run_demo

    report = run_demo(out, kill_a_worker=kill_a_worker)
    if as_json:
        print_json(report.as_dict())
    else:
        render(report)
