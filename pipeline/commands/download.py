"""`cloze data download wikipedia|commoncrawl|gutenberg`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import DryRun, Json, LogFormat, print_json, print_mapping, print_table


class Publisher(StrEnum):
    """Publishers of corpora."""

    wikipedia = "wikipedia"
    commoncrawl = "commoncrawl"
    gutenberg = "gutenberg"


class Archive(StrEnum):
    """Kinds of Common Crawl's files."""

    warc = "warc"
    wet = "wet"


_WHAT = "Wikipedia, Gutenberg: a language, such as en. Common Crawl: CC-MAIN-YYYY-WW or CC-NEWS-YYYY-MM."
_SHOWN_FILES = 20


def download(
    publisher: Annotated[Publisher, typer.Argument(help="Who publishes it.", show_default=False)],
    what: Annotated[str, typer.Argument(help=_WHAT, show_default=False)],
    out: Annotated[Path, typer.Option(help="Directory for the files.")],
    date: Annotated[str, typer.Option(help="Wikipedia: YYYYMMDD, or the newest finished dump.")] = "latest",
    archive: Annotated[
        Archive, typer.Option(help="Common Crawl: pages as they were sent, or their plain text.")
    ] = Archive.warc,
    match: Annotated[str, typer.Option(help="Shell pattern that the names of files must match.")] = "*",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first files of the list.")] = None,
    base_url: Annotated[str | None, typer.Option(help="A mirror in place of the usual server.")] = None,
    contact: Annotated[str, typer.Option(help="Mail address or page by which its operators reach you.")] = "",
    connections: Annotated[int, typer.Option(min=1, max=8, help="Files fetched at the same time.")] = 2,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts that may fail, for each file.")] = 20,
    verify: Annotated[bool, typer.Option("--verify", help="Hash the files that are there already.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Fetch a corpus from its publisher. The same command continues, or confirms the files that are there."""
    from data_prep.download.directory import download as fetch_all
    from data_prep.download.http import Http, Politeness
    from data_prep.download.publishers import choose, list_files

    http = Http(Politeness(contact=contact, connections=connections, attempts=attempts))
    listed = list_files(http, publisher.value, what, base_url, date=date, archive=archive.value)
    files = choose(listed, match, limit)
    if dry_run:
        _show_plan(f"{publisher.value} {what}", files, as_json)
        return
    found = fetch_all(http, files, out, verify=verify)
    if as_json:
        print_json(asdict(found))
        return
    summary = {
        "files": len(found.files),
        "bytes": sum(file.size_bytes for file in found.files),
        "of them fetched now": found.num_fetched,
    }
    if found.missing:
        summary["listed but not there"] = len(found.missing)
    print_mapping(f"{publisher.value} {what} in {out}", summary)


def _show_plan(title: str, files: list, as_json: bool) -> None:
    if as_json:
        print_json([asdict(file) for file in files])
        return
    rows = [[file.name, file.size_bytes, file.algorithm] for file in files[:_SHOWN_FILES]]
    print_table(f"{title}: what would be fetched", ("file", "bytes", "checksum"), rows)
    if len(files) > _SHOWN_FILES:
        typer.echo(f"... and {len(files) - _SHOWN_FILES:,} more")
    known = [file.size_bytes for file in files if file.size_bytes is not None]
    total = f"{sum(known):,} bytes" if len(known) == len(files) else "sizes are not published"
    typer.echo(f"{len(files):,} files, {total}")
