"""`cloze export`: a checkpoint as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import REFERENCE_HELP, Average, Json, RunsDir, print_json, print_mapping


def export(
    reference: Annotated[
        str, typer.Argument(help=f"{REFERENCE_HELP}, or a directory of scores with models.")
    ],
    directory: Annotated[Path, typer.Argument(help="The directory to make.")],
    part: Annotated[
        str | None, typer.Option(help="Of an ELECTRA: discriminator (unless said) or generator.")
    ] = None,
    trial: Annotated[
        str | None, typer.Option(help="Of scores: which training's network, as TASK-INITIAL-SEED.")
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Architecture to write, such as BERT; the first that fits unless said.")
    ] = None,
    ema: Average = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare logits with transformers before committing.")
    ] = True,
    peft: Annotated[
        bool, typer.Option("--peft", help="Of scores: what LoRA or a prefix trained, for the library peft.")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write a network as a Hugging Face directory, and make sure that transformers computes the same from it."""
    from pipeline.tune.export import export as write_export

    made = write_export(
        reference,
        directory,
        runs_dir=runs_dir,
        part=part,
        trial=trial,
        family=family,
        weights="ema" if ema else "model",
        verify=verify,
        peft=peft,
    )
    values = made.as_dict()
    if as_json:
        print_json(values)
        return
    notes = values.pop("notes")
    print_mapping("exported", values)
    for note in notes:
        typer.echo(f"Note: {note}.")
    typer.echo(f"\nRead it with {made.auto_class}" + ("" if made.family == "ELMo" else ".from_pretrained"))
