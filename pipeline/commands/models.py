"""`cloze checkpoints`, `publish`, `models` and `export`: what a run has saved, and how others get it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import REFERENCE_HELP, Average, Json, RunsDir, print_json, print_mapping, show

if TYPE_CHECKING:
    from pipeline.checkpoint.store import CheckpointStore


def checkpoints(
    reference: Annotated[str, typer.Argument(help="The run: its name, directory or MLflow run id.")],
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file, and the log.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """List a run's checkpoints; exit code 21 when one is damaged (with --verify)."""
    from cluster.artefacts.errors import CorruptCheckpointError
    from pipeline.checkpoint.store import best_step, store_of
    from pipeline.run.directory import find_run
    from pipeline.run.lifecycle import reconcile
    from pipeline.run.log.log import damage_of_log

    run = find_run(reference, runs_dir)
    reconcile(run)
    store = store_of(run)
    steps, best = store.steps(), best_step(store)
    rows, damaged, typed = [], [], run.typed
    if verify and (damage := damage_of_log(run)):
        damaged.append(f"  {run.log}: {damage}")
    chosen = {"latest": max(steps, default=None), "best": best}
    for step in sorted({*steps, *store.lost()}):
        row, damages = _row(store, step, verify)
        alias = " ".join(alias for alias, it in chosen.items() if it == step)
        rows.append({"reference": f"{typed}@{step}", "alias": alias} | row)
        damaged += damages
    columns = ("reference", "metric", "held_out", "alias", "size_bytes", "state", "directory")
    show(rows, f"checkpoints of {run.path.name}", as_json=as_json, columns=columns)
    if damaged:
        raise CorruptCheckpointError(
            "Damaged files:\n" + "\n".join(damaged),
            kept=f"{sum(row['state'] != 'damaged' for row in rows)} of {len(rows)} checkpoints",
            next_step=f"cloze resume {run.typed}  (sets damaged ones aside and takes the newest good one)",
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
        str | None,
        typer.Option(help="Move this alias of the model to it, such as champion.", show_default=False),
    ] = None,
    export: Annotated[
        bool,
        typer.Option("--export", help="Upload it in transformers' form, for mlflow.transformers.load_model."),
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
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
    if not show(published, "published", as_json=as_json):
        return
    named = f"models:/{name}@{alias}" if alias else f"models:/{name}/{published.version}"
    typer.echo(f"\nNext: cloze finetune CONFIG --from {named}   |   cloze lineage {named}")


def models(
    name: Annotated[str | None, typer.Argument(help="Only this model.", show_default=False)] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the published versions of models, with their aliases and checkpoints."""
    from pipeline.checkpoint.publishing import list_published

    rows = list_published(name, runs_dir)
    columns = ("model", "version", "aliases", "reference", "directory", "fingerprint")
    show(rows, "published models", as_json=as_json, columns=columns)


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
