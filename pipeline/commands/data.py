"""`cloze data`: download, prepare, verify, list rejects, describe and search token stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipeline.commands import output
from pipeline.commands.inspect import inspect

data_app = typer.Typer(help="Make, check and look at token stores.", no_args_is_help=True)

Store = Annotated[
    str, typer.Argument(help="A preparation (its `out`) or one artefact: a directory or a URI.")
]


def prepare(
    config: output.ConfigPath,
    overrides: output.Overrides = None,
    replace: output.Replace = False,
    address: output.Address = None,
    workers: output.Workers = None,
    dry_run: output.DryRun = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Turn raw text into a token store. The same command continues, repairs, or confirms an existing one."""
    from pipeline.preparation import evaluation_texts, load_with_inputs

    settings, inputs = load_with_inputs(config, overrides or ())
    if dry_run:
        from data_prep.plan import plan_preparation

        plan = plan_preparation(settings, evaluation_texts, inputs)
        if as_json:
            output.print_json(plan)
            return
        totals = {name: plan[name] for name in ("out", "files", "size_bytes", "shards")}
        output.print_mapping(f"{plan['name']}: what would be prepared", totals | plan["settings"])
        keys = ("kind", "files", "size_bytes", "shards", "largest_shard_bytes")
        rows = [[name, *(own[key] for key in keys)] for name, own in plan["sources"].items()]
        output.print_table("sources", ("source", "kind", "files", "bytes", "shards", "largest shard"), rows)
        output.print_table("finished stages", ("stage", ""), list(plan["stages"].items()))
        _print_tables(_near_duplicates(plan.get("near_duplicates")))
        return

    from cluster.runtime import ray_on_demand
    from data_prep.job import prepare as run_preparation

    with ray_on_demand(address, workers=workers):
        prepared = run_preparation(
            settings, replace=replace, evaluation_texts=evaluation_texts, inputs=inputs
        )
    dropped = ("duplicates", "paragraph_duplicates", "near_duplicates")
    summary = {
        "tokens": str(prepared.token_store),
        "fingerprint": prepared.fingerprint,
        "documents": prepared.tokens.stats["rows"],
        **{key: prepared.dedup.stats[key] for key in dropped if prepared.dedup.stats[key]},
        "num_tokens": prepared.tokens.stats["tokens"],
        "vocab_size": prepared.tokens.config["vocab_size"],
        "rejects": prepared.documents.stats["rejects"],
        **({"published": settings.publish} if settings.publish else {}),
    }
    if settings.decontaminate.tasks:
        found = prepared.selection.stats
        summary |= {key: found[key] for key in ("overlaps", "documents_dropped", "documents_cut")}
    if output.show(summary, f"prepared {settings.name}", as_json=as_json):
        typer.echo(f"\nNext: cloze data stats {settings.out}   |   cloze data inspect {prepared.token_store}")


def verify(store: Store, as_json: output.Json = False) -> None:
    """Hash every file of a preparation (of `work/` and the shards' records too) or of one artefact; exit code 20
    when one is damaged. Logs of speeds carry no hash."""
    from cluster.artefacts.places import as_place
    from data_prep.verify import verify_preparation

    verified = verify_preparation(as_place(store))
    columns = {"artefact": "name", "files": "files", "bytes": "size_bytes", "fingerprint": "fingerprint"}
    output.show(verified, f"{store}: every file verifies", as_json=as_json, columns=columns)


def rejects(
    store: Annotated[Path, typer.Argument(help="Directory of a preparation (its `out`).")],
    as_json: output.Json = False,
) -> None:
    """List what could not be read: source, file, byte and reason. Also of a preparation that is not finished."""
    from data_prep.verify import list_rejects

    found = list_rejects(store)
    columns = {"source": "source", "file": "uri", "byte": "byte_offset", "reason": "reason"}
    if found or as_json:
        output.show(found, f"{len(found)} rejects", as_json=as_json, columns=columns)
    else:
        typer.echo("nothing was rejected")


