"""Runs, their checkpoints, and how others get them: `cloze runs`, `checkpoints`, `publish`, `models`, `export`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from pipeline.checkpoint.store import CheckpointStore

runs_app = typer.Typer(invoke_without_command=True)


@runs_app.callback()
def runs(
    context: typer.Context, runs_dir: output.RunsDir = Path("runs"), as_json: output.Json = False
) -> None:
    """List the pre-training runs with their progress, and where MLflow shows and compares them."""
    if context.invoked_subcommand is not None:
        context.obj = runs_dir
        return
    from contextlib import suppress

    from cluster.artefacts.errors import CorruptArtefactError, StorageError
    from pipeline.run.directory import list_runs
    from pipeline.run.lifecycle import SENT_ON_THE_WAY_BYTES, reconcile
    from pipeline.run.state import is_held
    from pipeline.run.tracking import runs_page
    from pipeline.watch.run_status import read_status

    found = list_runs(runs_dir)
    silent: set[str] = set()
    experiments: dict[str, set[str]] = {}
    for run in found:
        # A run whose files are damaged is listed as such.
        with suppress(CorruptArtefactError, StorageError):
            info = run.info
            # A store that does not answer takes its time to say so; once is enough.
            if not reconcile(run, send=info.tracking_uri not in silent):
                silent.add(info.tracking_uri)
            if info.experiment_id:
                experiments.setdefault(info.tracking_uri, set()).add(info.experiment_id)
    statuses = [read_status(run) for run in found]
    rows = [
        {
            "run": one.name,
            "state": one.state,
            "detail": one.detail,
            "step": one.step,
            "steps": one.num_steps,
            "loss": one.metrics.get("loss"),
            "metric": one.metric,
            "held_out": one.held_out.get(one.metric),
            "mlflow_run": one.run_id or None,
        }
        for one in statuses
    ]
    columns = ("run", "state", "step", "steps", "loss", "metric", "held_out", "mlflow_run")
    if not output.show(rows, f"runs in {runs_dir}", as_json=as_json, columns=columns):
        return
    for run, one in zip(found, statuses, strict=True):
        if one.state not in ("created", "finished") and one.detail:
            output.print_line(f"{one.name}: {one.state}, {one.detail}")
        if one.unsent_bytes > SENT_ON_THE_WAY_BYTES and not is_held(run):
            missing = f"{one.unsent_bytes / 1e6:,.0f} MB of its log are not in MLflow yet"
            output.print_line(f"{one.name}: {missing}: cloze runs replay {one.name}")
    for uri, ids in experiments.items():
        output.print_line(f"Curves, and runs side by side: {runs_page(uri, sorted(ids))}")
    if not rows:
        typer.echo("None yet. Start one: cloze pretrain roberta-small-cpu (cloze configs list names others)")
    if (scores := _scores_beside(runs_dir)) is not None:
        typer.echo(f"Fine-tunings: cloze finetune list {scores}")


def _scores_beside(runs_dir: Path) -> Path | None:
    """The directory where fine-tuning leaves its scores, if it holds any; its files are not read."""
    from cluster.artefacts.manifest import MANIFEST_NAME

    for place in (Path("finetuned"), runs_dir.parent / "finetuned", runs_dir.parent / "scores"):
        if next(place.glob(f"*/*/{MANIFEST_NAME}"), None) is not None:
            return place
    return None


@runs_app.command()
def replay(
    context: typer.Context,
    runs: Annotated[list[str], typer.Argument(help="Runs: names, directories or MLflow run ids.")],
    move: Annotated[
        bool, typer.Option("--move", help="Track them from now on in the store that is in force here.")
    ] = False,
    runs_dir: output.RunsDirOfGroup = None,
) -> None:
    """Send the whole log of runs, their checkpoints and published models to MLflow again, after it lost them.

    What MLflow has already is not doubled. A store that does not know a run gets a new MLflow run.
    """
    from pipeline.checkpoint.publishing import track_anew
    from pipeline.run.directory import find_run

    for found in [find_run(run, runs_dir or context.obj) for run in runs]:
        uri = track_anew(found, move=move)
        typer.echo(f"{found.path.name}: MLflow run {found.info.run_id} in {uri}")


def checkpoints(
    run: output.Run,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file, and the log.")] = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """List a run's checkpoints; exit code 21 when one is damaged (with --verify)."""
    from cluster.artefacts.errors import CorruptCheckpointError
    from pipeline.checkpoint.store import best_step, store_of
    from pipeline.run.directory import find_run
    from pipeline.run.lifecycle import reconcile
    from pipeline.run.log.log import damage_of_log

    found = find_run(run, runs_dir)
    reconcile(found)
    store = store_of(found)
    steps, best = store.steps(), best_step(store)
    rows, damaged = [], []
    if verify and (damage := damage_of_log(found)):
        damaged.append(f"  {found.log}: {damage}")
    chosen = {"latest": max(steps, default=None), "best": best}
    for step in sorted({*steps, *store.lost()}):
        row, damages = _row(store, step, verify)
        alias = " ".join(alias for alias, it in chosen.items() if it == step)
        rows.append({"reference": f"{found.typed}@{step}", "alias": alias} | row)
        damaged += damages
    columns = ("reference", "metric", "held_out", "alias", "size_bytes", "state", "directory")
    output.show(rows, f"checkpoints of {found.path.name}", as_json=as_json, columns=columns)
    if damaged:
        raise CorruptCheckpointError(
            "Damaged files:\n" + "\n".join(damaged),
            kept=f"{sum(row['state'] != 'damaged' for row in rows)} of {len(rows)} checkpoints",
            next_step=f"cloze resume {found.typed}  (sets damaged ones aside and takes the newest good one)",
        )


