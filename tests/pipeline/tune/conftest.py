"""Small stand-ins: a tokenizer of words, tiny networks, tasks of two rows, a separable task in GLUE's layout, and a
tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from cluster.artefacts.manifest import read_manifest
from models.config import ElmoConfig, TransformerConfig
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from pipeline.checkpoint.references import PretrainedModel
from pipeline.tasks.forms import Answer, Choices, Example, Question, TaggedSentence, TextPair
from pipeline.tasks.generation import XsumConfig
from pipeline.tasks.questions import SquadConfig
from pipeline.tasks.rows import RowsClassificationConfig, RowsRegressionConfig
from pipeline.tasks.settings import TrainingConfig
from pipeline.tasks.superglue import CopaConfig
from pipeline.tasks.tagging import ConllNerConfig
from pipeline.tasks.task import TaskData
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune import trainer
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.forms import FORMS
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.run import finetune
from pipeline.tune.scores import Score
from pipeline.tune.trials import scores_directory

WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "and", "very", "one", "two", "three"]
SIZES: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "max_positions": 32,
}
MODEL = TransformerConfig(vocab_size=32, **SIZES)
TRAINING = {"epochs": 3, "batch_size": 8, "lr": 5e-3, "max_length": 16}
"""A training on the separable task that takes less than a second."""
DECODER = dataclasses.replace(MODEL, network="decoder", norm="pre", embedding_norm=False)
ENCODER_DECODER = dataclasses.replace(MODEL, network="encoder_decoder")
# Larger ones without dropout.
WIDE = {"vocab_size": 400, "hidden_size": 64, "intermediate_size": 128, "max_positions": 128}
BERT = dataclasses.replace(MODEL, **WIDE, num_segments=2, dropout=0.0, attention_dropout=0.0)
GPT = dataclasses.replace(BERT, network="decoder", num_segments=0, norm="pre", embedding_norm=False)
BART = dataclasses.replace(BERT, network="encoder_decoder", num_segments=0)
ELMO = ElmoConfig(
    vocab_size=600,
    max_characters=12,
    character_size=8,
    filters=((1, 8), (2, 16), (3, 24)),
    num_highway_layers=1,
    projection_size=16,
    cell_size=32,
)
UNREAD = {"train": Path("unread"), "evaluation": Path("unread")}
SIDES = {side: Path("unread") for side in ("source", "target", "train_source", "train_target")}
FIRST, SECOND = ("a", "the good film"), ("b", "bad plot and film")
TAGGED = (
    TaggedSentence("a", ("the", "good", "film"), ("O", "B-X", "O")),
    TaggedSentence("b", ("one",), ("O",)),
)
ASKED = (
    Question("a", "the plot", "the good film was bad", (Answer("good film", 4),)),
    Question("b", "two", "one two", (Answer("two", 4),)),
)
CHOSEN = (
    Choices("a", (("good", "film"), ("bad", "film plot")), 1),
    Choices("b", (("one", "two"), ("one", "three"), ("a", "the")), 2),
)
WRITTEN = TextPair(*FIRST, "film"), TextPair(*SECOND, "plot and film")
SUMMARIES = XsumConfig(**UNREAD, max_target_length=8, min_target_length=1, label_smoothing=0.0)
LABELLED, NUMBERED = (
    (Example(*FIRST, None, one), Example(*SECOND, None, two)) for one, two in ((1, 0), (0.5, -2.0))
)
TWO_ROWS: dict[str, tuple[Any, tuple[str, ...], tuple[Any, Any]]] = {
    "classification": (RowsClassificationConfig(**UNREAD), ("bad", "good"), LABELLED),
    "regression": (RowsRegressionConfig(**UNREAD), (), NUMBERED),
    "tags": (ConllNerConfig(**UNREAD), ("B-X", "O"), TAGGED),
    "spans": (SquadConfig(**UNREAD, max_query_length=4), (), ASKED),
    "choices": (CopaConfig(path=Path("unread")), (), CHOSEN),
    "generation": (SUMMARIES, (), WRITTEN),
}
"""By form, a task of two rows of unequal lengths in the words of the tests: settings, labels and rows."""


@dataclass
class Recorder:
    """Takes the place of MLflow inside of a `with` block; remembers what it was told."""

    runs: list[RecordedRun] = field(default_factory=list)
    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def __enter__(self) -> Recorder:
        self.patch.setattr("pipeline.tune.runner.start_run", self)
        self.patch.setattr("pipeline.tune.report.page.publish_page", lambda *arguments: None)
        self.patch.setattr("pipeline.checkpoint.references.with_logged_model", lambda start, runs_dir: start)
        return self

    def __exit__(self, *error: object) -> None:
        self.patch.undo()

    def __call__(self, experiment, name, *, config, tags, runs_dir, resume=None):
        if resume is not None:
            return next(run for run in self.runs if run.run_id == resume)
        self.runs.append(RecordedRun(f"run-{len(self.runs)}", name, tags))
        return self.runs[-1]


@dataclass
class RecordedRun:
    run_id: str
    name: str
    tags: dict[str, str]
    metrics: list[tuple[dict[str, float], int, str | None]] = field(default_factory=list)
    status: str = "RUNNING"

    def log_metrics(self, metrics, step, model_id=None):
        self.metrics.append((metrics, step, model_id))

    def finish(self, status="FINISHED"):
        self.status = status


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as found:
        yield found


@pytest.fixture
def tokenizer_path(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


def write_tokenizer(path: Path) -> Path:
    """Words and nothing else: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then WORDS."""
    vocabulary = {word: n for n, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


@pytest.fixture
def tokenizer(tokenizer_path: Path) -> TextTokenizer:
    return TextTokenizer(tokenizer_path)


def context_of(
    config: Any,
    tokenizer: TextTokenizer,
    rows: Any = None,
    labels: tuple[str, ...] = (),
    network: Any = MODEL,
    **settings: Any,
) -> TaskContext:
    """All that a form needs of a task on its files or on these rows; `settings` are of the training."""
    data = config.load() if rows is None else TaskData(rows, rows, labels, ())
    training = TrainingConfig.model_validate({"max_length": 16} | settings)
    return TaskContext(config, data, training, network, tokenizer)


def prepare(config: Any, *arguments: Any, **named: Any) -> Any:
    """A task ready to be trained; takes what `context_of` does."""
    return FORMS[config.form](context_of(config, *arguments, **named))


def two_rows(form: str, tokenizer: TextTokenizer, network: Any = MODEL, **settings: Any) -> TaskContext:
    """A task of two rows; `settings` are of the training."""
    config, labels, rows = TWO_ROWS[form]
    return context_of(config, tokenizer, rows, labels, network, **settings)


def prepared_rows(form: str, tokenizer: TextTokenizer, network: Any = MODEL) -> Any:
    """A task of two rows, ready to be trained."""
    context = two_rows(form, tokenizer, network)
    return FORMS[context.config.form](context)


def enlarged(network: Any, factor: float = 10, seed: int = 7) -> Any:
    """A network whose random weights are large enough for its outputs to depend on its texts."""
    init_weights(network, seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
    return network.eval()


@pytest.fixture
def checkpoint(tmp_path: Path, tokenizer_path: Path) -> PretrainedModel:
    """Step 5 of a run called `tiny`, with random weights."""
    return make_checkpoint(tmp_path / "checkpoint", tokenizer_path)


def make_checkpoint(
    directory: Path, tokenizer_path: Path, fingerprint: str = "c" * 32, network: Any = None
) -> PretrainedModel:
    """A checkpoint of `network`, with random weights; of a masked language model unless told otherwise."""
    network = MaskedLanguageModel(MODEL) if network is None else network
    init_weights(network, seed=7)
    directory.mkdir()
    save_file(network.state_dict(), directory / "model.safetensors")
    return PretrainedModel(
        directory=directory,
        reference="tiny@5",
        run_id="run-of-tiny",
        model_id="m-1",
        step=5,
        fingerprint=fingerprint,
        model=network.config,
        tokenizer_path=tokenizer_path,
    )


@pytest.fixture
def sst2(tmp_path: Path) -> Path:
    """A folder in SST-2's layout: `good` is positive, `bad` is negative; 64 and 45 examples."""
    return write_sst2(tmp_path / "SST-2", 64, 45)


