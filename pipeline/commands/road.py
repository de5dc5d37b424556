"""`cloze road`, `cloze demo` and `cloze ladder`: many stages by one command."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import output
from pipeline.commands.finetune import show_scores

if TYPE_CHECKING:
    from pipeline.road.ladder.config import Ladder
    from pipeline.road.run import Finished


def road(
    config: output.ConfigPath,
    overrides: output.Overrides = None,
    replace: output.Replace = False,
    address: output.Address = None,
    dry_run: output.DryRun = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Prepare, pre-train and fine-tune in one go. The same command continues after the finished stages."""
    from pipeline.config.loading import load_config
    from pipeline.road.stages import RoadConfig, load_stages, plan_road

    settings = load_config(RoadConfig, config, overrides or ())
    stages = load_stages(settings)
    if dry_run:
        title, columns = f"{settings.name}: what would be done", ("stage", "name", "state", "what")
        if output.show(plan_road(settings, stages), title, as_json=as_json, columns=columns):
            typer.echo(
                "Checked: all configurations, source files, files of tasks, and that the network can do the tasks."
            )
        return
    from pipeline.road.run import Finished, commit_report, run_stages, stages_of
    from pipeline.run.submission import JOB_VARIABLE

    found = Finished()
    parts = stages_of(settings, stages, found, replace=replace, submission_id=os.environ.get(JOB_VARIABLE))
    typed = shlex.join(["cloze", "road", str(config), *(overrides or ())])
    run_stages(parts, stages, found, typed=typed, address=address)
    page = commit_report(settings, found)
    if _show_road(f"{settings.name}: from text to scores", found, page, as_json):
        typer.echo(f"\nNext: cloze lineage {page.parent}   |   the page: {page.resolve().as_uri()}")


def _show_road(title: str, found: Finished, page: Path, as_json: bool, **more: str) -> bool:
    """Print what a road made, as tables or as JSON; returns whether as tables."""
    from pipeline.road.run import facts, read_results

    results = read_results(found)
    if as_json:
        output.print_json(results | {"reference": found.reference, "page": str(page)} | more)
        return False
    output.print_mapping(title, facts(found, results) | more)
    if found.all_scores:
        show_scores(found.all_scores, found.kinds)
    return True


def demo(
    out: Annotated[Path, typer.Option(help="Directory for everything that the demo makes.")] = Path("demo"),
    kill_a_worker: Annotated[
        bool, typer.Option("--kill-a-worker", help="SIGKILL one trainer process half-way; the run recovers.")
    ] = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Text to scores on two cores: documents, tokens, pre-training, fine-tuning."""
    from pipeline.road.demo import run_demo
    from pipeline.run.tracking import runs_page

    found, page, killed = run_demo(out, kill_a_worker=kill_a_worker)
    run = found.run
    if not _show_road("from text to scores", found, page, as_json, **({"killed": killed} if killed else {})):
        return
    runs_dir = run.path.parent
    steps = 600 + run.config().num_steps
    print("\nWhat to type next (in the environment: source .venv/bin/activate):")
    print(f"  cloze resume {run.path.name} --runs-dir {runs_dir} --allow-changed steps steps={steps}")
    print(f"  cloze lineage {page.parent} --runs-dir {runs_dir}")
    print(f"  cloze export {run.path.name} demo/export --runs-dir {runs_dir}")
    print(f"\nThe curves: {runs_page(run.info.tracking_uri, [run.info.experiment_id])}")
    print(
        f"\nAll of it as pages, with the errors and where the scores come from: open\n  {page.resolve().as_uri()}"
    )


def ladder(
    config: output.ConfigPath,
    overrides: output.Overrides = None,
    dry_run: output.DryRun = False,
    markdown: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the tables as Markdown to this file.")
    ] = None,
    html: output.Html = None,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Pre-train and fine-tune the arms of a ladder, and compare them with the findings of papers.

    The same command continues after an interruption.
    """
    from pipeline.config.shipped import find_beside
    from pipeline.road.ladder.config import load_ladder
    from pipeline.road.ladder.page import (
        comparison_rows,
        floor_rows,
        render_markdown,
        render_page,
        time_sentence,
    )
    from pipeline.road.ladder.results import collect, commit_result, spent_on
    from pipeline.road.ladder.stages import run_stages

    output.require_place(html)
    output.require_place(markdown)
    found = load_ladder(find_beside(Path(), config), list(overrides or ()))
    if dry_run:
        _show_stages(found, as_json)
        return
    run_stages(found, shlex.join(["cloze", "ladder", str(config), *(overrides or ())]))
    result = collect(found)
    directory = commit_result(found, result)
    spent = spent_on(found)
    if as_json:
        output.print_json({"directory": str(directory), **result, "spent": spent})
    else:
        floors = floor_rows(result)
        output.show(floors, "tasks, in percent", as_json=False, columns=[*floors[0]])
        for comparison in result["comparisons"]:
            title = "{title}. {source}: {finding}; so {order}".format_map(comparison)
            rows = comparison_rows(comparison)
            output.show(rows, title, as_json=False, columns=[*rows[0]])
        typer.echo(f"{time_sentence(spent)}\nresult: {directory}\nNext: cloze lineage {directory}")
    # The result is finished and shown: a page that cannot be written costs nothing but itself.
    if markdown is not None:
        output.write_page(markdown, render_markdown(result, spent))
    if html is not None:
        output.write_page(html, render_page(result, spent))


def _show_stages(found: Ladder, as_json: bool) -> None:
    """Print the stages of a ladder with their sizes, and which are finished."""
    from pipeline.road.ladder.stages import estimated_seconds, place_of, seconds_of, stages_of

    rows: list[dict[str, Any]] = []
    left = []
    for name, stage in stages_of(found).items():
        tokens, flops = stage.size()
        place, seconds = place_of(found, stage), seconds_of(found, stage)
        finished = None if place is None else str(place)
        row = {"stage": name, "tokens": tokens, "flops": flops, "finished": finished, "seconds": seconds}
        rows.append(row)
        left += [stage] if place is None else []
    seconds = estimated_seconds(found, left)
    if as_json:
        output.print_json({"stages": rows, "left": len(left), "estimated_s": seconds})
        return
    columns = {
        "stage": "stage",
        "tokens": lambda row: row["tokens"] or None,
        "FLOPs": lambda row: f"{row['flops']:.2e}" if row["flops"] else "",
        "": lambda row: row["finished"] or "to do",
        "seconds": lambda row: None if row["seconds"] is None else round(row["seconds"]),
    }
    output.print_table(f"stages of {found.config.name}", columns, rows)
    unknown = "known once a stage of each kind is finished"
    time_left = unknown if seconds is None else f"about {seconds / 60:,.0f} min"
    output.print_mapping("left", {"stages": len(left), "time": time_left})
