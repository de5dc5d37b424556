"""A task, probed on every layer; the result is an artefact, as scores are, and a page with a plot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cluster.artefacts.errors import ConfigError, StorageError
from cluster.artefacts.manifest import InputEntry, hash_json, read_manifest, write_durably
from cluster.artefacts.storage import commit, contents_of, is_committed, open_artefact, staged
from cluster.artefacts.visible import render, svg
from pipeline.ask.config import ProbeConfig, ProbeKind
from pipeline.ask.probing.features import FEATURES, FeatureNetwork, Features, control_labels
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.tune.trials import sample_examples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIND = "probes"
RESULT_FILE = "probes.json"
PROBES: Mapping[str, Callable[[ProbeConfig], Any]] = {
    "linear": lambda config: LogisticRegression(
        C=config.inverse_l2, max_iter=config.max_iterations, random_state=config.seed
    ),
    "mlp": lambda config: MLPClassifier(
        (config.hidden_size,), max_iter=config.max_iterations, early_stopping=True, random_state=config.seed
    ),
}
"""By name."""
_LEAST_FOR_EARLY_STOPPING = 100
COLUMNS = ("layer", "probe", "accuracy", "control", "selectivity")
TEMPLATE = Path(__file__).with_name("page.html.j2")


def accuracy(
    kind: str,
    config: ProbeConfig,
    train: tuple[np.ndarray, np.ndarray],
    evaluation: tuple[np.ndarray, np.ndarray],
) -> float:
    """The share of evaluation items that a probe labels rightly.

    Args:
        train: float32 [items, width] vectors and int64 [items] labels.
        evaluation: the same, to score on.
    """
    _, labels = train
    probe = PROBES[kind](config) if len(np.unique(labels)) > 1 else DummyClassifier()
    rare = np.bincount(labels)
    if kind == "mlp" and (len(labels) < _LEAST_FOR_EARLY_STOPPING or rare[rare > 0].min() < 2):
        # Too few of a label to hold some out.
        probe.set_params(early_stopping=False)
    scaled = make_pipeline(StandardScaler(), probe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        scaled.fit(*train)
    return float(scaled.score(*evaluation))


class LayerScore(BaseModel):
    """One probe on one layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: int
    """0 are the embeddings."""
    probe: ProbeKind
    accuracy: float
    """As a share of 1."""
    control: float | None = None
    """Accuracy on the control task; None where it was not asked for."""

    @property
    def selectivity(self) -> float | None:
        """Accuracy less the accuracy on the control task."""
        return None if self.control is None else self.accuracy - self.control


