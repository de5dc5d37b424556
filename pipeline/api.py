"""The verbs as functions, for scripts and notebooks: the same settings, artefacts and errors as the command line.

    from pipeline import api

    data = api.prepare("web.yaml", "out=data/web")
    run = api.pretrain("roberta-tiny", "steps=500")
    scores = api.finetune("reviews.yaml", f"{run.path.name}@best", "seeds=[1, 2]")

A configuration is a YAML file or a name of `cloze configs list`; overrides are `a.b=c` and win over it. A model is any
reference that `--from` takes; the runs that it names lie in `runs_dir`, a setting of configurations. Errors are
subclasses of `cluster.artefacts.errors.ClozeError`; each says what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from data_prep.job import Prepared
    from data_prep.token_store import TokenStore
    from pipeline.ask.probing.run import ProbeResult
    from pipeline.ask.prompting.run import PromptResult
    from pipeline.ask.prompting.writing import Written
    from pipeline.checkpoint.references import PretrainedModel
    from pipeline.export.formats import Export
    from pipeline.inspect.lineage import Node
    from pipeline.run.directory import RunDirectory
    from pipeline.tune.scores import Score

RUNS = Path("runs")


def prepare(
    config: Path | str,
    *overrides: str,
    replace: bool = False,
    address: str | None = None,
    workers: int | None = None,
) -> Prepared:
    """Make a token store of raw text, or continue, repair or confirm it.

    Args:
        replace: replace artefacts of other settings.
        address: of a Ray cluster; None takes RAY_ADDRESS, or starts a local one where there is work.
        workers: shards to work on at a time; None for one per CPU of the cluster.
    """
    from cluster.runtime import ray_on_demand
    from data_prep.job import prepare as run_preparation
    from pipeline.preparation import evaluation_texts, load_with_inputs

    settings, inputs = load_with_inputs(Path(config), overrides)
    with ray_on_demand(address, workers=workers):
        return run_preparation(settings, replace=replace, evaluation_texts=evaluation_texts, inputs=inputs)


def open_tokens(place: Path | str) -> TokenStore:
    """A token store, memory-mapped: a directory, or a URI, which is copied to this machine first."""
    from data_prep.token_store import TokenStore

    return TokenStore.open(place)


def pretrain(config: Path | str, *overrides: str) -> RunDirectory:
    """Train a network to its end in a new run."""
    from pipeline.config.loading import load_config
    from pipeline.pretrain.launch import execute, new_run
    from pipeline.run.config import PretrainConfig

    with new_run(load_config(PretrainConfig, Path(config), overrides)) as run:
        execute(run)
    return run


def resume(
    reference: str, *overrides: str, runs_dir: Path = RUNS, allow_changed: Sequence[str] = ()
) -> RunDirectory:
    """Continue a run to its end from its newest good checkpoint; `RUN@STEP` rolls it back to that checkpoint first.

    Args:
        allow_changed: keys that may differ from the checkpoint's, such as `steps` or `data`.
    """
    from pipeline.checkpoint.references import find_checkpoint
    from pipeline.pretrain.launch import continue_run
    from pipeline.run.directory import find_run

    name, _, chosen = reference.partition("@")
    run = find_run(name, runs_dir)
    at = find_checkpoint(reference, runs_dir).step if chosen else None
    continue_run(run, overrides, allow_changed=allow_changed, at=at)
    return run


def read_log(
    run: RunDirectory | str, kind: Literal["train", "held_out"] = "train", *, runs_dir: Path = RUNS
) -> list[dict[str, Any]]:
    """The metrics of every step of a run, or of its evaluations, each a dict with `step`."""
    from pipeline.run.directory import RunDirectory, find_run
    from pipeline.run.log.lines import LogKind, read_metrics

    found = run if isinstance(run, RunDirectory) else find_run(run, runs_dir)
    return read_metrics(found, LogKind.HELD_OUT if kind == "held_out" else LogKind.STEP)


def load_model(reference: str, *, runs_dir: Path = RUNS) -> PretrainedModel:
    """The network, weights and tokenizer of a checkpoint or of a Hugging Face directory, in host memory."""
    from pipeline.checkpoint.references import resolve_model

    return resolve_model(reference, runs_dir)


def finetune(config: Path | str, reference: str, *overrides: str, replace: bool = False) -> list[Score]:
    """Train and score a model on all tasks of a configuration, once per seed; finished trainings are not repeated.

    Args:
        reference: a model, or `random`.
        replace: replace scores of other settings.
    """
    from pipeline.config.loading import load_config
    from pipeline.tune.config import FinetuneConfig
    from pipeline.tune.finetuned import resolve_start
    from pipeline.tune.run import finetune as run_trials

    settings = load_config(FinetuneConfig, Path(config), overrides)
    return run_trials(settings, resolve_start(reference, settings.runs_dir), replace=replace)


def read_scores(directory: Path | str) -> list[Score]:
    """The scores in a directory that a fine-tuning made, verified."""
    from pipeline.tune.scores import read_scores

    return read_scores(Path(directory))


def prompt(config: Path | str, reference: str, *overrides: str) -> PromptResult:
    """Score a model on a task by prompts, without training it."""
    from pipeline.ask.config import PromptConfig
    from pipeline.ask.prompting.networks import load_language_model
    from pipeline.ask.prompting.run import prompt_task
    from pipeline.config.loading import load_config

    settings = load_config(PromptConfig, Path(config), overrides)
    return prompt_task(settings, load_language_model(reference, settings.runs_dir))


def probe(config: Path | str, reference: str, *overrides: str, replace: bool = False) -> ProbeResult:
    """Fit classifiers on every layer of a model, and on a control task."""
    from pipeline.ask.config import ProbeConfig
    from pipeline.ask.probing.features import load_features
    from pipeline.ask.probing.run import probe as probe_layers
    from pipeline.config.loading import load_config

    settings = load_config(ProbeConfig, Path(config), overrides)
    return probe_layers(settings, load_features(reference, settings.runs_dir), replace=replace)[1]


def generate(text: str, reference: str, *, runs_dir: Path = RUNS, **settings: Any) -> list[Written]:
    """Continue a text with a decoder, or answer it with an encoder-decoder.

    Args:
        settings: fields of `models.generation.GenerationConfig`, such as `max_new_tokens` and `num_beams`.
    """
    from pipeline.ask.prompting.networks import load_language_model
    from pipeline.ask.prompting.writing import search_settings, write

    chosen = search_settings(**settings)
    return write(load_language_model(reference, runs_dir), text, chosen)


def export(reference: str, directory: Path | str, *, runs_dir: Path = RUNS, **options: Any) -> Export:
    """Write a model, or a network of fine-tuned scores, as a Hugging Face directory, and compare its outputs first.

    Args:
        options: as for `pipeline.tune.export.export`, such as `family` or `trial`.
    """
    from pipeline.tune.export import export as write_export

    return write_export(reference, Path(directory), runs_dir=runs_dir, **options)


def lineage(reference: str, *, runs_dir: Path = RUNS, follow: Sequence[str] = ()) -> Node:
    """Everything that a score, checkpoint, run or artefact was made of, down to the source files.

    `children()` of a node are nodes for all that it was made of; in its `inputs`, files are entries of a manifest.

    Args:
        follow: places outside of the artefact's own that may also be opened.
    """
    from pipeline.inspect.lineage import trace

    return trace(reference, runs_dir, follow)
