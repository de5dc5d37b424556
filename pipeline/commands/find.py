"""`cloze data find`: documents, and who has read them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import Json, RunsDir, print_json, print_table, shown, warn_of_damage

if TYPE_CHECKING:
    from data_prep.token_store import TokenStore
    from pipeline.inspect.exposure import RunExposure


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
    runs_dir: RunsDir = Path("runs"),
    scores_dir: Annotated[Path, typer.Option(help="Directory that holds scores.")] = Path("finetuned"),
    as_json: Json = False,
) -> None:
    """Find documents by id, source file or text; and the runs that read them, at which steps, and what came of these.

    Steps are exact and found without making a sample again. Exit code 23 when no document fits.
    """
    from cluster.artefacts.errors import ReferenceNotFoundError
    from cluster.artefacts.places import as_place
    from data_prep.finding import Wanted, find_numbers
    from data_prep.token_store import TokenStore
    from pipeline.inspect.exposure import exposure_of
    from pipeline.run.directory import list_runs

    wanted = Wanted(tuple(ids or ()), tuple(uris or ()), tuple(texts or ()))
    if wanted == Wanted():
        raise typer.BadParameter("name documents by --id, --uri or --text")
    opened = [TokenStore.open(as_place(place), verify=False) for place in stores]
    warn_of_damage(opened)
    found = [(store, *find_numbers(store, wanted)) for store in opened]
    documents = [row for store, numbers, _ in found for row in _documents(store, numbers.tolist())]
    copies = [{"store": store.place, **asdict(copy)} for store, _, own in found for copy in own]
    if not documents and not copies:
        raise ReferenceNotFoundError(f"No document of {', '.join(stores)} fits.")
    if list_file is not None:
        with list_file.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{doc_id}\n" for doc_id in sorted({row["doc_id"] for row in documents}))
    by_store = {store.fingerprint: numbers for store, numbers, _ in found if len(numbers)}
    runs = [exposure_of(run, by_store, scores_dir) for run in (list_runs(runs_dir) if by_store else ())]
    runs = [run for run in runs if run.documents or run.problem]
    if as_json:
        print_json({"documents": documents, "copies": copies, "runs": [asdict(run) for run in runs]})
        return
    columns = ("doc_id", "title", "uri", "tokens", "store", "number")
    print_table(f"{len(documents)} documents", columns, [[row[key] for key in columns] for row in documents])
    if copies:
        rows = [[row[key] for key in ("doc_id", "title", "uri", "store")] for row in copies]
        print_table(
            "read from the sources, and not among the tokens", ("doc_id", "title", "uri", "store"), rows
        )
    _show_runs(runs, {(row["fingerprint"], row["number"]): row["doc_id"] for row in documents})


def _documents(store: TokenStore, numbers: list[int]) -> list[dict[str, Any]]:
    from pipeline.inspect.lineage import find_documents

    places = find_documents([store], [(0, number) for number in numbers])
    return [
        asdict(places[0, number])
        | {
            "tokens": int(store.lengths[number]),
            "store": store.place,
            "fingerprint": store.fingerprint,
            "number": number,
        }
        for number in numbers
    ]


def _show_runs(runs: list[RunExposure], ids: dict[tuple[str, int], str]) -> None:
    if not runs:
        typer.echo("no run has read any of them")
        return
    rows = [
        [run.run, ids[one.store, one.number], one.first_step, one.last_step, one.num_updates, run.steps]
        for run in runs
        for one in run.documents
    ]
    print_table(
        "updates that read them", ("run", "doc_id", "first step", "last step", "updates", "of steps"), rows
    )
    for run in runs:
        if run.problem:
            typer.echo(f"{run.run}: {run.problem}")
        if run.documents:
            clean = "none" if run.clean_checkpoint is None else f"{run.run}@{run.clean_checkpoint}"
            typer.echo(f"{run.run}: newest checkpoint from before: {clean}")
            for what in ("checkpoints", "models", "scores"):
                typer.echo(
                    f"  {what} that depend on them: {shown(', '.join(map(str, getattr(run, what))) or 'none')}"
                )
