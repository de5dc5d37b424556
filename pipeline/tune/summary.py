"""Scores of many trainings put together: mean and spread over seeds, the best of searched settings, GLUE's average, all
scores below a directory, and the archive that a leaderboard takes."""

from __future__ import annotations

import io
import statistics
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.places import Place
from cluster.artefacts.storage import contents_of, find_artefacts
from cluster.copies import local_copy, manifest_at
from cluster.publication import find_published
from pipeline.tune.scores import KIND, SCORES_FILE, Initial, Score, ScoresDirectory, read_scores


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One line of a table: a task with its initial weights and settings over seeds, or a baseline of the task."""

    task: str
    main_metric: str
    mean: dict[str, float]
    """By metric, the main one first."""
    std: dict[str, float | None]
    """Sample standard deviation (n - 1) by metric; None with a single seed."""
    median: dict[str, float]
    best: dict[str, float]
    """The best of the seeds."""
    reference: str | None
    """The checkpoint, or the name of the baseline; None for random weights."""
    initial: Initial | None = None
    """None for a baseline, which nothing was trained for."""
    choice: dict[str, float | int] = field(default_factory=dict)
    """Searched settings."""
    num_choices: int = 0
    """Choices that were compared; the row has the best. 1 without a search, 0 for a baseline."""
    num_seeds: int = 0

    @property
    def start(self) -> str:
        """The weights: the checkpoint, random weights, or the name of the baseline."""
        return self.reference or "random weights"

    def of(self, scores: Iterable[Score]) -> list[Score]:
        """The scores of the row, one for each seed."""
        key = (self.task, self.initial, self.reference, self.choice)
        return [
            score for score in scores if (score.task, score.initial, score.reference, score.choice) == key
        ]


def summarise(scores: Iterable[Score], *, all_choices: bool = False) -> list[SummaryRow]:
    """A row per task and initial weights, in order of appearance; a task's first row is followed by its baselines.

    Of searched settings, the choice with the highest median of the main metric over seeds counts (Liu et al. 2019,
    section 5.1); the first of equals.

    Args:
        all_choices: give a row to every choice.
    """
    groups: dict[tuple[str, Initial, str | None], dict[tuple, list[Score]]] = {}
    for score in scores:
        of_task = groups.setdefault((score.task, score.initial, score.reference), {})
        of_task.setdefault(tuple(score.choice.items()), []).append(score)
    rows: list[SummaryRow] = []
    for choices in groups.values():
        found = [_summary(group, len(choices)) for group in choices.values()]
        compared = {row.task for row in rows}
        best = max(found, key=lambda row: row.median[row.main_metric])
        rows += found if all_choices else [best]
        if best.task not in compared:
            score = next(iter(choices.values()))[0]
            for name, metrics in score.baselines.items():
                none = dict.fromkeys(metrics)
                rows.append(SummaryRow(best.task, best.main_metric, metrics, none, metrics, metrics, name))
    return rows


def glue_averages(rows: Iterable[SummaryRow], kinds: Mapping[str, str]) -> dict[str, float]:
    """The average over the tasks of GLUE by start (a reference, or random weights), where all of them are there.

    Args:
        kinds: of the tasks, by their names.
    """
    by_start: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.initial is not None:
            by_kind = by_start.setdefault(row.start, {})
            by_kind[kinds.get(row.task, row.task)] = row.mean
    averages = {start: glue_average(scores) for start, scores in by_start.items()}
    return {start: average for start, average in averages.items() if average is not None}


def protocol(scores: Sequence[Score]) -> str:
    """One sentence that says how the numbers of a table of scores came about, and which were learned by no network."""
    trained = [row for row in summarise(scores) if row.initial is not None]
    seeds = max((row.num_seeds for row in trained), default=0)
    searched = max((row.num_choices for row in trained), default=0)
    parts = [f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "a single seed"]
    if searched > 1:
        parts.append(
            f"of {searched} choices of settings the one with the best median on the evaluation examples, on which it is"
            " scored too"
        )
    keeps_best = any(score.kept_epoch for score in scores)
    parts.append("the best epoch on the evaluation examples" if keeps_best else "after the last epoch")
    for row in trained:
        same = [score.same_prediction for score in row.of(scores) if score.same_prediction]
        if same:
            parts.append(
                f"{row.task} from {row.start}: in {len(same)} of {row.num_seeds} trainings all"
                f" predictions are the same ({', '.join(sorted(set(same)))})"
            )
    return "; ".join(parts)


def _summary(group: list[Score], num_choices: int) -> SummaryRow:
    first = group[0]
    names = sorted(first.metrics, key=lambda name: name != first.main_metric)
    values = {name: [score.metrics[name] for score in group] for name in names}
    return SummaryRow(
        task=first.task,
        initial=first.initial,
        reference=first.reference,
        choice=first.choice,
        num_choices=num_choices,
        num_seeds=len(group),
        main_metric=first.main_metric,
        mean={name: statistics.fmean(found) for name, found in values.items()},
        std={name: statistics.stdev(found) if len(found) > 1 else None for name, found in values.items()},
        median={name: statistics.median(found) for name, found in values.items()},
        best={name: (min if name in LOWER_IS_BETTER else max)(found) for name, found in values.items()},
    )


GLUE_METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cola": ("matthews",),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"),
        "mnli": ("accuracy_matched", "accuracy_mismatched"),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
    }
)
"""The metrics that count, by kind of task. The diagnostic set (AX) is no part of the average."""


def glue_average(scores: Mapping[str, Mapping[str, float]]) -> float | None:
    """The mean over the nine tasks of the mean of each task's metrics; None where one of them is missing.

    A task with several metrics counts with their unweighted average (Wang et al. 2019, section 4), and so does MNLI
    with the accuracies on its two test sets.

    Args:
        scores: by kind of task, its metrics by name; further tasks and metrics are not looked at.
    """
    if any(not scores.get(task, {}).keys() >= {*metrics} for task, metrics in GLUE_METRICS.items()):
        return None
    return statistics.fmean(
        statistics.fmean(scores[task][metric] for metric in metrics) for task, metrics in GLUE_METRICS.items()
    )


LOWER_IS_BETTER = frozenset({"loss", "perplexity"})
"""Metrics that are no shares of 1; none is the main one of a task."""


def shown(metric: str, value: float) -> str:
    """The value of a metric, such as `56.3`: a share in percent, a loss in nats."""
    return f"{value:.4g}" if metric in LOWER_IS_BETTER else f"{100 * value:.1f}"


@dataclass(frozen=True, slots=True)
class Listed:
    """An artefact of scores, or a damaged one."""

    directory: Place
    name: str
    """Its directory, relative to the listed one."""
    reference: str | None = None
    """The checkpoint, or the fine-tuned network; None without one, or where the artefact is damaged."""
    time: str = ""
    """When it was made, ISO 8601."""
    rows: list[SummaryRow] = field(default_factory=list)
    """A line per task and initial weights, and one for each baseline."""
    problem: str = ""
    """The damage."""

    @property
    def tasks(self) -> list[str]:
        """Names of its tasks."""
        return list(dict.fromkeys(row.task for row in self.rows))


def list_scores(root: Place) -> list[Listed]:
    """Every artefact of scores below `root`, the newest first, then those whose manifest cannot be read.

    Raises:
        MissingInputError: there is no such directory.
    """
    if isinstance(root, Path) and not root.is_dir():
        raise MissingInputError(
            f"There is no directory {root} with scores.",
            next_step="name the directory that `out` of the fine-tuning configuration names",
        )
    if isinstance(root, Path):
        places = [(path, str(path.relative_to(root))) for path in find_artefacts(root)]
    else:
        places = [(root / name if name else root, name or ".") for name in find_published(root)]
    found = [listed for place, name in places if (listed := _listed(place, name)) is not None]
    return sorted(sorted(found, key=lambda each: each.name), key=lambda each: each.time, reverse=True)


def _listed(place: Place, name: str) -> Listed | None:
    """None for artefacts of other kinds."""
    try:
        manifest = manifest_at(place)
    except ClozeError as error:
        return Listed(place, name, problem=error.problem)
    if manifest is None or manifest.kind != KIND:
        return None
    time = manifest.created_by.time
    try:
        if isinstance(place, Path):
            scores = read_scores(place)
        else:
            # This is the only file that is read from an artefact at a URI.
            copy = local_copy(place, kind=KIND, only=[SCORES_FILE])
            scores = ScoresDirectory.verified(copy, manifest).scores
        rows = summarise(scores)
    except ClozeError as error:
        return Listed(place, name, time=time, problem=error.problem)
    except (ValueError, KeyError, TypeError) as error:
        return Listed(place, name, time=time, problem=f"its scores cannot be read: {error}")
    reference = next((score.reference for score in scores if score.reference), None)
    return Listed(place, name, reference, time, rows)


LEADERBOARDS: dict[str, tuple[str, ...]] = {
    "GLUE": (
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"),
        *("QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv"),
    ),
    "SuperGLUE": (
        *("BoolQ.jsonl", "CB.jsonl", "COPA.jsonl", "MultiRC.jsonl", "ReCoRD.jsonl", "RTE.jsonl"),
        *("WiC.jsonl", "WSC.jsonl", "AX-b.jsonl", "AX-g.jsonl"),
    ),
}
"""The files that each leaderboard takes (gluebenchmark.com/faq, super.gluebenchmark.com/faq)."""
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A leaderboard's archive."""

    leaderboard: str
    files: dict[str, str]
    """By name in the archive, the training whose predictions it holds."""
    missing: tuple[str, ...]
    """Files that the leaderboard wants, and that no training has written."""
    content: bytes
    """The zip file; the same scores give the same bytes."""


