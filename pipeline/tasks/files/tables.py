"""Tab-separated files as the GLUE archives have them: one example per line and no quoting.

Fields hold unescaped quotes, so a CSV reader would glue lines together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.tasks.files.lines import read_lines, wrong_line
from pipeline.tasks.task import EvaluationSet, Files, NamedText


@dataclass(frozen=True, slots=True)
class GlueFiles:
    """The files train.tsv, dev.tsv and (without labels) test.tsv of a task of GLUE."""

    folder: str
    """In the folder `glue` of evaluation sets."""
    texts: tuple[str, ...]
    """Columns of the texts, one or two."""
    label: str = ""
    """Column of the label; empty for tasks that are only decontaminated."""
    labels: tuple[str, ...] = ()
    """The label texts that may occur, in the order of their numbers."""
    header: tuple[str, ...] = ()
    """Names of the columns of train.tsv and dev.tsv, where their first line does not name them."""
    bounds: tuple[float, float] | None = None
    """The smallest and the largest number that a label may be, where the label is a number."""
    index: str = "index"
    """Column of test.tsv with the number that a prediction is submitted under."""
    archive: str = ""
    """Name of the archive; empty where it is the folder's."""

    @property
    def origin(self) -> str:
        """The archive that holds the files, for messages about missing ones."""
        return f"the contents of {self.archive or self.folder}.zip of the GLUE benchmark (gluebenchmark.com/tasks)"

    def read_labelled(self, path: Path) -> Iterator[tuple[str, list[str], float]]:
        """(name, texts, index of the label) of every example of train.tsv or dev.tsv.

        Raises:
            ConfigError: a line has other columns than the first, or an unknown label.
        """
        for name, (*texts, label) in read_columns(path, (*self.texts, self.label), self.header, exact=True):
            yield name, texts, self.label_number(path, name, label)

    def read_unlabelled(self, path: Path) -> Iterator[tuple[str, list[str]]]:
        """(number to submit a prediction under, texts) of every example of test.tsv.

        Raises:
            ConfigError: a line has other columns than the first.
        """
        for _, (index, *texts) in read_columns(path, (self.index, *self.texts), exact=True):
            yield index, texts

    def label_number(self, path: Path, name: str, label: str) -> float:
        """The index of a label among the labels, or the number itself, where labels are numbers.

        Raises:
            ConfigError: it is no label of the task; `name` is the line's.
        """
        column = f"the label in column `{self.label}` is {label!r}"
        if self.bounds is None:
            if label not in self.labels:
                raise wrong_line(path, name, f"{column}, not one of {', '.join(self.labels)}")
            return self.labels.index(label)
        try:
            number = float(label)
        except ValueError:
            raise wrong_line(path, name, f"{column}, no number") from None
        low, high = self.bounds
        if not low <= number <= high:
            raise wrong_line(path, name, f"{column}, not between {low:g} and {high:g}")
        return number

    def read_texts(self, path: Path) -> Iterator[NamedText]:
        """The texts of a file, by their lines."""
        # The first line of test.tsv always names the columns.
        header = () if path.name == "test.tsv" else self.header
        for name, texts in read_columns(path, self.texts, header):
            yield from ((name, text) for text in texts)

    def evaluation_set(self, name: str) -> EvaluationSet:
        """The texts of dev.tsv and, where it is there, test.tsv."""
        dev, test = (f"glue/{self.folder}/dev.tsv",), (f"glue/{self.folder}/test.tsv",)
        files = (Files(dev, self.read_texts), Files(test, self.read_texts, optional=True))
        return EvaluationSet(name, files, self.origin)


def read_columns(
    path: Path, columns: Sequence[str], header: Sequence[str] = (), *, exact: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """(name such as `dev-17`, the named columns) of every line, without white space around a value.

    Blank lines may be at the end of the file.

    Args:
        header: the names of all columns, where the first line of the file does not name them.
        exact: also refuse lines with more columns than the header.

    Raises:
        ConfigError: a column is missing, from the header or from a line.
    """
    names, blank = list(header), ""
    for name, line in read_lines(path):
        if not line.strip():
            blank = blank or name
            continue
        if blank:
            raise wrong_line(path, blank, "the line is blank")
        fields = line.split("\t")
        if not names:
            names = fields
            if missing := [column for column in columns if column not in names]:
                hint = "; files of test sets have no labels" if missing == [columns[-1]] else ""
                raise wrong_line(path, name, f"there is no column `{missing[0]}` among {fields}{hint}")
            continue
        places = [names.index(column) for column in columns]
        needed = len(names) if exact else max(places) + 1
        if len(fields) < needed or (exact and len(fields) > needed):
            raise wrong_line(
                path, name, f"{len(fields)} columns, {'' if exact else 'at least '}{needed} are needed"
            )
        yield name, [fields[place].strip() for place in places]
