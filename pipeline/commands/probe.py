"""`cloze neighbors` and `cloze probe`: what can be read from the hidden states of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import (
    Average,
    ConfigPath,
    Html,
    Json,
    LogFormat,
    Overrides,
    Reference,
    RunsDir,
    RunsDirOfConfig,
    print_json,
    print_table,
    require_place,
    write_page,
)


def neighbors(
    word: Annotated[str, typer.Option(help="The word; upper and lower case are the same.")],
    text: Annotated[Path, typer.Option(help="Text file with a sentence or a paragraph in each line.")],
    reference: Reference,
    layer: Annotated[int, typer.Option(help="Number of a layer; 0 are the embeddings, -1 is the last.")] = -1,
    top: Annotated[int, typer.Option(min=1, help="Neighbors to print.")] = 10,
    occurrence: Annotated[int, typer.Option(help="The occurrence to compare with, from 1.")] = 1,
    ema: Average = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Print the occurrences of a word that a network sees as most alike, by the cosine of their hidden states."""
    from dataclasses import asdict

    from pipeline.ask.probing.features import load_features
    from pipeline.ask.probing.neighbors import find_neighbors, find_occurrences

    occurrences = find_occurrences(text, word)
    found = find_neighbors(
        load_features(reference, runs_dir, "ema" if ema else "model"), occurrences, occurrence, layer, top
    )
    if as_json:
        print_json({"word": word, "text": str(text), **asdict(found)})
        return
    typer.echo(f"occurrence {found.chosen.number} of {found.num_occurrences}: {found.chosen.marked}\n")
    rows = [
        [round(each.cosine, 4), each.occurrence.number, each.occurrence.place, each.occurrence.marked]
        for each in found.nearest
    ]
    print_table(f"nearest at layer {found.layer}", ("cosine", "occurrence", "line", "sentence"), rows)


def probe(
    config: ConfigPath,
    reference: Reference,
    overrides: Overrides = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the result of other settings.")] = False,
    html: Html = None,
    runs_dir: RunsDirOfConfig = None,
    ema: Average = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Fit linear or small non-linear classifiers on every layer of a network, and on a control task."""
    from pipeline.ask.probing.config import ProbeConfig
    from pipeline.ask.probing.features import load_features
    from pipeline.ask.probing.page import COLUMNS, facts, page, rows
    from pipeline.ask.probing.run import probe as probe_layers
    from pipeline.config.loading import load_config

    settings = load_config(ProbeConfig, config, overrides or ())
    require_place(html)
    network = load_features(reference, runs_dir or settings.runs_dir, "ema" if ema else "model")
    directory, found = probe_layers(settings, network, replace=replace)
    if as_json:
        print_json({"directory": str(directory), "from": network.reference, **found.model_dump(mode="json")})
    else:
        print_table(f"{found.task} in {network.reference}, in percent", COLUMNS, rows(found))
        typer.echo(f"{facts(found)}\nresult: {directory}\nNext: cloze lineage {directory}")
    # The result is finished and shown: a page that cannot be written costs nothing but itself.
    if html is not None:
        write_page(html, page(network.reference, found))
