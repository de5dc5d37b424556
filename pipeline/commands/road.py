"""`cloze road`, `cloze demo` and `cloze ladder`: many stages by one command."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import (
    Address,
    ConfigPath,
    DryRun,
    Html,
    Json,
    LogFormat,
    Overrides,
    Replace,
    print_json,
    print_mapping,
    print_table,
    require_place,
    show,
    write_page,
)
from pipeline.commands.scores import show_scores

if TYPE_CHECKING:
    from pipeline.road.ladder.arms import Ladder


def road(
    config: ConfigPath,
    overrides: Overrides = None,
    replace: Replace = False,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Prepare, pre-train and fine-tune in one go. The same command continues after the finished stages."""
    from pipeline.config.loading import load_config
    from pipeline.road.stages import RoadConfig, load_stages, plan_road

    settings = load_config(RoadConfig, config, overrides or ())
    stages = load_stages(settings)
    if dry_run:
        title, columns = f"{settings.name}: what would be done", ("stage", "name", "state", "what")
        if show(plan_road(settings, stages), title, as_json=as_json, columns=columns):
            typer.echo(
                "Checked: all configurations, source files, files of tasks, and that the network can do the tasks."
            )
        return
    from pipeline.road.run import Finished, commit_report, facts, read_results, run_stages, stages_of
    from pipeline.run.submission import JOB_VARIABLE

    found = Finished()
    parts = stages_of(settings, stages, found, replace=replace, submission_id=os.environ.get(JOB_VARIABLE))
    typed = shlex.join(["cloze", "road", str(config), *(overrides or ())])
    run_stages(parts, stages, found, typed=typed, address=address)
    page, results = commit_report(settings, found), read_results(found)
    if as_json:
        print_json(asdict(results) | {"reference": found.reference, "page": str(page)})
        return
    print_mapping(f"{settings.name}: from text to scores", facts(found, results))
    if found.all_scores:
        show_scores(found.all_scores, found.kinds)
    typer.echo(f"\nNext: cloze lineage {page.parent}   |   the page: {page.resolve().as_uri()}")