def stats(
    store: Store,
    html: output.Html = None,
    as_json: output.Json = False,
) -> None:
    """Documents, tokens, sentences and lengths of a token store: as a whole, per source and per language."""
    from data_prep.stats import describe_store
    from data_prep.token_store import TokenStore

    output.require_place(html)
    opened = TokenStore.open(store, verify=False)
    output.warn_of_damage([opened])
    found = describe_store(opened)
    if html is not None:
        from data_prep.stats import render_report

        output.write_page(html, render_report(opened, found))
    if as_json:
        output.print_json(found)
    else:
        print_stats(found)


Publisher = Literal["wikipedia", "commoncrawl", "gutenberg"]
Archive = Literal["warc", "wet"]
"""Kinds of Common Crawl's files."""
_WHAT = "Wikipedia, Gutenberg: a language, such as en. Common Crawl: CC-MAIN-YYYY-WW or CC-NEWS-YYYY-MM."
_SHOWN_FILES = 20


def download(
    publisher: Annotated[Publisher, typer.Argument(help="Who publishes it.")],
    what: Annotated[str, typer.Argument(help=_WHAT)],
    out: Annotated[Path, typer.Option(help="Directory for the files.")],
    date: Annotated[str, typer.Option(help="Wikipedia: YYYYMMDD, or the newest finished dump.")] = "latest",
    archive: Annotated[
        Archive, typer.Option(help="Common Crawl: pages as they were sent, or their plain text.")
    ] = "warc",
    match: Annotated[str, typer.Option(help="Shell pattern that the names of files must match.")] = "*",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first files of the list.")] = None,
    base_url: Annotated[str | None, typer.Option(help="A mirror in place of the usual server.")] = None,
    contact: Annotated[str, typer.Option(help="Your mail address or page, for its operators.")] = "",
    connections: Annotated[int, typer.Option(min=1, max=8, help="Files fetched at the same time.")] = 2,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts that may fail, for each file.")] = 20,
    verify: Annotated[bool, typer.Option("--verify", help="Hash the files that are there already.")] = False,
    dry_run: output.DryRun = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Fetch a corpus from its publisher. The same command continues, or confirms the files that are there."""
    from data_prep.download.directory import download as fetch_all
    from data_prep.download.fetch import Http
    from data_prep.download.publishers import choose, list_files

    http = Http(contact=contact, connections=connections, attempts=attempts)
    listed = list_files(http, publisher, what, base_url, date=date, archive=archive)
    files = choose(listed, match, limit)
    if dry_run:
        if as_json:
            output.print_json([asdict(file) for file in files])
            return
        columns = {"file": "name", "bytes": "size_bytes", "checksum": "algorithm"}
        output.print_table(f"{publisher} {what}: what would be fetched", columns, files[:_SHOWN_FILES])
        if len(files) > _SHOWN_FILES:
            typer.echo(f"... and {len(files) - _SHOWN_FILES:,} more")
        known = [file.size_bytes for file in files if file.size_bytes is not None]
        total = f"{sum(known):,} bytes" if len(known) == len(files) else "sizes are not published"
        typer.echo(f"{len(files):,} files, {total}")
        return
    found = fetch_all(http, files, out, verify=verify)
    if as_json:
        output.print_json(asdict(found))
        return
    summary = {
        "files": len(found.files),
        "bytes": sum(file.size_bytes for file in found.files),
        "of them fetched now": found.num_fetched,
    }
    if found.missing:
        summary["listed but not there"] = len(found.missing)
    output.print_mapping(f"{publisher} {what} in {out}", summary)


def find(
    stores: Annotated[list[str], typer.Argument(help="Token stores, or preparations: directories or URIs.")],
    ids: Annotated[list[str] | None, typer.Option("--id", help="Id of a document; repeatable.")] = None,
    uris: Annotated[
        list[str] | None, typer.Option("--uri", help="Source file, as documents name it; repeatable.")
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--text", help="A part of the text, in upper or lower case; repeatable."),
    ] = None,
    list_file: Annotated[
        Path | None,
        typer.Option(
            "--add-to", dir_okay=False, help="Add their ids to this list, for the setting `takedown`."
        ),
    ] = None,
    runs_dir: output.RunsDir = Path("runs"),
    scores_dir: Annotated[Path, typer.Option(help="Directory that holds scores.")] = Path("finetuned"),
    as_json: output.Json = False,
) -> None:
    """Find documents by id, source file or text; and the runs that read them, with steps and results.

    Steps are exact and found without making a sample again. Exit code 23 when no document fits.
    """
    from cluster.artefacts.errors import ReferenceNotFoundError
    from data_prep.provenance import find_numbers
    from data_prep.token_store import TokenStore
    from pipeline.inspect.exposure import exposure_of
    from pipeline.inspect.lineage import find_documents
    from pipeline.run.directory import list_runs

    wanted = ids or (), uris or (), texts or ()
    if not any(wanted):
        raise typer.BadParameter("name documents by --id, --uri or --text")
    opened = [TokenStore.open(place, verify=False) for place in stores]
    output.warn_of_damage(opened)
    found = [(store, *find_numbers(store, *wanted)) for store in opened]
    documents = [
        place
        | {"tokens": int(store.lengths[number]), "store": store.place}
        | {"fingerprint": store.fingerprint, "number": number}
        for store, numbers, _ in found
        for (_, number), place in find_documents([store], [(0, one) for one in numbers.tolist()]).items()
    ]
    copies = [{"store": store.place, **copy} for store, _, own in found for copy in own]
    if not documents and not copies:
        raise ReferenceNotFoundError(f"No document of {', '.join(stores)} fits.")
    if list_file is not None:
        with list_file.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{doc_id}\n" for doc_id in sorted({row["doc_id"] for row in documents}))
    by_store = {store.fingerprint: numbers for store, numbers, _ in found if len(numbers)}
    runs = [exposure_of(run, by_store, scores_dir) for run in (list_runs(runs_dir) if by_store else ())]
    runs = [run for run in runs if run["documents"] or run["problem"]]
    if as_json:
        output.print_json({"documents": documents, "copies": copies, "runs": runs})
        return
    columns = ("doc_id", "title", "uri", "tokens", "store", "number")
    output.show(documents, f"{len(documents)} documents", as_json=False, columns=columns)
    if copies:
        title = "read from the sources, and not among the tokens"
        output.show(copies, title, as_json=False, columns=("doc_id", "title", "uri", "store"))
    if not runs:
        typer.echo("no run has read any of them")
        return
    doc_ids = {(row["fingerprint"], row["number"]): row["doc_id"] for row in documents}
    rows = [one | {"run": run["run"], "of": run["steps"]} for run in runs for one in run["documents"]]
    columns = {
        "run": "run",
        "doc_id": lambda row: doc_ids[row["store"], row["number"]],
        "first step": "first_step",
        "last step": "last_step",
        "updates": "num_updates",
        "of steps": "of",
    }
    output.print_table("updates that read them", columns, rows)
    for run in runs:
        name = run["run"]
        if run["problem"]:
            output.print_line(f"{name}: {run['problem']}")
        if run["documents"]:
            clean = "none" if run["clean_checkpoint"] is None else f"{name}@{run['clean_checkpoint']}"
            typer.echo(f"{name}: newest checkpoint from before: {clean}")
            for what in ("checkpoints", "models", "scores"):
                depend = output.shown(", ".join(map(str, run[what])) or "none")
                typer.echo(f"  {what} that depend on them: {depend}")


for verb in (download, inspect, find, prepare, verify, rejects, stats):
    data_app.command()(verb)


_HELD = ("documents", "tokens", "sentences", "kept_bytes", "bytes_per_token")
_QUANTILES = {"p5": "5%", "p50": "half", "p95": "95%", "p100": "longest"}
"""Quantiles of tokens per document, and their columns."""
_FILTER_COUNTS = ("kept", "changed", "dropped")
_LEFT_OUT_SHOWN = 10
"""Most names shown of markup that a source left out of its texts, the frequent ones first."""
Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]
"""Title, columns and rows; sources, languages and filters are rows, however many there are."""


def _print_tables(*tables: Table) -> None:
    """Print those that have rows."""
    for title, columns, rows in tables:
        if rows:
            output.print_table(title, columns, rows)


def print_stats(found: Mapping[str, Any]) -> None:
    """Show what `describe_store` found."""
    store = ("path", "fingerprint", "vocab_size", "dtype", "size_bytes")
    output.print_mapping("token store", {name: found[name] for name in store})
    sources, languages = found["sources"], found["languages"]
    whole = {"(all)": found["total"]} if len(sources) > 1 else {}
    early = {*_HELD, "tokens_per_document", "text_bytes", "unknown_rate", "exact_lines"}
    speeds = ("shards", "bytes", "seconds", "mb_per_s", "rows_per_s", "peak_rss_bytes")
    _print_tables(
        _holdings("source", sources | whole),
        _holdings("language", languages if len(languages) > 1 else {}),
        (
            "on the way to the tokens",
            ("source", "what", "count"),
            [
                [name, key.replace("_", " ").replace(".", ": "), count]
                for name, own in sources.items()
                for key, count in own.items()
                if count and key not in early
            ],
        ),
        (
            "how the tokenizer fits",
            ("source", "unknown tokens", "lines that decode as they were"),
            [
                [name, f"{own['unknown_rate']:.3%}", f"{own['exact_lines']:.1%}"]
                for name, own in sources.items()
                if "exact_lines" in own
            ],
        ),
        _near_duplicates(found.get("near_duplicates")),
        (
            "filters",
            ("source", "filter", *_FILTER_COUNTS, "why and what"),
            [
                [source, name, *(counts.get(key, 0) for key in _FILTER_COUNTS), _reasons(counts)]
                for source, own in found["filters"].items()
                for name, counts in own.items()
            ],
        ),
        (
            "left out of sentences, most often",
            ("source", "what", "name", "times"),
            [
                [source, what, name, count]
                for source, kinds in found["left_out"].items()
                for what, counts in kinds.items()
                for name, count in list(counts.items())[:_LEFT_OUT_SHOWN]
            ],
        ),
        (
            "how fast it was made (per worker)",
            ("stage", "shards", "bytes", "seconds", "MB/s", "rows/s", "peak memory, bytes"),
            [[name, *(own[key] for key in speeds)] for name, own in found["stages"].items()],
        ),
    )


def _near_duplicates(near: Mapping[str, Any] | None) -> Table:
    """The S-curve that `NearDedup.describe` gives; no rows without one."""
    if near is None:
        return "", (), ()
    wrong = "pairs below the threshold are taken out by comparing their n-grams"
    if not near["verified"]:
        wrong = (
            f"{near['false_positives']:.0%} of found pairs below {near['threshold']:g}, if all similarities were"
            " equally frequent"
        )
    shape = f"{near['bands']} bands of {near['rows']} values"
    rows = [["found", *(f"{share:.1%}" for share in near["found"].values())]]
    return f"near-duplicates found, by similarity ({shape}; {wrong})", ("", *near["found"]), rows


def _holdings(what: str, parts: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, own in parts.items():
        lengths = own["tokens_per_document"]
        rows.append([name, *(own[key] for key in _HELD), *(lengths.get(key) for key in _QUANTILES)])
    columns = (what, "documents", "tokens", "sentences", "bytes", "bytes/token", *_QUANTILES.values())
    return f"by {what}; the last {len(_QUANTILES)} columns: tokens per document", columns, rows


def _reasons(counts: Mapping[str, int]) -> str:
    """Why a filter dropped documents, and what it changed."""
    others = {key.removeprefix("dropped."): n for key, n in counts.items() if key not in _FILTER_COUNTS}
    return output.shown(others) if others else ""
