"""`cloze data download|prepare|verify|stats|inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.data_tables import print_plan, print_stats
from pipeline.commands.download import download
from pipeline.commands.find import find
from pipeline.commands.inspect import inspect
from pipeline.commands.output import (
    Address,
    ConfigPath,
    DryRun,
    Html,
    Json,
    LogFormat,
    Overrides,
    Replace,
    Workers,
    print_json,
    require_place,
    show,
    warn_of_damage,
    write_page,
)

data_app = typer.Typer(help="Make, check and look at token stores.", no_args_is_help=True)
data_app.command()(download)
data_app.command()(inspect)
data_app.command()(find)

Store = Annotated[
    str,
    typer.Argument(
        help="A preparation (its `out`) or one artefact: a directory or a URI.", show_default=False
    ),
]


_DUPLICATES = ("duplicates", "paragraph_duplicates", "near_duplicates")
"""Counts of dropped documents, by the method that dropped them."""


@data_app.command()
def prepare(
    config: ConfigPath,
    overrides: Overrides = None,
    replace: Replace = False,
    address: Address = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Turn raw text into a token store. The same command continues, repairs, or confirms an existing one."""
    from pipeline.preparation import evaluation_texts, load_with_inputs

    settings, inputs = load_with_inputs(config, overrides or ())
    if dry_run:
        from data_prep.plan import plan_preparation

        plan = plan_preparation(settings, evaluation_texts, inputs)
        if as_json:
            print_json(plan)
        else:
            print_plan(plan)
        return

    from cluster.runtime import ray_on_demand
    from data_prep.job import prepare as run_preparation

    with ray_on_demand(address, workers=workers):
        prepared = run_preparation(
            settings, replace=replace, evaluation_texts=evaluation_texts, inputs=inputs
        )
    summary = {
        "tokens": str(prepared.token_store),
        "fingerprint": prepared.fingerprint,
        "documents": prepared.tokens.stats["rows"],
        **{key: prepared.dedup.stats[key] for key in _DUPLICATES if prepared.dedup.stats[key]},
        "num_tokens": prepared.tokens.stats["tokens"],
        "vocab_size": prepared.tokens.config["vocab_size"],
        "rejects": prepared.documents.stats["rejects"],
        **({"published": settings.publish} if settings.publish else {}),
    }
    if settings.decontaminate.tasks:
        found = prepared.selection.stats
        summary |= {key: found[key] for key in ("overlaps", "documents_dropped", "documents_cut")}
    if show(summary, f"prepared {settings.name}", as_json=as_json):
        typer.echo(f"\nNext: cloze data stats {settings.out}   |   cloze data inspect {prepared.token_store}")


@data_app.command()
def verify(store: Store, as_json: Json = False) -> None:
    """Hash every file of a preparation (of `work/` and the shards' records too) or of one artefact; exit code 20
    when one is damaged. Logs of speeds carry no hash."""
    from cluster.artefacts.places import as_place
    from data_prep.verify import verify_preparation

    verified = verify_preparation(as_place(store))
    columns = {"name": "artefact", "files": "files", "size_bytes": "bytes", "fingerprint": "fingerprint"}
    show(verified, f"{store}: every file verifies", as_json=as_json, columns=columns)


@data_app.command()
def rejects(
    store: Annotated[
        Path, typer.Argument(help="Directory of a preparation (its `out`).", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """List what could not be read: source, file, byte and reason. Also of a preparation that is not finished."""
    from data_prep.verify import list_rejects

    found = list_rejects(store)
    columns = {"source": "source", "uri": "file", "byte_offset": "byte", "reason": "reason"}
    if found or as_json:
        show(found, f"{len(found)} rejects", as_json=as_json, columns=columns)
    else:
        typer.echo("nothing was rejected")


@data_app.command()
def stats(
    store: Store,
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Documents, tokens, sentences and lengths of a token store: as a whole, per source and per language."""
    from cluster.artefacts.places import as_place
    from data_prep.stats import describe_store
    from data_prep.token_store import TokenStore

    require_place(html)
    opened = TokenStore.open(as_place(store), verify=False)
    warn_of_damage([opened])
    found = describe_store(opened)
    if html is not None:
        from data_prep.report import render_report

        write_page(html, render_report(opened, found))
    if as_json:
        print_json(found)
    else:
        print_stats(found)
