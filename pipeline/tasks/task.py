"""A kind of task, its examples, and the texts that it evaluates on.

A kind of task is one class of settings in `tasks/`, which inherits from those of its form (`tasks/forms.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from pydantic import TypeAdapter

from cluster.artefacts.errors import ConfigError, MismatchError, MissingInputError
from cluster.artefacts.manifest import InputEntry, hash_file, hash_json
from models.config import NetworkConfig, TransformerConfig
from pipeline.config.loading import Config
from pipeline.tasks.files.lines import require_file
from pipeline.tasks.settings import TrainingOverrides

if TYPE_CHECKING:
    import numpy as np

    from models.hf.heads import Head
    from pipeline.tasks.tokenizer import Reading, TextTokenizer

ExampleT = TypeVar("ExampleT")
NamedText = tuple[str, str]
"""The name of an example, and one of its texts."""
ReadTexts = Callable[[Path], Iterator[NamedText]]
"""Streams the texts of one file that a model reads when it is evaluated."""


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The texts that one task evaluates on, which corpora are decontaminated against."""

    name: str
    """Its name in `decontaminate.tasks`."""
    origin: str
    """The archive that holds the files, for messages about missing ones."""
    read: ReadTexts
    files: tuple[str | tuple[str, ...], ...]
    """Patterns relative to the folder of evaluation sets; of several for the same files the first that matches counts,
    because names differ between releases."""
    optional: tuple[str, ...] = ()
    """Further files that the set is complete without, such as test files whose labels are secret."""

    def locate(self, data: Path) -> list[Path]:
        """The files of the set in the folder `data`.

        Raises:
            MissingInputError: a file that is not optional is missing.
        """
        located: list[Path] = []
        for named in (*self.files, *self.optional):
            patterns = (named,) if isinstance(named, str) else named
            found = next(filter(None, (sorted(data.glob(pattern)) for pattern in patterns)), [])
            if not found and named not in self.optional:
                raise MissingInputError(
                    f"The evaluation set `{self.name}` is not at {data / patterns[0]}.",
                    next_step=f"put {self.origin} there, name another folder by `decontaminate.data` or"
                    f" CLOZE_DATA, or leave {self.name} out of `decontaminate`",
                )
            located += found
        return located


def texts_of(read: Callable[[Path], Iterable[Any]]) -> ReadTexts:
    """Turn a reader of examples, which have an `id` and `texts`, into one of texts, each text of an example once."""

    def read_texts(path: Path) -> Iterator[NamedText]:
        for example in read(path):
            yield from ((example.id, text) for text in dict.fromkeys(example.texts))

    return read_texts


@dataclass(frozen=True, slots=True)
class TaskData(Generic[ExampleT]):
    """The examples of a task."""

    train: tuple[ExampleT, ...]
    evaluation: tuple[ExampleT, ...]
    labels: tuple[str, ...]
    """Names of the labels, in the order of their numbers; empty where nothing is classified."""
    inputs: tuple[InputEntry, ...]
    """The files or artefacts that the examples were read from."""
    test: tuple[ExampleT, ...] = ()
    """Examples without right answers, whose predictions a leaderboard wants."""

    @classmethod
    def of_files(
        cls,
        train: Sequence[ExampleT],
        evaluation: Sequence[ExampleT],
        files: Sequence[Path | InputEntry],
        labels: tuple[str, ...] = (),
        test: Sequence[ExampleT] = (),
    ) -> TaskData[ExampleT]:
        """Examples that were read from files, or from folders with an entry of their own.

        Raises:
            ConfigError: there are no examples to train on, or none to evaluate on.
        """
        if not train or not evaluation:
            places = dict.fromkeys(str(each.uri if isinstance(each, InputEntry) else each) for each in files)
            raise ConfigError(
                f"There are {len(train)} examples to train on and {len(evaluation)} to evaluate on in"
                f" {' and '.join(places)}.",
                next_step="name larger files, or compare the files with the official release",
            )
        inputs = (each if isinstance(each, InputEntry) else file_input(each) for each in files)
        return cls(tuple(train), tuple(evaluation), labels, tuple(inputs), tuple(test))


def file_input(path: Path) -> InputEntry:
    """The entry of a file that examples were read from."""
    return InputEntry(kind="source-file", uri=str(path), fingerprint=hash_file(path)[0])


def folder_input(folder: Path, paths: Sequence[Path]) -> InputEntry:
    """The entry of many files of a folder that examples were read from."""
    hashes = [[path.parent.name, path.name, hash_file(path)[0]] for path in paths]
    return InputEntry(kind="source-file", uri=str(folder), fingerprint=hash_json(hashes))


