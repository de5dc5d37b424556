"""`cloze runs`, `cloze checkpoints` and `cloze lineage`: what there is, and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.output import Json, RunsDir, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(runs)
    app.command()(checkpoints)
    app.command()(lineage)


def runs(runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """List the pre-training runs with where they stand."""
    from pipeline.pretrain.launch import replay
    from pipeline.pretrain.run_directory import list_runs

    found = list_runs(runs_dir)
    for run in found:
        replay(run)
    rows = [_summary(run) for run in found]
    if as_json:
        print_json(rows)
        return
    columns = ("run", "step", "steps", "loss", "held_out_loss", "state", "mlflow_run")
    print_table(f"runs in {runs_dir}", columns, [[row[column] for column in columns] for row in rows])
    if not rows:
        typer.echo("None yet. Start one: cloze pretrain configs/pretrain/roberta-small-cpu.yaml")


def checkpoints(
    reference: Annotated[str, typer.Argument(help="The run: its name, directory or MLflow run id.")],
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """List a run's checkpoints; exit code 21 when one is damaged (with --verify)."""
    from cluster.errors import CorruptCheckpointError
    from cluster.manifest import read_manifest
    from cluster.storage import find_damage
    from pipeline.pretrain.checkpoint import best_checkpoint, list_checkpoints, step_of
    from pipeline.pretrain.run_directory import find_run

    run = find_run(reference, runs_dir)
    found = list_checkpoints(run.checkpoints)
    best = best_checkpoint(run.checkpoints)
    rows: list[dict[str, Any]] = []
    damaged: list[str] = []
    for path in found:
        manifest = read_manifest(path)
        damages = find_damage(path, manifest, deep=verify)
        damaged += [f"  {path}/{damage}" for damage in damages]
        rows.append(
            {
                "reference": f"{run.path.name}@{step_of(path)}",
                "held_out_loss": manifest.stats["held_out_loss"],
                "alias": " ".join(
                    name for name, chosen in (("latest", found[-1]), ("best", best)) if chosen == path
                ),
                "size_bytes": sum(entry.size_bytes for entry in manifest.files),
                "state": "damaged" if damages else ("verified" if verify else "committed"),
                "directory": str(path),
            }
        )
    if as_json:
        print_json(rows)
    else:
        columns = ("reference", "held_out_loss", "alias", "size_bytes", "state", "directory")
        print_table(
            f"checkpoints of {run.path.name}", columns, [[row[column] for column in columns] for row in rows]
        )
    if damaged:
        raise CorruptCheckpointError(
            "Damaged files:\n" + "\n".join(damaged),
            kept=f"{len(found) - len({line.split('/step-')[1][:8] for line in damaged})} good checkpoints",
            next_step=f"cloze resume {run.path.name}  (sets damaged ones aside and takes the newest good one)",
        )


def lineage(
    reference: Annotated[
        str, typer.Argument(help="A run, RUN@STEP, model URI, or any artefact's directory.")
    ],
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Print what something was made from, down to the source files and their hashes."""
    from pipeline.lineage import render, trace

    tree = trace(reference, runs_dir)
    if as_json:
        print_json(tree.as_dict())
    else:
        render(tree)


def _summary(run: Any) -> dict[str, Any]:
    from pipeline.pretrain.run_log import read_metrics

    train, held_out = read_metrics(run.path), read_metrics(run.path, "held_out")
    events = run.events()
    return {
        "run": run.path.name,
        "step": train[-1]["step"] if train else 0,
        "steps": run.config().steps,
        "loss": train[-1]["loss"] if train else None,
        "held_out_loss": held_out[-1]["loss"] if held_out else None,
        "state": events[-1]["event"] if events else "created",
        "mlflow_run": run.info.run_id,
    }
