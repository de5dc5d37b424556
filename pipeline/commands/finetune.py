"""`cloze finetune`: from a checkpoint to scores."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pipeline.commands.output import (
    REFERENCE_HELP,
    DryRun,
    Html,
    Json,
    LogFormat,
    Overrides,
    RunsDirOfConfig,
    duration,
    print_json,
    print_mapping,
    require_place,
    show,
    write_page,
)
from pipeline.commands.scores import show_scores, show_teachers

if TYPE_CHECKING:
    from pipeline.tune.config import FinetuneConfig
    from pipeline.tune.preview import Preview


class _TrainsByDefault(TyperGroup):
    """A group whose arguments belong to `run` unless they begin with another command of the group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` before arguments that name no command."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the commands of the group, and all that `run` takes, whose name nobody needs to type."""
        super().format_help(ctx, formatter)
        command = self.commands["run"]
        inner = command.context_class(command, parent=ctx.parent, info_name=ctx.info_name)
        command.format_help(inner, formatter)


finetune_app = typer.Typer(
    cls=_TrainsByDefault,
    no_args_is_help=True,
    help="Fine-tune a checkpoint on tasks and score it: `cloze finetune CONFIG --from REF`.",
)


@finetune_app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file, such as those in configs/finetune/.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    *,
    reference: Annotated[str, typer.Option("--from", help=f"{REFERENCE_HELP}, or `random`.")],
    task: Annotated[
        str | None,
        typer.Option(
            help="Without CONFIG: the kind of task, such as rows_classification.", show_default=False
        ),
    ] = None,
    path: Annotated[str | None, typer.Option(help="Without CONFIG: the folder of the task.")] = None,
    train: Annotated[str | None, typer.Option(help="Without CONFIG: the file to learn from.")] = None,
    evaluation: Annotated[
        str | None, typer.Option("--evaluation", "--dev", help="The file to score on.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of rows: text=premise,text_b=hypothesis,label=gold")
    ] = None,
    runs_dir: RunsDirOfConfig = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace scores of other settings.")] = False,
    dry_run: DryRun = False,
    html: Html = None,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Fine-tune a checkpoint on tasks, score it, and log each score with the checkpoint it came from."""
    from pipeline.tune.finetuned import resolve_start

    require_place(html)
    given = {"kind": task, "path": path, "train": train, "evaluation": evaluation, "columns": columns}
    settings = _settings(config, list(overrides or ()), given, runs_dir)
    pretrained = resolve_start(reference, settings.runs_dir)
    if dry_run:
        from pipeline.tune.preview import preview

        _show_preview(preview(settings, pretrained), as_json)
        return
    from pipeline.tune.run import finetune
    from pipeline.tune.trials import scores_directory

    prints = os.environ.get("RANK", "0") == "0"
    on_page = partial(write_page, html) if html is not None and prints else None
    scores = finetune(settings, pretrained, replace=replace, on_page=on_page)
    directory = scores_directory(settings, pretrained)
    if not prints:
        return
    if as_json:
        print_json(
            {"directory": str(directory), "scores": [score.model_dump(mode="json") for score in scores]}
        )
        return
    show_scores(scores, {name: task.kind for name, task in settings.tasks.items()})
    show_teachers(directory)
    typer.echo(f"\nscores: {directory}\nNext: cloze finetune show {directory} --errors 20 --html scores.html")


def _settings(
    config: Path | None, overrides: list[str], given: dict[str, Any], runs_dir: Path | None
) -> FinetuneConfig:
    """The configuration of a file, or of one task that the options describe.

    Args:
        given: the options; `columns` as they are typed, `text=premise,label=gold`.
    """
    from cluster.artefacts.errors import ConfigError
    from pipeline.config.loading import load_config, validate, with_overrides
    from pipeline.tune.config import FinetuneConfig

    if config is not None and "=" in str(config) and not config.exists():
        overrides, config = [str(config), *overrides], None
    if runs_dir is not None:
        overrides.append(f"runs_dir={runs_dir}")
    described = {name: value for name, value in given.items() if value is not None}
    if (columns := described.get("columns")) is not None:
        pairs = [pair.partition("=") for pair in columns.split(",")]
        if any(not sign or not name or not column for name, sign, column in pairs):
            raise ConfigError(
                f"--columns {columns} cannot be read.", next_step="write it as text=COLUMN,label=COLUMN"
            )
        described["columns"] = {name.strip(): column.strip() for name, _, column in pairs}
    if config is not None:
        if described:
            options = ["--task" if name == "kind" else f"--{name}" for name in described]
            raise ConfigError(
                f"{config} describes the tasks, and so do {' and '.join(options)}.",
                next_step="leave out one of them, or change the file's settings with tasks.NAME.KEY=VALUE",
            )
        return load_config(FinetuneConfig, config, overrides)
    if "kind" not in described:
        raise ConfigError(
            "There is neither a configuration nor a task.",
            next_step="cloze finetune CONFIG.yaml --from REF, or --task rows_classification --train FILE"
            " --evaluation FILE --columns text=COLUMN,label=COLUMN",
        )
    name = described["kind"]
    plain = with_overrides(
        FinetuneConfig, {"name": name, "tasks": {name: described}}, overrides, "the command line"
    )
    return validate(FinetuneConfig, plain, "the command line")


def _show_preview(found: Preview, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found) | {"seconds": found.seconds})
        return
    print_mapping(
        "what would be trained",
        {
            "from": found.reference,
            "parameters": found.parameters,
            "scores go to": str(found.directory),
            "time, one training after another": duration(found.seconds, 0),
        },
    )
    rows = [
        {
            "task": task.task,
            "kind": task.kind,
            "train": task.train_examples,
            "evaluation": task.evaluation_examples,
            "test": task.test_examples,
            "tokens": task.tokens,
            "full length": f"{task.full_share:.1%}",
            "trained": task.trained_parameters,
            "trainings": task.trainings,
            "updates": task.updates,
            "time": duration(task.seconds, 0),
        }
        for task in found.tasks
    ]
    informative = {
        "kind": any(task.kind != task.task for task in found.tasks),
        "test": any(task.test_examples for task in found.tasks),
        "trained": any(task.trained_parameters != found.parameters for task in found.tasks),
    }
    # Columns with nothing to say are left out, so that the table fits into a narrow terminal.
    columns = [heading for heading in rows[0] if informative.get(heading, True)]
    show(rows, "tasks", as_json=False, columns=columns)
    for task in found.tasks:
        for note in task.notes:
            typer.echo(f"{task.task}: {note}.")
    typer.echo("Time: training on one device of this machine, from a few updates; evaluation comes to it.")
