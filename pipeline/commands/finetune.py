"""`cloze finetune`: from a checkpoint to scores; `show`, `list` and `submission` of finished ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pipeline.commands import output

if TYPE_CHECKING:
    from pipeline.tune.config import FinetuneConfig
    from pipeline.tune.scores import Score
    from pipeline.tune.summary import SummaryRow


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
        Path | None, typer.Argument(help="YAML file, such as those in configs/finetune/.")
    ] = None,
    overrides: output.Overrides = None,
    *,
    reference: Annotated[str, typer.Option("--from", help=f"{output.REFERENCE_HELP}, or `random`.")],
    task: Annotated[
        str | None, typer.Option(help="Without CONFIG: the kind of task, such as rows_classification.")
    ] = None,
    path: Annotated[str | None, typer.Option(help="Without CONFIG: the folder of the task.")] = None,
    train: Annotated[str | None, typer.Option(help="Without CONFIG: the file to learn from.")] = None,
    evaluation: Annotated[
        str | None, typer.Option("--evaluation", "--dev", help="The file to score on.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of rows: text=premise,text_b=hypothesis,label=gold")
    ] = None,
    runs_dir: output.RunsDirOfConfig = None,
    replace: output.Replace = False,
    dry_run: output.DryRun = False,
    html: output.Html = None,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Fine-tune a checkpoint on tasks, score it, and log each score with the checkpoint it came from."""
    from pipeline.tune.finetuned import resolve_start

    output.require_place(html)
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
    on_page = partial(output.write_page, html) if html is not None and prints else None
    scores = finetune(settings, pretrained, replace=replace, on_page=on_page)
    directory = scores_directory(settings, pretrained)
    if not prints:
        return
    if as_json:
        plain = [score.model_dump(mode="json") for score in scores]
        output.print_json({"directory": str(directory), "scores": plain})
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