def demo(
    out: Annotated[Path, typer.Option(help="Directory for everything that the demo makes.")] = Path("demo"),
    kill_a_worker: Annotated[
        bool, typer.Option("--kill-a-worker", help="SIGKILL one trainer process half-way; the run recovers.")
    ] = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Text to scores on two cores: documents, tokens, pre-training, fine-tuning."""
    from pipeline.road.demo import run_demo

    report = run_demo(out, kill_a_worker=kill_a_worker)
    if as_json:
        print_json(report.as_dict())
        return
    rows = {
        "corpus": f"{report.documents:,} documents, {report.duplicates:,} exact duplicates dropped,"
        f" {report.tokens:,} tokens",
        "pre-training": f"{report.steps:,} steps, {report.tokens_per_s:,.0f} tokens/s",
        "held-out masked-LM loss": f"{report.loss_start:.2f} at the start, {report.loss_end:.2f} at the end"
        f" (on {report.held_out_samples:,} samples: ± {report.loss_error:.2f})",
        **({"a worker was killed": report.killed} if report.killed else {}),
        "time": ", ".join(f"{part} {spent:.0f} s" for part, spent in report.seconds.items()),
        "tokens": report.tokens_directory,
        "run and checkpoints": f"{report.runs_dir}/{report.run}  (MLflow run {report.run_id})",
        "scores": report.scores_directory,
    }
    print_mapping("from text to scores", rows)
    show_scores(report.scores)
    print("\nWhat to type next (in the environment: source .venv/bin/activate):")
    print(
        f"  cloze resume {report.run} --runs-dir {report.runs_dir} --allow-changed steps steps={report.steps + 600}"
    )
    print(f"  cloze lineage {report.scores_directory} --runs-dir {report.runs_dir}")
    print(f"  cloze export {report.run} demo/export --runs-dir {report.runs_dir}")
    print(f"\nThe curves: {report.curves}")
    print(f"\nAll of it as pages, with the errors and where the scores come from: open\n  {report.page}")


def ladder(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Start nothing; show the comparisons that are finished.")
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the tables as Markdown to this file.")
    ] = None,
    html: Html = None,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Pre-train and fine-tune the arms of a ladder, and compare them with the findings of papers.

    The same command goes on after an interruption.
    """
    from pipeline.config.shipped import find_beside
    from pipeline.road.ladder.arms import load_ladder
    from pipeline.road.ladder.page import (
        COMPARISON_COLUMNS,
        FLOOR_COLUMNS,
        comparison_rows,
        floor_rows,
        render_markdown,
        render_page,
    )
    from pipeline.road.ladder.results import collect, commit_result, spent_on
    from pipeline.road.ladder.running import run_stages

    require_place(html)
    require_place(markdown)
    found = load_ladder(find_beside(Path(), config), list(overrides or ()))
    if dry_run:
        _show_stages(found, as_json)
        return
    if not so_far:
        run_stages(found, shlex.join(["cloze", "ladder", str(config), *(overrides or ())]))
    result = collect(found)
    directory = None if so_far else commit_result(found, result)
    spent = spent_on(found)
    if as_json:
        place = None if directory is None else str(directory)
        print_json({"directory": place, **result.model_dump(mode="json"), "spent": asdict(spent)})
    else:
        print_table("tasks, in percent", FLOOR_COLUMNS, floor_rows(result))
        for comparison in result.comparisons:
            title = f"{comparison.title}. {comparison.source}: {comparison.finding}; so {comparison.order}"
            cells = comparison_rows(comparison) or [["not finished"] + [""] * 5]
            print_table(title, COMPARISON_COLUMNS, cells)
        typer.echo(
            f"{spent.finished} of {spent.stages} stages are finished; {spent.cpu_s / 3600:.1f} h of processor cores"
        )
        if directory is not None:
            typer.echo(f"result: {directory}\nNext: cloze lineage {directory}")
    # The result is finished and shown: a page that cannot be written costs nothing but itself.
    if markdown is not None:
        write_page(markdown, render_markdown(result, spent))
    if html is not None:
        write_page(html, render_page(result, spent))


def _show_stages(found: Ladder, as_json: bool) -> None:
    """Print the stages of a ladder with their sizes, and which are finished."""
    from pipeline.road.ladder.config import read_costs
    from pipeline.road.ladder.running import USUAL_FLOPS_PER_S, estimated_seconds
    from pipeline.road.ladder.stages import place_of, stages_of

    stages, costs = stages_of(found), read_costs(found.work)
    places = {name: place_of(stage) for name, stage in stages.items()}
    left = [stage for name, stage in stages.items() if places[name] is None]
    seconds = estimated_seconds(found, left)
    rows: list[dict[str, Any]] = [
        {
            "stage": name,
            "tokens": stage.tokens,
            "flops": stage.flops,
            "finished": None if places[name] is None else str(places[name]),
            "cpu_s": costs[name].cpu_s if name in costs else None,
        }
        for name, stage in stages.items()
    ]
    if as_json:
        print_json({"stages": rows, "left": len(left), "estimated_s": seconds})
        return
    cells = [
        [
            row["stage"],
            row["tokens"] or None,
            f"{row['flops']:.2e}" if row["flops"] else "",
            row["finished"] or "to do",
            None if row["cpu_s"] is None else round(row["cpu_s"]),
        ]
        for row in rows
    ]
    print_table(f"stages of {found.config.name}", ("stage", "tokens", "FLOPs", "", "processor s"), cells)
    time_left = f"about {(seconds or 0) / 60:,.0f} min"
    if seconds is None:
        hours = sum(stage.flops for stage in left) / USUAL_FLOPS_PER_S / 3600
        time_left = f"known once a stage of each kind is finished; pre-training takes about {hours:.1f} hours of a core"
    print_mapping("left", {"stages": len(left), "time": time_left})
