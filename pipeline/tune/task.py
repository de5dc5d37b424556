"""The interface of a kind of task, and the examples of a task.

A kind of task is one class of settings, in a file of its own in `tasks/`. It inherits from the settings of its form
(`forms/*/settings.py`): a label, a span of a text, or a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import TypeAdapter

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import InputEntry, hash_file, hash_json
from models.config import NetworkConfig, TransformerConfig
from pipeline.config.loading import Config
from pipeline.tune.files.evaluation_set import EvaluationSet
from pipeline.tune.settings import TrainingOverrides

if TYPE_CHECKING:
    from models.hf.heads import Head
    from pipeline.checkpoint.references import PretrainedModel
    from pipeline.tune.text_reading import Reading
    from pipeline.tune.tokenizer import TextTokenizer

ExampleT = TypeVar("ExampleT")


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
    """Settings and functions that all tasks share; every kind of task adds a `kind`."""

    training: TrainingOverrides = TrainingOverrides()
    """Training settings in which this task differs from the shared ones."""

    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics that the form measures; tables show the first."""
    evaluation_sets: ClassVar[tuple[EvaluationSet, ...]]
    """The texts that the task evaluates on, which pre-training corpora are decontaminated against; empty for tasks made
    from documents that pre-training holds out."""
    form: ClassVar[str]
    """A key of `forms.registry.FORMS`."""
    carriers: ClassVar[tuple[str, ...]]
    """Kinds of network that can be trained on tasks of this form."""
    head: ClassVar[Head]
    """The usual head, in `transformers`, of networks that were trained on a task of this form."""

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
        from pipeline.tune.text_reading import Reading
        from pipeline.tune.tokenizer import sequence_format

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

    def check_lengths(
        self, name: str, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
    ) -> None:
        """Check that the task called `name` fits into a network, with inputs of up to `max_length` tokens.

        Raises:
            MismatchError: an input or a target may be longer than the network's table of positions.
        """
        check_positions(name, "training.max_length", max_length, network)

    def check_checkpoint(self, name: str, pretrained: PretrainedModel) -> None:
        """Check that the checkpoint was not trained on the texts that the task called `name` evaluates on.

        Raises:
            MismatchError: it was.
        """

    def identity(self) -> dict[str, Any]:
        """The settings that determine the examples besides the inputs: neither paths nor training settings."""
        paths = {name for name in type(self).model_fields if isinstance(getattr(self, name), Path)}
        return self.model_dump(mode="json", exclude=paths | {"training"})


Tasks = Mapping[str, type[TaskConfig]]
"""Kinds of tasks by name."""


def by_kind(union: Any) -> Tasks:
    """The members of a (discriminated) union of settings, keyed by the value of their `kind`."""
    members = get_args(get_args(union)[0]) or get_args(union)
    return {task.model_fields["kind"].default: task for task in members}


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
