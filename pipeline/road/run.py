"""A road from source files to scores: every stage in turn, each finished one recognised by its fingerprint; at the end
one artefact with the results, one page, and the pages of the stages beside it."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cluster import signals
from cluster.artefacts.errors import ClozeError, PreemptedError
from cluster.artefacts.manifest import InputEntry, read_manifest, write_durably
from cluster.artefacts.storage import commit, staged
from cluster.artefacts.visible import render, svg
from cluster.runtime import ray_runtime
from data_prep.config import PreparationConfig
from data_prep.job import Prepared, prepare
from data_prep.stats import describe_store, render_report
from data_prep.token_store import TokenStore
from pipeline.checkpoint.references import resolve_model
from pipeline.pretrain.launch import train_to_end
from pipeline.road.stages import RoadConfig, Stages
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.history import StoredSettings, tokens_by_step
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.tasks.evaluation_sets import evaluation_texts
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.report.page import percent, render_page
from pipeline.tune.run import finetune
from pipeline.tune.scores import Score, file_entries
from pipeline.tune.summary import protocol, summarise
from pipeline.tune.trials import scores_directory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Stage = tuple[str, Callable[[], None]]
"""Title of a stage, and what does it or finds it done."""


@dataclass
class Finished:
    """The finished stages of a road."""

    prepared: list[Prepared] = field(default_factory=list)
    run: RunDirectory = field(init=False)
    reference: str = ""
    """The checkpoint that was fine-tuned."""
    scores: dict[Path, list[Score]] = field(default_factory=dict)
    """By directory of the scores' artefact, in the order of the configurations."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Kinds of the tasks, by their names."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage in this process, by its title: seconds only, where an earlier command finished it."""
    inputs: list[InputEntry] = field(default_factory=list)
    """Artefacts that the stages made: token stores, the checkpoint, scores."""

    @property
    def stores(self) -> list[Path]:
        """Token stores, by preparation."""
        return [prepared.token_store for prepared in self.prepared]

    @property
    def all_scores(self) -> list[Score]:
        """The scores of all fine-tunings, in order."""
        return [score for scores in self.scores.values() for score in scores]


def stages_of(
    road: RoadConfig,
    loaded: Stages,
    found: Finished,
    *,
    replace: bool = False,
    submission_id: str | None = None,
    train: Callable[[PretrainConfig], RunDirectory] | None = None,
) -> list[Stage]:
    """The stages of a road in order; each adds what it made to `found`.

    Args:
        replace: allow artefacts of other settings in the places of the stages to be replaced.
        submission_id: the Ray job that does the work, if one does.
        train: makes the run in place of `train_to_end`.
    """
    train = train or partial(train_to_end, submission_id=submission_id)
    stages: list[Stage] = [
        (f"prepare {one.name}", partial(_prepare, one, replace, found)) for one in loaded.data
    ]
    stages.append((f"pretrain {loaded.pretrain.name}", partial(_pretrain, road, loaded, train, found)))
    for one in loaded.finetune:
        stages.append((f"finetune {one.name}", partial(_finetune, one, replace, found)))
    return stages


def run_stages(
    stages: Sequence[Stage], loaded: Stages, found: Finished, *, typed: str, address: str | None = None
) -> None:
    """Do every stage that is not finished; the same command continues after whatever ended it.

    Args:
        typed: the command that continues, for messages.
        address: the Ray cluster; None takes the run's `cluster.address`.

    Raises:
        ClozeError: as the verb of the stage that failed; the message names the road's command beside the verb's.
    """
    cluster = loaded.pretrain.cluster
    num_cpus = max(os.cpu_count() or 1, cluster.workers * cluster.cpus_per_worker)
    kept = "all finished stages, and of the one in progress what it committed"
    with signals.continued_by(typed, kept), ray_runtime(address or cluster.address, num_cpus=num_cpus):
        for number, (title, do) in enumerate(stages, 1):
            with _stage(f"{number}/{len(stages)}  {title}", title, typed, found.seconds):
                do()


