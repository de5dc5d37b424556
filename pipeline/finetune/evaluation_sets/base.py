"""What every evaluation set offers: its files in the folder of evaluation sets, and the texts in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import ConfigError, MissingInputError

Named = tuple[str, str]
"""The name of an example, and one of its texts."""
Read = Callable[[Path], Iterator[Named]]
"""Streams the texts of one file that a model reads when it is evaluated."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files that are read in the same way."""

    patterns: tuple[str, ...]
    """Relative to the folder of evaluation sets; names differ between releases, so the first that matches counts."""
    read: Read
    optional: bool = False
    """Whether the set is whole without them, as without test files whose labels are secret."""


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The texts that one task evaluates on."""

    files: tuple[Files, ...]
    origin: str
    """What to unpack when a file is missing."""

    def locate(self, name: str, data: Path) -> list[tuple[Path, Read]]:
        """The files of the set in the folder `data`.

        Raises:
            MissingInputError: one that is needed is not there.
        """
        located: list[tuple[Path, Read]] = []
        for files in self.files:
            matches = (sorted(data.glob(pattern)) for pattern in files.patterns)
            found = next(filter(None, matches), [])
            if not found and not files.optional:
                raise MissingInputError(
                    f"The evaluation set `{name}` is not at {data / files.patterns[0]}.",
                    next_step=f"unpack {self.origin} to there, name another folder by `decontaminate.data` or"
                    f" CLOZE_DATA, or leave {name} out of `decontaminate`",
                )
            located += [(path, files.read) for path in found]
        return located


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(name such as `dev-17`, line) of a file whose lines end with LF or CRLF; numbers count from 1.

    Raises:
        ConfigError: a line is not valid UTF-8.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                # Some editors and download scripts left a byte order mark at the start of a file.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise wrong(path, number, f"byte {error.start} is not valid UTF-8") from None
            yield f"{path.stem}-{number}", text.rstrip("\r\n")


def wrong(path: Path, line: int | str, problem: str) -> ConfigError:
    """The error for a file that is not what its name says."""
    return ConfigError(
        f"{path}, line {line}: {problem}.",
        next_step="compare the file with the one of the official release, or leave its task out of `decontaminate`",
    )
