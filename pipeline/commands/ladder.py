"""`cloze ladder`: networks that were pre-trained in different ways, compared on tasks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import (
    ConfigPath,
    DryRun,
    Html,
    Json,
    LogFormat,
    Overrides,
    print_json,
    print_mapping,
    print_table,
    require_place,
    write_page,
)

if TYPE_CHECKING:
    from pipeline.road.ladder.arms import Ladder

Markdown = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Also write the tables as Markdown to this file.")
]
SoFar = Annotated[
    bool, typer.Option("--so-far", help="Start nothing; show the comparisons that are finished.")
]


def ladder(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    so_far: SoFar = False,
    markdown: Markdown = None,
    html: Html = None,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Pre-train and fine-tune the arms of a ladder, and compare them with the findings of papers.

    The same command goes on after an interruption.
    """
    from pipeline.config.shipped import find_beside
    from pipeline.road.ladder.arms import load_ladder
    from pipeline.road.ladder.results import collect, commit_result, spent_on
    from pipeline.road.ladder.running import run_stages

    require_place(html)
    require_place(markdown)
    found = load_ladder(find_beside(Path(), config), list(overrides or ()))
    if dry_run:
        _show_plan(found, as_json)
        return
    if not so_far:
        run_stages(found, shlex.join(["cloze", "ladder", str(config), *(overrides or ())]))
    result = collect(found)
    directory = None if so_far else commit_result(found, result)
    spent = spent_on(found)
    if as_json:
        from dataclasses import asdict

        place = None if directory is None else str(directory)
        print_json({"directory": place, **result.model_dump(mode="json"), "spent": asdict(spent)})
    else:
        _show_result(result)
        typer.echo(
            f"{spent.finished} of {spent.stages} stages are finished; {spent.cpu_s / 3600:.1f} h of processor cores"
        )
        if directory is not None:
            typer.echo(f"result: {directory}\nNext: cloze lineage {directory}")
    # The result is finished and shown: a page that cannot be written costs nothing but itself.
    if markdown is not None:
        from pipeline.road.ladder.tables import render_markdown

        write_page(markdown, render_markdown(result, spent))
    if html is not None:
        from pipeline.road.ladder.page import render_page

        write_page(html, render_page(result, spent))


def _show_plan(found: Ladder, as_json: bool) -> None:
    """The stages with their sizes, and which are finished."""
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


def _show_result(result: Any) -> None:
    from pipeline.road.ladder.tables import COMPARISON_COLUMNS, FLOOR_COLUMNS, comparison_rows, floor_rows

    print_table("tasks, in percent", FLOOR_COLUMNS, floor_rows(result))
    for comparison in result.comparisons:
        title = f"{comparison.title}. {comparison.source}: {comparison.finding}; so {comparison.order}"
        print_table(title, COMPARISON_COLUMNS, comparison_rows(comparison) or [["not finished"] + [""] * 5])
