"""Evaluation sets: their files in the folder of evaluation sets, and how the texts in them are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import MissingInputError

NamedText = tuple[str, str]
"""The name of an example, and one of its texts."""
ReadTexts = Callable[[Path], Iterator[NamedText]]
"""Streams the texts of one file that a model reads when it is evaluated."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files that are read in the same way."""

    patterns: tuple[str, ...]
    """Relative to the folder of evaluation sets. The first one that matches counts: names differ between releases."""
    read: ReadTexts
    optional: bool = False
    """Whether the set is complete without them, such as test files whose labels are secret."""


def texts_of(read: Callable[[Path], Iterable[tuple[str, Sequence[str]]]]) -> ReadTexts:
    """Turns a reader of examples, a name with its texts each, into one of single texts, each text of an example
    once."""

    def read_texts(path: Path) -> Iterator[NamedText]:
        for name, texts in read(path):
            yield from ((name, text) for text in dict.fromkeys(texts))

    return read_texts


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The texts that one task evaluates on."""

    name: str
    """Its name in `decontaminate.tasks`."""
    files: tuple[Files, ...]
    origin: str
    """The archive that holds the files, for messages about missing ones."""

    def locate(self, data: Path) -> list[tuple[Path, ReadTexts]]:
        """The files of the set in the folder `data`.

        Raises:
            MissingInputError: a file that is not optional is missing.
        """
        located: list[tuple[Path, ReadTexts]] = []
        for files in self.files:
            matches = (sorted(data.glob(pattern)) for pattern in files.patterns)
            found = next(filter(None, matches), [])
            if not found and not files.optional:
                raise MissingInputError(
                    f"The evaluation set `{self.name}` is not at {data / files.patterns[0]}.",
                    next_step=f"put {self.origin} there, name another folder by `decontaminate.data` or"
                    f" CLOZE_DATA, or leave {self.name} out of `decontaminate`",
                )
            located += [(path, files.read) for path in found]
        return located
