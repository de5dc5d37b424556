"""`cloze demo`: from text to scores on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.finetune import show_scores
from pipeline.commands.output import Json, LogFormat, print_json, print_mapping

if TYPE_CHECKING:
    from pipeline.road.demo import Report


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
    else:
        render(report)


def render(report: Report) -> None:
    """Print the tables, the commands to type next, and the page of the scores."""
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
