"""A road before it is started: its stages, and how far each is."""

from __future__ import annotations

from typing import Any

from cluster.artefacts.storage import is_committed
from cluster.copies import is_on_this_machine
from data_prep.plan import plan_preparation
from pipeline.checkpoint.references import resolve_model
from pipeline.pretrain.continuing import find_same_run, is_finished
from pipeline.road.stages import RoadConfig, Stages
from pipeline.tune.evaluation_sets import evaluation_texts
from pipeline.tune.workload import num_trainings, scores_directory


def plan_road(road: RoadConfig, stages: Stages) -> list[dict[str, Any]]:
    """A row for every stage: `stage`, `name`, `state` and `what` it does, in a few words; nothing is started."""
    rows = []
    for config in stages.data:
        plan = plan_preparation(config, evaluation_texts)
        states = set(plan["stages"].values())
        state = "finished" if states == {"committed"} else "absent" if states == {"absent"} else "started"
        what = f"{plan['files']:,} files, {plan['size_bytes']:,} bytes, {plan['shards']:,} shards -> {config.out}"
        rows.append({"stage": "prepare", "name": config.name, "state": state, "what": what})
    run = stages.pretrain
    is_ready = all(is_on_this_machine(store.path) for store in run.data.stores)
    earlier = find_same_run(run) if is_ready else None
    state = "absent" if earlier is None else "finished" if is_finished(earlier) else "started"
    what = (
        f"{run.objective.kind}, {run.num_steps:,} steps, {run.tokens_before(run.num_steps):,} tokens, "
        f"{run.cluster.workers} workers" + (f" -> {earlier.path}" if earlier else "")
    )
    rows.append({"stage": "pretrain", "name": run.name, "state": state, "what": what})
    model = (
        resolve_model(f"{earlier.path}@{road.checkpoint}", run.runs_dir)
        if earlier and state == "finished"
        else None
    )
    for config in stages.finetune:
        done = model is not None and is_committed(scores_directory(config, model))
        what = f"{', '.join(config.tasks)}: {num_trainings(config)} trainings -> {config.out / config.name}"
        state = "finished" if done else "absent"
        rows.append({"stage": "finetune", "name": config.name, "state": state, "what": what})
    return rows
