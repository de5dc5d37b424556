"""`cloze fill`, `cloze generate`, `cloze prompt`: what a language model writes without being trained for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import Json, RunsDir, print_json, print_table

Reference = Annotated[
    str,
    typer.Option(
        "--from", help="RUN, RUN@STEP, RUN@best, models:/NAME@ALIAS, a checkpoint or Hugging Face directory."
    ),
]
Average = Annotated[bool, typer.Option("--ema", help="Take the moving average of the weights.")]
Text = Annotated[str, typer.Argument(help="The text; quote it.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(fill)
    app.command()(generate)


def fill(
    text: Annotated[
        str,
        typer.Argument(help="A text with [MASK], <mask> or [z] where words are missing.", show_default=False),
    ],
    reference: Reference,
    top: Annotated[int, typer.Option(min=1, help="Predictions for each mask.")] = 5,
    ema: Average = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Fill the masks of a text with a masked language model or an encoder-decoder."""
    from dataclasses import asdict

    from pipeline.prompting.filling import fill as fill_masks
    from pipeline.prompting.networks import load_language_model

    network = load_language_model(reference, runs_dir, "ema" if ema else "model")
    found = fill_masks(network, text, top)
    if as_json:
        print_json({"from": network.reference, "text": text, **asdict(found)})
        return
    for number, predictions in enumerate(found.masks, 1):
        title = "the mask" if len(found.masks) == 1 else f"mask {number}"
        print_table(title, ("token", "probability"), [[each.text, each.score] for each in predictions])
    kind = "probability" if found.masks else "log-probability of a token"
    print_table("filled in", ("text", kind), [[each.text, each.score] for each in found.texts])


def generate(
    text: Text,
    reference: Reference,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to write at most; else 50.", show_default=False)
    ] = None,
    num_beams: Annotated[int, typer.Option(min=1, help="Texts that the search follows; 1 is greedy.")] = 1,
    num_texts: Annotated[int, typer.Option(min=1, help="Texts to write.")] = 1,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw tokens; implied by the three options that follow.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Divides scores before a token is drawn.", show_default=False)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw from the fewest tokens with this probability.", show_default=False),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from this many most probable tokens.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides all draws.")] = 0,
    language: Annotated[
        str | None, typer.Option(help="Language tag of an mBART, such as en_XX.", show_default=False)
    ] = None,
    ema: Average = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Continue a text with a decoder, or answer it with an encoder-decoder."""
    from dataclasses import asdict

    from cluster.artefacts.errors import ConfigError
    from models.generation.config import GenerationConfig
    from pipeline.prompting.networks import load_language_model
    from pipeline.prompting.writing import write

    drawn = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = {name: value for name, value in drawn.items() if value is not None}
    try:
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            num_return_sequences=num_texts,
            do_sample=sample or bool(given),
            seed=seed,
            **given,
        )
    except ValueError as error:
        raise ConfigError(f"These options do not fit: {error}", next_step="cloze generate --help") from None
    network = load_language_model(reference, runs_dir, "ema" if ema else "model")
    found = write(network, text, settings, language=language)
    if as_json:
        print_json({"from": network.reference, "prompt": text, "texts": [asdict(each) for each in found]})
        return
    begins = text if network.kind == "left_to_right" else ""
    for each in found:
        typer.echo(f"{begins}{each.text}")
