"""`cloze pretrain` and `cloze resume`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from pipeline.run.config import PretrainConfig
    from pipeline.run.directory import RunDirectory


def pretrain(
    config: output.ConfigPath,
    overrides: output.Overrides = None,
    dry_run: output.DryRun = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Train a network on token stores, from random weights. A job that is tried again continues its run."""
    from pipeline.config.loading import load_config
    from pipeline.run.config import PretrainConfig

    settings = load_config(PretrainConfig, config, overrides or ())
    if dry_run:
        output.show(describe(settings, config), "what would be trained", as_json=as_json)
        return
    from pipeline.pretrain.launch import execute, new_run
    from pipeline.run.directory import find_run_of_job
    from pipeline.run.submission import JOB_VARIABLE

    job = os.environ.get(JOB_VARIABLE)
    if job and (begun := find_run_of_job(job, settings.name, settings.runs_dir)):
        typer.echo(f"An earlier attempt of job {job} began {begun.path.name}.", err=True)
        resume(str(begun.path), overrides, as_json=as_json)
        return
    with new_run(settings, submission_id=job) as run:
        typer.echo(f"run {run.path.name}  (MLflow run {run.info.run_id})", err=True)
        execute(run)
    _show_end(run, as_json)


def resume(
    reference: Annotated[
        str,
        typer.Argument(
            help="The run: its name, directory or MLflow run id; with @STEP or @best, the run is rolled back to that"
            " checkpoint, and later ones are set aside."
        ),
    ],
    overrides: output.Overrides = None,
    runs_dir: output.RunsDir = Path("runs"),
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(
            help="A key that may differ from the checkpoint's, such as `steps` or `data`; repeatable."
        ),
    ] = None,
    dry_run: output.DryRun = False,
    as_json: output.Json = False,
    log_format: output.LogFormat = None,
) -> None:
    """Continue a run from its newest good checkpoint, on as many workers as `cluster.workers=N` says."""
    from pipeline.checkpoint.references import find_checkpoint
    from pipeline.pretrain.launch import continue_run
    from pipeline.run.directory import find_run

    name, _, chosen = reference.partition("@")
    run = find_run(name, runs_dir)
    at = find_checkpoint(reference, runs_dir).step if chosen else None
    if dry_run:
        _show_resumption(run, overrides or (), allow_changed or (), at, as_json)
        return
    continue_run(run, overrides or (), allow_changed=allow_changed or (), at=at)
    _show_end(run, as_json)


def _show_resumption(
    run: RunDirectory, overrides: Sequence[str], allow_changed: Sequence[str], at: int | None, as_json: bool
) -> None:
    """The dry run of a resumption."""
    from pipeline.checkpoint.checkpoint import step_of
    from pipeline.pretrain.launch import settled
    from pipeline.pretrain.resume_checks import check_resume
    from pipeline.run.history import changed_packages, tokens_by_step

    settings = settled(run.config(tuple(overrides)))
    start = check_resume(run, settings, allow_changed, at=at, look_only=True)
    step = 0 if start is None else step_of(start)
    left = settings.num_steps - step
    plan = {
        "run": run.path.name,
        "from step": step,
        "to step": settings.num_steps,
        "packages that changed": "; ".join(changed_packages(run)) or "none",
        **describe(settings),
        "tokens": tokens_by_step(run)(step)
        + settings.tokens_before(settings.num_steps)
        - settings.tokens_before(step),
        "updates left": left,
    }
    nothing = f"finished at step {step}: nothing would be trained, unless `steps` or the budget is raised"
    output.show(plan, "what would be resumed" if left > 0 else nothing, as_json=as_json)


def describe(config: PretrainConfig, file: Path | None = None) -> dict[str, Any]:
    """The dry run of a configuration: its figures, computed without starting anything.

    Args:
        file: the configuration's; a store that does not exist must then be made by a configuration that is found.

    Raises:
        MissingInputError: no configuration makes such a store.
        OutOfMemoryError: the network is far larger than what this machine could train.
    """
    from dataclasses import replace

    from cluster.copies import is_on_this_machine
    from pipeline.checkpoint.references import resolve_model
    from pipeline.objectives.base import resolve_references
    from pipeline.preparation import missing_stores, require_makers
    from pipeline.pretrain.lost_workers import least_bytes, require_room

    places = [store.path for store in config.data.stores]
    missing = missing_stores(config, file)
    if file is not None:
        require_makers(missing)
    # Only a start fetches tokens.
    elsewhere = [place for place in places if place not in missing and not is_on_this_machine(place)]
    plan: dict[str, Any] = {
        "name": config.name,
        "objective": config.objective.kind,
        "steps": config.num_steps,
        "tokens per step": config.batch.samples * config.batch.sequence_length,
        "tokens": config.tokens_before(config.num_steps),
        "workers": config.cluster.workers,
        "gradient accumulation": config.batch.samples
        // (config.batch.micro_batch_size * config.cluster.workers),
        "ZeRO stage": config.zero.stage,
        "precision": config.precision,
        "optimizer": config.optimizer.kind,
        "stores to prepare first": ", ".join(
            f"{place} (cloze data prepare {maker.typed})" if maker else str(place)
            for place, maker in missing.items()
        )
        or "none",
        **({"stores to fetch": ", ".join(map(str, elsewhere))} if elsewhere else {}),
    }
    made = (maker.vocab_size for maker in missing.values() if maker is not None)
    vocab_size = config.model.vocab_size or next(made, None)
    if not missing and not elsewhere:
        from pipeline.run.inputs import open_inputs

        inputs = open_inputs(config, verify=False, resolve=resolve_model)
        vocab_size = inputs.model.vocab_size
        plan["samples per epoch"] = sum(inputs.train.samples_per_epoch)
        plan["epochs"] = config.batch_plan.samples_between(0, config.num_steps) / plan["samples per epoch"]
        plan["held-out documents"] = inputs.held_out.num_documents
    if vocab_size is not None:
        import torch

        from models.weights import count_parameters
        from pipeline.engine.device import prepare_network

        outside = resolve_references(config.objective, resolve_model)
        shape = replace(config.model, vocab_size=vocab_size)
        require_room(config, shape)
        with torch.device("meta"):
            network = config.objective.build_model(shape, outside)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        attention = prepare_network(network, config.model, config, device)
        plan["parameters"] = count_parameters(network)
        plan["attention"] = f"{attention.backend} ({attention.reason})"
        plan["memory at least"] = f"{least_bytes(plan['parameters'], config) / (1 << 30):,.2f} GiB"
    return plan


def _show_end(run: RunDirectory, as_json: bool) -> None:
    from pipeline.checkpoint.store import store_of
    from pipeline.run.history import StoredSettings
    from pipeline.run.log.lines import LogKind, read_metrics

    metric = StoredSettings.of(run).metric
    train, held_out = read_metrics(run), read_metrics(run, LogKind.HELD_OUT)
    store = store_of(run)
    summary: dict[str, Any] = {
        "run": run.path.name,
        "MLflow run": run.info.run_id,
        "step": train[-1]["step"] if train else 0,
        "loss": train[-1]["loss"] if train else None,
        f"held-out {metric}, first": held_out[0].get(metric) if held_out else None,
        f"held-out {metric}, last": held_out[-1].get(metric) if held_out else None,
        "checkpoints": [store.place(step) for step in store.steps()],
    }
    if as_json:
        output.print_json(summary)
        return
    output.print_mapping("trained", summary | {"checkpoints": "\n".join(summary["checkpoints"])})
    typer.echo(f"\nNext: cloze checkpoints {run.typed}   |   cloze lineage {run.typed}@latest")
