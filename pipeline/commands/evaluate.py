"""`cloze finetune`: from a checkpoint to scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.output import (
    ConfigPath,
    DryRun,
    Json,
    Overrides,
    print_json,
    print_mapping,
    print_table,
)

if TYPE_CHECKING:
    from pipeline.finetune.scores import Score

REFERENCE_HELP = (
    "RUN, RUN@STEP, RUN@best, models:/NAME@ALIAS, a checkpoint or Hugging Face directory, or `random`."
)


def register(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(finetune)


def finetune(
    config: ConfigPath,
    reference: Annotated[str, typer.Option("--from", help=REFERENCE_HELP)],
    overrides: Overrides = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace scores of other settings.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a checkpoint on tasks, score it, and log each score with the checkpoint it came from."""
    from pipeline.checkpoints.references import resolve_model
    from pipeline.config.loading import load_config
    from pipeline.demo.tasks import FinetuneConfig
    from pipeline.finetune.run import finetune as run_finetune
    from pipeline.finetune.workload import scores_directory

    settings = load_config(FinetuneConfig, config, overrides or ())
    pretrained = None if reference == "random" else resolve_model(reference, settings.runs_dir)
    directory = scores_directory(settings, pretrained)
    if dry_run:
        plan = {
            "name": settings.name,
            "from": pretrained.reference if pretrained else "random weights",
            "tasks": ", ".join(settings.tasks),
            "seeds": ", ".join(map(str, settings.seeds)),
            "trainings": len(settings.tasks) * len(settings.seeds) * (2 if settings.compare_random else 1),
            "scores go to": str(directory),
        }
        if as_json:
            print_json(plan)
        else:
            print_mapping("what would be trained", plan)
        return
    scores = run_finetune(settings, pretrained, replace=replace)
    if as_json:
        print_json(
            {"directory": str(directory), "scores": [score.model_dump(mode="json") for score in scores]}
        )
        return
    show_scores(scores)
    typer.echo(f"\nscores: {directory}\nNext: cloze lineage {directory}")


def show_scores(scores: list[Score]) -> None:
    """Print mean and standard deviation over seeds."""
    from pipeline.finetune.scores import summarise

    rows = [
        [
            row.task,
            row.reference or "random weights",
            row.num_seeds,
            ", ".join(f"{name} {percent(row.mean[name], row.std[name])}" for name in row.mean),
        ]
        for row in summarise(scores)
    ]
    print_table("scores, in percent", ("task", "from", "seeds", "mean ± standard deviation"), rows)


def percent(mean: float, std: float | None) -> str:
    """Mean and standard deviation in percent, such as `56.3 ± 1.2`."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")
