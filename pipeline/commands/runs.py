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
    from pipeline.pretrain.checkpoint import best_checkpoint, list_checkpoints
    from pipeline.pretrain.run_directory import find_run

    run = find_run(reference, runs_dir)
    found = list_checkpoints(run.checkpoints)
    best = best_checkpoint(run.checkpoints)
    rows, damaged = [], []
    for path in found:
        row, damages = _checkpoint_row(run.path.name, path, verify)
        chosen = {"latest": found[-1], "best": best}
        rows.append(row | {"alias": " ".join(alias for alias, it in chosen.items() if it == path)})
        damaged += damages
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
            kept=f"{sum(row['state'] != 'damaged' for row in rows)} of {len(rows)} checkpoints",
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


def _checkpoint_row(run: str, path: Path, verify: bool) -> tuple[dict[str, Any], list[str]]:
    """A line of the listing, and a line for each damaged file."""
    from cluster.errors import CorruptArtefactError
    from cluster.manifest import read_manifest
    from cluster.storage import find_damage
    from pipeline.pretrain.checkpoint import step_of

    row: dict[str, Any] = {"reference": f"{run}@{step_of(path)}", "directory": str(path)}
    try:
        manifest = read_manifest(path)
    except CorruptArtefactError as error:
        return row | {"held_out_loss": None, "size_bytes": None, "state": "damaged"}, [f"  {error.problem}"]
    damages = [f"  {path}/{damage}" for damage in find_damage(path, manifest, deep=verify)]
    state = "damaged" if damages else ("verified" if verify else "committed")
    size_bytes = sum(entry.size_bytes for entry in manifest.files)
    return row | {
        "held_out_loss": manifest.stats["held_out_loss"],
        "size_bytes": size_bytes,
        "state": state,
    }, damages


def _summary(run: Any) -> dict[str, Any]:
    from pipeline.pretrain.run_log import read_metrics

    train, held_out = read_metrics(run.path), read_metrics(run.path, "held_out")
    events = run.events()
    return {
        "run": run.path.name,
        "step": train[-1]["step"] if train else 0,
        "steps": run.config().num_steps,
        "loss": train[-1]["loss"] if train else None,
        "held_out_loss": held_out[-1]["loss"] if held_out else None,
        "state": events[-1]["event"] if events else "created",
        "mlflow_run": run.info.run_id,
    }
