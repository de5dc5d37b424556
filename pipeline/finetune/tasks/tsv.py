"""The tab-separated files of the original GLUE archives: no quoting, one example per line, line ends are LF.

Fields hold unescaped quotes, so a CSV reader would glue lines together; and they hold characters such as
U+0085 that Python's `splitlines` would cut at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import InputEntry, hash_file
from pipeline.finetune.tasks.base import Example, TaskData


@dataclass(frozen=True, slots=True)
class TsvLayout:
    """How the files of one task are laid out."""

    columns: tuple[str, ...]
    """Names of all columns, in order."""
    has_header: bool
    """Whether the first line names the columns, exactly as `columns` does."""
    text_a: str
    """Column of the first text."""
    text_b: str | None
    """Column of the second text; None for single sentences."""
    label: str
    """Column of the label."""
    labels: tuple[str, ...]
    """The label texts that may occur, in the order of their numbers."""
    archive: str
    """What to unpack when a file is missing."""


def load_tsv_task(folder: Path, layout: TsvLayout, labels: tuple[str, ...] | None = None) -> TaskData:
    """Read `train.tsv` and `dev.tsv` of a GLUE task.

    Args:
        labels: names for people where the files only hold numbers.

    Raises:
        MissingInputError: a file is missing; the message names the archive that holds it.
        ConfigError: a line has other columns or an unknown label; file and line are named.
    """
    train, evaluation = folder / "train.tsv", folder / "dev.tsv"
    return TaskData(
        train=tuple(read_examples(train, layout, "train")),
        evaluation=tuple(read_examples(evaluation, layout, "dev")),
        labels=labels or layout.labels,
        inputs=tuple(
            InputEntry(kind="source-file", uri=str(p), fingerprint=hash_file(p)[0])
            for p in (train, evaluation)
        ),
    )


def read_examples(path: Path, layout: TsvLayout, split: str) -> Iterator[Example]:
    """Stream the examples of one file; their ids are `split` and the number of the line, from 1."""
    numbers = {name: number for number, name in enumerate(layout.labels)}
    column = {name: number for number, name in enumerate(layout.columns)}
    for line, fields in _read_fields(path, layout):
        label = fields[column[layout.label]]
        if label not in numbers:
            raise ConfigError(
                f"{path}, line {line}: the label in column `{layout.label}` is {label!r},"
                f" not one of {', '.join(layout.labels)}.",
                next_step=f"compare the file with the one in {layout.archive}",
            )
        yield Example(
            id=f"{split}-{line}",
            text_a=fields[column[layout.text_a]].strip(),
            text_b=None if layout.text_b is None else fields[column[layout.text_b]].strip(),
            label=numbers[label],
        )


def _read_fields(path: Path, layout: TsvLayout) -> Iterator[tuple[int, Sequence[str]]]:
    for line, text in enumerate(_read_lines(path, layout), 1):
        fields = text.split("\t")
        if line == 1 and layout.has_header:
            if tuple(fields) != layout.columns:
                raise _wrong_columns(path, line, f"the header is {fields}", layout)
        elif len(fields) != len(layout.columns):
            raise _wrong_columns(path, line, f"{len(fields)} columns", layout)
        else:
            yield line, fields


def _read_lines(path: Path, layout: TsvLayout) -> Iterator[str]:
    if not path.is_file():
        raise MissingInputError(
            f"There is no {path}.",
            next_step=f"unpack {layout.archive} to {path.parent}, or correct the task's `path`",
        )
    for number, line in enumerate(path.read_bytes().removesuffix(b"\n").split(b"\n"), 1):
        try:
            # Some editors and download scripts left a byte order mark at the start of a file.
            yield line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path}, line {number}: byte {error.start} is not valid UTF-8.",
                next_step=f"compare the file with the one in {layout.archive}",
            ) from None


def _wrong_columns(path: Path, line: int, found: str, layout: TsvLayout) -> ConfigError:
    return ConfigError(
        f"{path}, line {line}: {found}, but {len(layout.columns)} columns are needed:"
        f" {', '.join(layout.columns)}.",
        next_step=f"compare the file with the one in {layout.archive}",
    )