def make_archive(directories: Sequence[Path], seed: int | None = None) -> Archive:
    """The archive of the leaderboard that most of the files belong to.

    Args:
        directories: of artefacts of scores; of each file, the training with the best main metric on the evaluation
            examples counts, the first one of equals.
        seed: only trainings with this seed; None for all.

    Raises:
        MissingInputError: there is no prediction of a test set.
        CorruptArtefactError: a directory is no artefact of scores, or a file is damaged.
    """
    found: dict[str, tuple[Score, str, Path]] = {}
    known = {name for names in LEADERBOARDS.values() for name in names}
    for opened in map(ScoresDirectory.open, directories):
        for score in opened.scores:
            trial = score.trial
            for name in sorted(known) if seed in (None, score.seed) else ():
                path = opened.path / trial.file(name)
                if path.exists() and (name not in found or score.value > found[name][0].value):
                    found[name] = score, trial.name, path
    if not found:
        raise MissingInputError(
            f"There are no predictions of test sets in {', '.join(map(str, directories))}.",
            next_step="fine-tune with submit: true in the tasks of GLUE and SuperGLUE",
        )
    board = max(LEADERBOARDS, key=lambda name: len(found.keys() & set(LEADERBOARDS[name])))
    wanted = LEADERBOARDS[board]
    chosen = {name: found[name] for name in wanted if name in found}
    return Archive(
        board,
        {name: trial for name, (_, trial, _) in chosen.items()},
        tuple(name for name in wanted if name not in chosen),
        _zipped({name: path for name, (_, _, path) in chosen.items()}),
    )


def _zipped(paths: dict[str, Path]) -> bytes:
    """Stored without compression, whose bytes differ between versions of zlib, and without times and owners."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, path in paths.items():
            entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            with contents_of(path):
                archive.writestr(entry, path.read_bytes())
    return content.getvalue()
