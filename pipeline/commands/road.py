"""`cloze road`: from source files to scores by one command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from pipeline.commands.finetune import show_scores
from pipeline.commands.output import (
    Address,
    ConfigPath,
    DryRun,
    Json,
    LogFormat,
    Overrides,
    Replace,
    print_json,
    print_mapping,
    show,
)

if TYPE_CHECKING:
    from pipeline.road.stages import RoadConfig, Stages


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
    from pipeline.road.stages import RoadConfig, load_stages

    settings = load_config(RoadConfig, config, overrides or ())
    stages = load_stages(settings)
    if dry_run:
        _show_plan(settings, stages, as_json)
        return
    from pipeline.road.report import all_scores, commit_report, facts, read_results
    from pipeline.road.run import Finished, command, run_stages, stages_of
    from pipeline.run.submission import JOB_VARIABLE

    found = Finished()
    parts = stages_of(settings, stages, found, replace=replace, submission_id=os.environ.get(JOB_VARIABLE))
    run_stages(parts, stages, found, typed=command(config, overrides or ()), address=address)
    page, results = commit_report(settings, found), read_results(found)
    if as_json:
        from dataclasses import asdict

        print_json(asdict(results) | {"reference": found.reference, "page": str(page)})
        return
    print_mapping(f"{settings.name}: from text to scores", facts(found, results))
    if scores := all_scores(found):
        show_scores(scores, found.kinds)
    typer.echo(f"\nNext: cloze lineage {page.parent}   |   the page: {page.resolve().as_uri()}")


def _show_plan(settings: RoadConfig, stages: Stages, as_json: bool) -> None:
    """Print every stage with what there is of it already."""
    from pipeline.road.stages import plan_road

    rows: list[dict[str, Any]] = plan_road(settings, stages)
    title, columns = f"{settings.name}: what would be done", ("stage", "name", "state", "what")
    if show(rows, title, as_json=as_json, columns=columns):
        typer.echo(
            "Checked: all configurations, source files, files of tasks, and that the network can do the tasks."
        )