class ProbeResult(BaseModel):
    """All probes of a configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    num_train_items: int
    """Words, or pairs of sentences."""
    num_evaluation_items: int
    majority: float
    """Accuracy of the most frequent training label."""
    scores: tuple[LayerScore, ...]


def probe(config: ProbeConfig, network: FeatureNetwork, *, replace: bool = False) -> tuple[Path, ProbeResult]:
    """The directory of the result, `OUT/NAME/CHECKPOINT`, and the result; a finished one is read instead of made again.

    Raises:
        MissingInputError, ConfigError: the task cannot be read, or no word of it can.
        MismatchError: the network has no such layer.
        StorageError: the directory holds a result of other settings, and `replace` is false.
    """
    layers = sorted({network.layer(number) for number in config.layers or range(network.num_layers + 1)})
    task: Any = config.task
    data = task.load()
    inputs = [
        InputEntry(kind=CHECKPOINT_KIND, uri=network.reference, fingerprint=network.fingerprint),
        *data.inputs,
    ]
    # The place of a result changes nothing in it.
    plain = config.model_dump(mode="json", exclude={"name", "out", "runs_dir", "task"})
    settings = plain | {"task": task.identity(), "layers": layers}
    key = hash_json([KIND, settings, [[entry.kind, entry.fingerprint] for entry in inputs]])
    path = Path(network.reference)
    place = f"{path.resolve().name}-{network.fingerprint[:8]}" if path.is_dir() else network.reference
    directory = config.out / config.name / place.replace("/", "_")
    if is_committed(directory) and read_manifest(directory).stats.get("key") == key:
        return directory, read_result(directory)
    if directory.exists() and not replace:
        raise StorageError(
            f"{directory} holds something else: the result of other settings, or other files.",
            kept="everything in it",
            next_step="add --replace, or choose another name=NAME",
        )
    sides = []
    for examples, limit in (
        (data.train, config.max_train_examples),
        (data.evaluation, config.max_evaluation_examples),
    ):
        sample = [examples[number] for number in sample_examples(len(examples), limit)]
        sides.append(FEATURES[task.form](network, sample, data.labels, layers))
    result = fit_probes(config, task.kind, layers, sides[0], sides[1], len(data.labels))
    with staged(directory, key) as staging:
        write_durably(staging / RESULT_FILE, orjson.dumps(result.model_dump(), option=orjson.OPT_INDENT_2))
        commit(staging, directory, KIND, config=settings, inputs=inputs, stats={"key": key})
    return directory, result


def fit_probes(
    config: ProbeConfig, task: str, layers: list[int], train: Features, evaluation: Features, num_labels: int
) -> ProbeResult:
    """Fit every probe on every layer, and on the control task of the same words.

    Raises:
        ConfigError: the network reads no word of the task.
    """
    if not len(train.labels) or not len(evaluation.labels):
        raise ConfigError(
            "The network reads no word of the task's sentences.",
            next_step="compare its tokenizer with the texts",
        )
    frequencies = np.bincount(train.labels, minlength=num_labels)
    controls = [control_labels(part.words, frequencies, config.seed) for part in (train, evaluation)]
    scores = []
    for number, layer in enumerate(layers):
        vectors = train.vectors[number], evaluation.vectors[number]
        for kind in config.probes:
            right = accuracy(kind, config, (vectors[0], train.labels), (vectors[1], evaluation.labels))
            control = None
            if config.control:
                control = accuracy(kind, config, (vectors[0], controls[0]), (vectors[1], controls[1]))
            scores.append(LayerScore(layer=layer, probe=kind, accuracy=right, control=control))
    return ProbeResult(
        task=task,
        num_train_items=len(train.labels),
        num_evaluation_items=len(evaluation.labels),
        majority=float((evaluation.labels == frequencies.argmax()).mean()),
        scores=tuple(scores),
    )


def read_result(directory: Path) -> ProbeResult:
    """A committed result.

    Raises:
        CorruptArtefactError: it is none, or a file is damaged.
    """
    open_artefact(directory, kind=KIND, repair="run the same `cloze probe` again with --replace")
    with contents_of(directory / RESULT_FILE):
        return ProbeResult.model_validate_json((directory / RESULT_FILE).read_bytes())


def page(reference: str, result: ProbeResult) -> str:
    """HTML of one page without scripts, images or links to other files."""

    def draw(axes: Axes) -> None:
        for probe in dict.fromkeys(score.probe for score in result.scores):
            own = [score for score in result.scores if score.probe == probe]
            layers = [score.layer for score in own]
            axes.plot(layers, [100 * score.accuracy for score in own], marker="o", label=probe)
            controls = [100 * score.control for score in own if score.control is not None]
            if controls:
                axes.plot(layers, controls, marker="o", linestyle=":", label=f"{probe}, control task")
        axes.set(xlabel="layer", ylabel="accuracy, percent")
        axes.legend(fontsize="small")

    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        title=f"{result.task}, probed in {reference}",
        facts=facts(result),
        drawing=svg(draw),
        columns=COLUMNS,
        rows=rows(result),
    )


def facts(result: ProbeResult) -> str:
    """How much was learnt from and scored on, and the baseline."""
    return (
        f"{result.num_train_items:,} items to learn from, {result.num_evaluation_items:,} to score on; the most"
        f" frequent label is right for {100 * result.majority:.1f} % of them."
    )


def rows(result: ProbeResult) -> list[list[str]]:
    """The cells of a table with COLUMNS, in percent."""
    return [
        [
            str(score.layer),
            score.probe,
            *(
                "-" if share is None else f"{100 * share:.1f}"
                for share in (score.accuracy, score.control, score.selectivity)
            ),
        ]
        for score in result.scores
    ]