def _row(store: CheckpointStore, step: int, verify: bool) -> tuple[dict[str, Any], list[str]]:
    """The listing's row of a checkpoint, and a line for each damaged file."""
    from cluster.artefacts.errors import CorruptArtefactError, CorruptCheckpointError
    from pipeline.checkpoint.checkpoint import evaluated

    place = store.place(step)
    row: dict[str, Any] = {"directory": place}
    try:
        manifest = store.manifest(step)
    except (CorruptArtefactError, CorruptCheckpointError) as error:
        unknown = dict.fromkeys(("metric", "held_out", "size_bytes"))
        return row | unknown | {"state": "damaged"}, [f"  {error.problem}"]
    metric, held_out = evaluated(manifest.stats)
    damages = [f"  {place}/{damage}" for damage in store.damage(step, manifest, deep=verify)]
    return row | {
        "metric": metric,
        "held_out": held_out.get(metric),
        "size_bytes": sum(entry.size_bytes for entry in manifest.files),
        "state": "damaged" if damages else ("verified" if verify else "committed"),
    }, damages


def publish(
    reference: Annotated[
        str, typer.Argument(help="RUN@STEP, RUN@best, models:/NAME/VERSION or a checkpoint.")
    ],
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    alias: Annotated[
        str | None, typer.Option(help="Move this alias of the model to it, such as champion.")
    ] = None,
    export: Annotated[
        bool,
        typer.Option("--export", help="Upload it in transformers' form, for mlflow.transformers.load_model."),
    ] = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """Verify a checkpoint and register it in MLflow under a model's name; retention keeps it from then on.

    The same command with another reference moves the alias, also back.
    """
    from pipeline.checkpoint.publishing import publish as publish_checkpoint

    if export:
        import mlflow.transformers  # noqa: F401  Before any client, which does without pandas.

        from pipeline.export.formats import save_flavour
        from pipeline.tune.export import export as write_export

        with TemporaryDirectory() as work:
            exported = write_export(reference, Path(work) / "export", runs_dir=runs_dir)
            save_flavour(exported, flavour := Path(work) / "flavour")
            published = publish_checkpoint(reference, name, alias, runs_dir, flavour=flavour)
    else:
        published = publish_checkpoint(reference, name, alias, runs_dir)
    if not output.show(published, "published", as_json=as_json):
        return
    named = f"models:/{name}@{alias}" if alias else f"models:/{name}/{published.version}"
    typer.echo(f"\nNext: cloze finetune CONFIG --from {named}   |   cloze lineage {named}")


def models(
    name: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """List the published versions of models, with their aliases and checkpoints."""
    from pipeline.checkpoint.publishing import list_published

    rows = list_published(name, runs_dir)
    columns = ("model", "version", "aliases", "reference", "directory", "fingerprint")
    output.show(rows, "published models", as_json=as_json, columns=columns)


def export(
    reference: Annotated[
        str, typer.Argument(help=f"{output.REFERENCE_HELP}, or a directory of scores with models.")
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
    ema: output.Average = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare logits with transformers before committing.")
    ] = True,
    peft: Annotated[
        bool, typer.Option("--peft", help="Of scores: what LoRA or a prefix trained, for the library peft.")
    ] = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
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
        output.print_json(values)
        return
    notes = values.pop("notes")
    output.print_mapping("exported", values)
    for note in notes:
        typer.echo(f"Note: {note}.")
    typer.echo(f"\nRead it with {made.auto_class}" + ("" if made.family == "ELMo" else ".from_pretrained"))