def _show_preview(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    output.print_mapping(
        "what would be trained",
        {
            "from": found["reference"],
            "parameters": found["parameters"],
            "scores go to": found["directory"],
            "time, one training after another": output.duration(found["seconds"], 0),
        },
    )
    tasks = found["tasks"]
    columns: dict[str, output.Column] = {
        "task": "task",
        "kind": "kind",
        "train": "train_examples",
        "evaluation": "evaluation_examples",
        "test": "test_examples",
        "tokens": "tokens",
        "full length": lambda task: f"{task['full_share']:.1%}",
        "trained": "trained_parameters",
        "trainings": "trainings",
        "updates": "updates",
        "time": lambda task: output.duration(task["seconds"], 0),
    }
    # Columns with nothing to say are left out, so that the table fits into a narrow terminal.
    if all(task["kind"] == task["task"] for task in tasks):
        del columns["kind"]
    if not any(task["test_examples"] for task in tasks):
        del columns["test"]
    if all(task["trained_parameters"] == found["parameters"] for task in tasks):
        del columns["trained"]
    output.print_table("tasks", columns, tasks)
    for task in tasks:
        for note in task["notes"]:
            typer.echo(f"{task['task']}: {note}.")
    typer.echo("Time: training on one device of this machine, from a few updates; evaluation comes to it.")


@finetune_app.command()
def show(
    scores: Annotated[str, typer.Argument(help="Scores, in a directory or at a URI, or SCORES@TRAINING.")],
    trial: Annotated[
        str | None, typer.Option(help="The training whose errors are shown; else the first one.")
    ] = None,
    errors: Annotated[int, typer.Option(min=0, help="Errors to show, the worst first.")] = 20,
    runs_dir: output.RunsDir = Path("runs"),
    html: output.Html = None,
    as_json: output.Json = False,
) -> None:
    """Show scores, and the worst errors of a training with their texts."""
    from cluster.artefacts.errors import MissingInputError
    from cluster.artefacts.places import folded_uri
    from cluster.copies import place_of
    from pipeline.tune.finetuned import split_scores
    from pipeline.tune.report.page import render_page
    from pipeline.tune.report.predictions import worst_of
    from pipeline.tune.scores import ScoresDirectory

    output.require_place(html)
    directory, named = split_scores(scores)
    if uri := folded_uri(directory):
        raise MissingInputError(f"There are no scores at {uri}.", next_step="cloze finetune list URI")
    opened = ScoresDirectory.open(directory)
    shown = opened.score(trial or named).trial
    found = worst_of(opened.lines(shown), errors)
    if html is not None:
        output.write_page(html, render_page(directory, runs_dir, errors))
    if as_json:
        plain = [score.model_dump(mode="json") for score in opened.scores]
        output.print_json(
            {"directory": place_of(directory), "scores": plain, "trial": shown.name, "errors": found}
        )
        return
    show_scores(opened.scores, {score.task: opened.kind(score.task) for score in opened.scores})
    show_teachers(directory)
    if found:
        typer.echo(f"\nworst errors of {shown.name}")
    for error in found:
        output.print_line("\n{id}, {remark}".format_map(error))
        for name, text in {
            **error["texts"],
            "right": error["right"],
            "predicted": error["predicted"],
        }.items():
            output.print_line(f"  {name:<10}{text}")


@finetune_app.command("list")
def list_(
    directory: Annotated[
        str, typer.Argument(help="Directory or URI with scores, such as a configuration's `out`.")
    ] = "finetuned",
    as_json: output.Json = False,
) -> None:
    """List all scores below a directory, the newest first; damaged ones are named."""
    from cluster.artefacts.places import as_place
    from pipeline.tune.summary import list_scores

    found = list_scores(as_place(directory))
    if as_json:
        output.print_json(
            [asdict(each) | {"directory": str(each.directory), "tasks": each.tasks} for each in found]
        )
        return
    if not found:
        typer.echo(f"There are no scores below {directory}.")
        return
    columns = {
        "name": "name",
        "from": lambda each: each.reference or "",
        "scores": lambda each: "damaged" if each.problem else "\n".join(_main_metrics(each.rows)),
        # To the second, in UTC, as manifests have it.
        "made at": lambda each: each.time[:19].replace("T", " "),
    }
    output.print_table("scores, in percent", columns, found, copied=("name", "from"))
    for each in found:
        if each.problem:
            output.print_line(f"{each.directory} is damaged: {each.problem}", err=True)


def _main_metrics(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """The main metric of every task and start."""
    for row in rows:
        if row.initial is not None:
            start = "" if row.initial == "pretrained" else ", random weights"
            metric = row.main_metric
            yield f"{row.task}{start}: {metric} {_percent(row.mean[metric], row.std[metric])}"


def show_scores(scores: Sequence[Score], kinds: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print mean and standard deviation over seeds, of a search the best choice, and how the numbers came about.

    Args:
        kinds: of the tasks, by their names; where all of GLUE is among them, its average is printed.
    """
    from pipeline.tune.summary import glue_averages, protocol, shown, summarise

    rows = summarise(scores)
    searched = any(row.choice for row in rows)
    cells = []
    for row in rows:
        measured = []
        for name, mean in row.mean.items():
            std = row.std[name]
            spread = "" if std is None else f" ± {shown(name, std)}"
            measured.append(f"{name} {shown(name, mean)}{spread}")
        choice = [", ".join(f"{name} {value:g}" for name, value in row.choice.items())] if searched else []
        cells.append([row.task, row.start, *choice, row.num_seeds or "", ", ".join(measured)])
    headings = ["task", "from", *(["settings"] if searched else []), "seeds", "mean ± standard deviation"]
    output.print_table("scores, shares in percent", headings, cells)
    typer.echo(protocol(scores))
    for start, average in glue_averages(rows, kinds).items():
        typer.echo(f"GLUE's average from {start}, on the development sets: {_percent(average, None)}")


def show_teachers(directory: Path) -> None:
    """Print teachers beside their students, where trainings had teachers."""
    from pipeline.tune.scores import TEACHER, ScoresDirectory
    from pipeline.tune.summary import shown

    opened, rows = ScoresDirectory.open(directory), []
    for score in opened.scores:
        if (sizes := score.distillation) is None:
            continue
        metric, speeds = score.main_metric, opened.speeds(score.trial) or {}
        teacher = score.baselines[TEACHER][metric]
        for role, parameters, size_bytes, value in (
            (TEACHER, sizes.teacher_parameters, sizes.teacher_bytes, teacher),
            ("student", sizes.student_parameters, sizes.student_bytes, score.value),
        ):
            row = {
                "training": score.trial.name,
                "network": role,
                "parameters": parameters,
                "weights": f"{size_bytes / 2**20:.1f} MiB",
                "examples/s": f"{speeds[role]:,.0f}" if role in speeds else "",
                "score": f"{metric} {shown(metric, value)}",
                "of the teacher's": f"{value / teacher:.1%}" if teacher > 0 else "",
            }
            rows.append(row)
    if rows:
        output.print_table("teachers and students", tuple(rows[0]), [list(row.values()) for row in rows])


def _percent(mean: float, std: float | None) -> str:
    """Mean and standard deviation in percent, such as `56.3 ± 1.2`."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


@finetune_app.command()
def submission(
    scores: Annotated[list[str], typer.Argument(help="Scores, in directories or at URIs.")],
    out: Annotated[Path, typer.Option("--out", help="The zip file to write.")] = Path("submission.zip"),
    seed: Annotated[
        int | None, typer.Option(help="Of trainings with this seed; else of each task's best.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Write the archive that GLUE's or SuperGLUE's leaderboard takes, of trainings with `submit: true`."""
    from cluster.artefacts.manifest import write_durably
    from cluster.artefacts.storage import storage_errors
    from pipeline.tune.finetuned import split_scores
    from pipeline.tune.summary import make_archive

    output.require_place(out)
    archive = make_archive([split_scores(one)[0] for one in scores], seed)
    with storage_errors(out):
        write_durably(out, archive.content)
    if as_json:
        output.print_json({"archive": str(out), "files": archive.files, "missing": list(archive.missing)})
        return
    for name, trial in archive.files.items():
        typer.echo(f"{name}  {trial}")
    typer.echo(f"{archive.leaderboard}'s archive: {out}")
    if archive.missing:
        typer.echo(f"The leaderboard wants more: {', '.join(archive.missing)}", err=True)
