"""`cloze publish` and `cloze models`: checkpoints under a name that others may rely on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pipeline.commands.output import Json, RunsDir, show


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

        from pipeline.export.flavour import save_flavour
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