def write_sst2(folder: Path, num_train: int, num_evaluation: int) -> Path:
    folder.mkdir(parents=True)
    for name, count in (("train", num_train), ("dev", num_evaluation)):
        lines = ["sentence\tlabel"]
        for n in range(count):
            filler = " ".join(WORDS[4 + (n * 7 + k) % 8] for k in range(1 + n % 5))
            lines.append(f"{filler} {'good' if n % 2 else 'bad'} film \t{n % 2}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def make_config(tmp_path: Path, sst2: Path) -> Callable[..., FinetuneConfig]:
    """A configuration for the separable task that trains in under a second; `changes` replace its fields."""

    return lambda **changes: config_in(tmp_path, **changes)


def config_in(folder: Path, **changes: Any) -> FinetuneConfig:
    """The settings of `make_config`, for files in a folder."""
    plain = {
        "name": "small",
        "out": folder / "finetuned",
        "runs_dir": folder / "runs",
        "tasks": {"reviews": {"kind": "sst2", "path": folder / "SST-2"}},
        "training": TRAINING,
        "seeds": [1, 2],
        "num_threads": 1,
    }
    return FinetuneConfig.model_validate(plain | changes)


def scratch_in(folder: Path, **model: Any) -> dict[str, Any]:
    """The setting of a network with random weights and the tokenizer of a folder."""
    return {"model": SIZES | model, "tokenizer": folder / "tokenizer.json"}


@contextmanager
def in_update(number: int, action: Callable[[], object]) -> Iterator[list[int]]:
    """Call `action` in an update, counted from 1 over all trainings. Yields the numbers of all updates of trainings."""
    made: list[int] = []
    original = trainer.make_update

    def make(*args: Any) -> float:
        made.append(args[-2])
        if len(made) == number:
            action()
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "make_update", make)
        yield made


def predictions(directory: Path, trial: str = "reviews-pretrained-1") -> list[dict[str, Any]]:
    text = (directory / f"predictions-{trial}.jsonl").read_bytes()
    return [orjson.loads(line) for line in text.splitlines()]


@dataclass(frozen=True)
class Tuned:
    """A finished fine-tuning run."""

    config: FinetuneConfig
    scores: list[Score]
    directory: Path

    @property
    def fingerprint(self) -> str:
        return read_manifest(self.directory).fingerprint

    def lines(self, trial: str = "reviews-pretrained-1") -> list[dict[str, Any]]:
        """The predictions of a trial."""
        return predictions(self.directory, trial)


@pytest.fixture
def tune(make_config: Callable[..., FinetuneConfig], checkpoint: PretrainedModel, recorder: Any):
    """Fine-tune the checkpoint, or another start; one seed and the settings of `make_config` unless told otherwise."""

    def run(start: PretrainedModel | None = checkpoint, *, replace: bool = False, **changes: Any) -> Tuned:
        config = make_config(**({"seeds": [1]} | changes))
        scores = finetune(config, start, replace=replace)
        return Tuned(config, scores, scores_directory(config, start))

    return run