@contextmanager
def _stage(shown: str, title: str, typed: str, seconds: dict[str, float]) -> Iterator[None]:
    """Announce a stage and measure it; its error says how the road continues."""
    print(f"\n{shown}", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        yield
    except ClozeError as error:
        if isinstance(error, PreemptedError) or not error.next_step:
            error.next_step = typed
        else:
            error.next_step += f"; then the road continues by: {typed}"
        raise
    seconds[title] = time.monotonic() - started


def _prepare(config: PreparationConfig, replace: bool, found: Finished) -> None:
    prepared = prepare(config, replace=replace, evaluation_texts=evaluation_texts)
    found.prepared.append(prepared)
    found.inputs.append(_entry(prepared.token_store))


def _pretrain(
    road: RoadConfig, stages: Stages, train: Callable[[PretrainConfig], RunDirectory], found: Finished
) -> None:
    found.run = train(stages.pretrain)
    found.reference = f"{found.run.path}@{road.checkpoint}"
    model = resolve_model(found.reference, stages.pretrain.runs_dir)
    found.reference = model.reference
    found.inputs.append(model.input)


def _finetune(config: FinetuneConfig, replace: bool, found: Finished) -> None:
    runs_dir = found.run.path.parent
    config = config.model_copy(update={"runs_dir": runs_dir})
    model = resolve_model(f"{found.run.path}@{found.reference.rpartition('@')[2]}", runs_dir)
    scores = finetune(config, model, replace=replace)
    directory = scores_directory(config, model)
    found.scores[directory] = scores
    found.kinds |= {name: task.kind for name, task in config.tasks.items()}
    found.inputs.append(_entry(directory))


def _entry(directory: Path) -> InputEntry:
    manifest = read_manifest(directory)
    return InputEntry(kind=manifest.kind, uri=str(directory), fingerprint=manifest.fingerprint)


KIND = "road"
RESULTS_FILE = "road.json"
PAGE_FILE = "index.html"
TEMPLATE = Path(__file__).with_name("page.html.j2")


def read_results(found: Finished) -> dict[str, Any]:
    """The results of finished stages, which depend on inputs and settings, never on the time or the place: documents
    and tokens of every token store, steps and tokens of the run with its held-out evaluations, and the scores of every
    training, without the name of its checkpoint."""
    settings = StoredSettings.of(found.run)
    trained = read_metrics(found.run)
    step = trained[-1]["step"] if trained else 0
    evaluated = [
        (entry["step"], value)
        for entry in read_metrics(found.run, LogKind.HELD_OUT)
        if (value := entry.get(settings.metric)) is not None
    ]
    stats = [read_manifest(store).stats for store in found.stores]
    return {
        "stores": [{"documents": one["rows"], "tokens": one["tokens"]} for one in stats],
        "steps": step,
        "tokens": tokens_by_step(found.run, settings)(step),
        "held_out": {
            "metric": settings.metric,
            "steps": [step for step, _ in evaluated],
            "values": [value for _, value in evaluated],
        },
        "scores": [score.model_dump(mode="json", exclude={"reference"}) for score in found.all_scores],
    }


def commit_report(road: RoadConfig, found: Finished) -> Path:
    """Write the results and the pages, and commit them; returns the page.

    The artefact's hashes cover the results. The pages beside them hold times and paths, and are made again each time.

    Raises:
        StorageError: the file system refuses.
    """
    results, directory = read_results(found), road.out / road.name
    with staged(directory, "report") as staging:
        contents = orjson.dumps(results, option=orjson.OPT_INDENT_2)
        write_durably(staging / RESULTS_FILE, contents)
        pages = _write_stage_pages(staging, found)
        (staging / PAGE_FILE).write_text(_page(road, found, results, pages), encoding="utf-8")
        files = file_entries(staging, [RESULTS_FILE])
        config = {"checkpoint": road.checkpoint}
        stats = {"trainings": len(results["scores"]), "seconds": found.seconds, "run": found.run.path.name}
        commit(staging, directory, KIND, config=config, inputs=found.inputs, files=files, stats=stats)
    return directory / PAGE_FILE


def facts(found: Finished, results: dict[str, Any]) -> dict[str, str]:
    """The lines above the table of scores."""
    rows, metric, values = {}, results["held_out"]["metric"], results["held_out"]["values"]
    for made, store in zip(found.prepared, results["stores"], strict=True):
        dropped = f"{made.dedup.stats['duplicates']:,} exact duplicates dropped"
        rows[str(made.token_store)] = (
            f"{store['documents']:,} documents, {dropped}, {store['tokens']:,} tokens"
        )
    speeds = [step["tokens_per_s"] for step in read_metrics(found.run)]
    speed = f", {statistics.median(speeds):,.0f} tokens/s" if speeds else ""
    rows["run"] = f"{found.run.path}  (MLflow run {found.run.info.run_id})"
    rows["pre-training"] = f"{results['steps']:,} steps, {results['tokens']:,} tokens{speed}"
    if values:
        last = read_metrics(found.run, LogKind.HELD_OUT)[-1]
        # The error of the total is known where there is one term.
        errors = [value for name, value in last.items() if name.endswith("/loss_standard_error")]
        error = f" ± {errors[0]:.3f}" if metric == "loss" and len(errors) == 1 else ""
        rows[f"held-out {metric}"] = f"{values[0]:.3f} first, {values[-1]:.3f}{error} last"
    return {
        **rows,
        "fine-tuned": found.reference,
        **{f"scores of {place.parent.name}": str(place) for place in found.scores},
        "time of this command": ", ".join(
            f"{title} {spent:,.0f} s" for title, spent in found.seconds.items()
        ),
    }


def _write_stage_pages(directory: Path, found: Finished) -> list[tuple[str, str]]:
    """Write the pages that stages have of their own; returns their titles and file names."""
    pages = []
    for number, place in enumerate(found.stores):
        store = TokenStore.open(place, verify=False)
        text = render_report(store, describe_store(store))
        pages.append((f"the corpus {place.parent.name}", f"data-{number}.html", text))
    for number, place in enumerate(found.scores):
        text = render_page(place, found.run.path.parent)
        pages.append((f"the scores of {place.parent.name}", f"scores-{number}.html", text))
    for _, name, text in pages:
        (directory / name).write_text(text, encoding="utf-8")
    return [(title, name) for title, name, _ in pages]


def _page(
    road: RoadConfig, found: Finished, results: dict[str, Any], pages: Sequence[tuple[str, str]]
) -> str:
    held_out = results["held_out"]

    def draw(axes: Axes) -> None:
        axes.plot(held_out["steps"], held_out["values"], marker="o")
        axes.set_xlabel("update")

    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        {"percent": percent},
        name=road.name,
        facts=facts(found, results),
        rows=summarise(found.all_scores),
        protocol=protocol(found.all_scores),
        curve=svg(draw, width=4.8, height=2.8) if held_out["values"] else "",
        metric=held_out["metric"],
        pages=pages,
    )
