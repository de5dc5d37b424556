"""`cloze checkpoints`: what a run has saved, wherever that is kept, and whether it is still good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.output import Json, RunsDir, show

if TYPE_CHECKING:
    from pipeline.checkpoint.store import CheckpointStore

_COLUMNS = ("reference", "metric", "held_out", "alias", "size_bytes", "state", "directory")


def checkpoints(
    reference: Annotated[str, typer.Argument(help="The run: its name, directory or MLflow run id.")],
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file, and the log.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """List a run's checkpoints; exit code 21 when one is damaged (with --verify)."""
    from cluster.artefacts.errors import CorruptCheckpointError
    from pipeline.checkpoint.store import best_step, store_of
    from pipeline.run.directory import find_run
    from pipeline.run.lifecycle import reconcile
    from pipeline.run.log.log import damage_of_log

    run = find_run(reference, runs_dir)
    reconcile(run)
    store = store_of(run)
    steps, best = store.steps(), best_step(store)
    rows, damaged, typed = [], [], run.typed
    if verify and (damage := damage_of_log(run)):
        damaged.append(f"  {run.log}: {damage}")
    for step in sorted({*steps, *store.lost()}):
        row, damages = _row(store, step, verify)
        chosen = {"latest": max(steps, default=None), "best": best}
        rows.append(
            {
                "reference": f"{typed}@{step}",
                "alias": " ".join(alias for alias, it in chosen.items() if it == step),
            }
            | row
        )
        damaged += damages
    show(rows, f"checkpoints of {run.path.name}", as_json=as_json, columns=_COLUMNS)
    if damaged:
        raise CorruptCheckpointError(
            "Damaged files:\n" + "\n".join(damaged),
            kept=f"{sum(row['state'] != 'damaged' for row in rows)} of {len(rows)} checkpoints",
            next_step=f"cloze resume {run.typed}  (sets damaged ones aside and takes the newest good one)",
        )


def _row(store: CheckpointStore, step: int, verify: bool) -> tuple[dict[str, Any], list[str]]:
    """The listing's row of a checkpoint, and a line for each damaged file."""
    from cluster.artefacts.errors import CorruptArtefactError, CorruptCheckpointError
    from pipeline.checkpoint.checkpoint import evaluated

    place = store.place(step)
    row: dict[str, Any] = {"directory": place}
    try:
        manifest = store.manifest(step)
    except (CorruptArtefactError, CorruptCheckpointError) as error:
        unknown = dict.fromkeys(("metric", "held_out", "size_bytes"))
        return row | unknown | {"state": "damaged"}, [f"  {error.problem}"]
    metric, held_out = evaluated(manifest.stats)
    damages = [f"  {place}/{damage}" for damage in store.damage(step, manifest, deep=verify)]
    return row | {
        "metric": metric,
        "held_out": held_out.get(metric),
        "size_bytes": sum(entry.size_bytes for entry in manifest.files),
        "state": "damaged" if damages else ("verified" if verify else "committed"),
    }, damages
