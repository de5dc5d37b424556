"""`cloze tokenizer train|encode|compare`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import output

tokenizer_app = typer.Typer(help="Train, try and compare tokenizers.", no_args_is_help=True)

_ACCEPTED = (
    "a tokenizer.json, a SentencePiece .model, a vocab.txt, or a directory (such as a token store) with one of them"
    " or with GPT-2's encoder.json and vocab.bpe, or the URI of an artefact"
)


@tokenizer_app.command()
def train(
    config: output.ConfigPath,
    overrides: output.Overrides = None,
    replace: output.Replace = False,
    address: output.Address = None,
    workers: output.Workers = None,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Train the tokenizer of a data configuration: its documents are prepared, its tokens are not."""
    from cluster.runtime import ray_on_demand
    from data_prep.job import prepare_tokenizer
    from pipeline.preparation import evaluation_texts, load_with_inputs

    settings, inputs = load_with_inputs(config, overrides or ())
    with ray_on_demand(address, workers=workers):
        manifest = prepare_tokenizer(
            settings, replace=replace, evaluation_texts=evaluation_texts, inputs=inputs
        )
    summary = {
        "tokenizer": str(settings.out / "tokenizer" / "tokenizer.json"),
        "vocab_size": manifest.stats["vocab_size"],
        "fingerprint": manifest.fingerprint,
    }
    output.show(summary, "trained", as_json=as_json)


@tokenizer_app.command()
def encode(
    tokenizer: Annotated[str, typer.Argument(help=f"What to encode with: {_ACCEPTED}.")],
    text: Annotated[str, typer.Argument(help="The text to encode.")],
    as_json: output.Json = False,
) -> None:
    """Show how a tokenizer cuts a text."""
    from tokenizers import Tokenizer

    from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer

    loaded = Tokenizer.from_str(read_tokenizer(find_tokenizer(tokenizer)))
    encoded = loaded.encode(text, add_special_tokens=False)
    if as_json:
        output.print_json({"ids": encoded.ids, "tokens": encoded.tokens, "offsets": encoded.offsets})
        return
    rows = [
        [number, token, text[start:end]]
        for number, token, (start, end) in zip(encoded.ids, encoded.tokens, encoded.offsets, strict=True)
    ]
    output.print_table(f"{len(rows)} tokens", ("id", "token", "text"), rows)


@tokenizer_app.command()
def compare(
    text: Annotated[Path, typer.Argument(help="A text file in UTF-8; its lines are encoded one by one.")],
    tokenizers: Annotated[list[str], typer.Argument(help=f"What to compare; each is {_ACCEPTED}.")],
    as_json: output.Json = False,
) -> None:
    """Measure tokenizers side by side on a text: lengths, unknown tokens, round trips, speed on one core."""
    # Read by the thread pools of the libraries when they start.
    os.environ["RAYON_NUM_THREADS"] = "1"
    from data_prep.tokenizers.fast import fit
    from data_prep.tokenizers.pretrained import find_tokenizer, read_tokenizer

    loaded = {name: read_tokenizer(find_tokenizer(name)) for name in tokenizers}
    lines = _read_lines(text)
    fits = {name: fit(data, lines) for name, data in loaded.items()}
    if as_json:
        output.print_json(fits)
        return
    measures = list(next(iter(fits.values())))
    rows = [[measure.replace("_", " "), *(own[measure] for own in fits.values())] for measure in measures]
    output.print_table(f"{len(lines):,} lines of {text}", ("", *fits), rows)


def _read_lines(path: Path) -> list[str]:
    from cluster.artefacts.errors import MissingInputError

    if not path.is_file():
        raise MissingInputError(f"There is no file {path}.", next_step="name a text file in UTF-8")
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise MissingInputError(
            f"{path} is no UTF-8 text: {error.reason} at byte {error.start}.",
            next_step="convert it, such as with `iconv -t UTF-8`",
        ) from None
    if not lines:
        raise MissingInputError(f"{path} holds no text.", next_step="name a text file in UTF-8")
    return lines