class TaskConfig(Config):
    """Settings, constants and functions of a kind of task; the default of its field `kind` is its name."""

    training: TrainingOverrides = TrainingOverrides()  # pyright: ignore[reportInvalidTypeForm]
    """Training settings of this task that differ from the shared ones."""

    if TYPE_CHECKING:
        kind: Any
    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics that are measured; tables show the first."""
    evaluation_sets: ClassVar[tuple[EvaluationSet, ...]] = ()
    """The texts that the task evaluates on, which pre-training corpora are decontaminated against; empty for tasks on
    one's own data."""
    form: ClassVar[str]
    """A key of `pipeline.tune.forms.FORMS`."""
    carriers: ClassVar[tuple[str, ...]]
    """Kinds of network that can be trained on tasks of this form."""
    head: ClassVar[Head]
    """The usual head, in `transformers`, of networks that were trained on a task of this form."""

    @classmethod
    def sets(cls) -> tuple[EvaluationSet, ...]:
        """The evaluation sets, where they are made from other constants of the task."""
        return cls.evaluation_sets

    @classmethod
    def head_of(cls, network: NetworkConfig) -> Head:
        """The head, in `transformers`, of this network after it was trained on a task of this form."""
        return cls.head

    @classmethod
    def without_files(cls, identity: Mapping[str, Any]) -> Self:
        """The task with the settings of `identity`, as the manifest of scores holds them; it has no files to load."""
        values = {
            name: TypeAdapter(field.annotation or Any).validate_python(identity[name])
            for name, field in cls.model_fields.items()
            if name in identity and name != "training"
        }
        return cls.model_construct(**values)

    def reading(self, network: NetworkConfig, tokenizer: TextTokenizer) -> Reading:
        """How texts are read, and written, in this task."""
        from pipeline.tasks.tokenizer import Reading, sequence_format

        return Reading(sequence_format(network, tokenizer))

    def chat_template(self, network: NetworkConfig) -> str | None:
        """The template of conversations that an export carries; None where no conversations were learned."""
        return None

    def load(self) -> TaskData[Any]:
        """Read or make the examples.

        Raises:
            MissingInputError: a file of the task does not exist.
            ConfigError: a file has a wrong line, or there is too little text to make the examples from.
        """
        raise NotImplementedError

    def submission(
        self, examples: Sequence[Any], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """Predictions of the test set as files that a leaderboard takes, by their names; empty where there is none.

        Args:
            outputs: as the `measure` of the form takes them.
            labels: names of the labels, in the order of their numbers.
        """
        return {}

    def check_lengths(
        self, name: str, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
    ) -> None:
        """Check that the task called `name` fits into a network, with inputs of up to `max_length` tokens.

        Raises:
            MismatchError: an input or a target may be longer than the network's table of positions.
        """
        check_positions(name, "training.max_length", max_length, network)

    def identity(self) -> dict[str, Any]:
        """The settings that determine the examples besides the inputs: neither paths nor training settings."""
        paths = {name for name in type(self).model_fields if isinstance(getattr(self, name), Path)}
        return self.model_dump(mode="json", exclude=paths | {"training"})


class TwoFilesTaskConfig(TaskConfig):
    """Settings of tasks whose configuration names a file to learn from and a file to score on."""

    train: Path
    """The file to learn from."""
    evaluation: Path
    """The file to score on."""

    origin: ClassVar[str]
    """Origin of such files, for messages about missing ones."""
    labels: ClassVar[tuple[str, ...]] = ()
    """Names of the labels, in the order of their numbers; empty where nothing is classified."""

    def load(self) -> TaskData[Any]:
        """Read both files."""
        paths = [self.train, self.evaluation]
        train, evaluation = (
            [*self.examples(require_file(path, self.origin, "`train` and `evaluation`"))] for path in paths
        )
        return TaskData.of_files(train, evaluation, paths, self.labels_of(train))

    def labels_of(self, train: Sequence[Any]) -> tuple[str, ...]:
        """Names of the labels, where the examples to learn from are these."""
        return self.labels

    def examples(self, path: Path) -> Iterable[Any]:
        """The examples of a file.

        Raises:
            ConfigError: it is not as described; the line is named.
        """
        raise NotImplementedError


def check_positions(name: str, key: str, length: int, network: NetworkConfig, further: int = 0) -> None:
    """Check that a network has positions for `length` tokens, a setting called `key`, and for `further` ones.

    Raises:
        MismatchError: the task called `name` needs more positions.
    """
    # Only learned positions are rows of a table; other kinds of positions are defined for any length.
    if not isinstance(network, TransformerConfig) or network.positions != "learned":
        return
    limit = network.max_positions - further
    if length > limit:
        raise MismatchError(
            f"The task {name} takes up to {length} tokens, but the network knows only {network.max_positions}"
            " positions.",
            next_step=f"add {key}={limit}",
        )
