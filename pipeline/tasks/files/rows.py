"""Rows with named columns: CSV, JSON lines, Parquet, tables of published files, and data sets that `datasets` saved.

A data set is a folder as `Dataset.save_to_disk` writes it, or one with files such as `train-00000-of-00001.parquet`,
`validation.jsonl` or `data/test.csv`, as the Hugging Face Hub keeps them.
"""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from cluster.artefacts.errors import ConfigError
from pipeline.tasks.files.lines import opened, read_lines, stem_of, wrong_file, wrong_line

DICT_FILE = "dataset_dict.json"
"""Lies in a folder of several splits that `datasets` saved."""
_CSV_FIELD_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file."""

    path: Path
    name: str
    """Such as `dev-17`, with the first line of the row, or the row's number from 1 in Parquet and Arrow."""
    values: Mapping[str, Any]
    """By column."""
    unit: str = "line"
    """Unit of the number at the end of `name`: `line` or `row`."""

    @property
    def place(self) -> str:
        """File and line, or file and row."""
        return f"{self.path}, {self.unit} {self.name.rpartition('-')[2]}"

    def error(self, problem: str, next_step: str = "") -> ConfigError:
        """The error for this row; without `next_step`, for a published file."""
        return wrong_file(f"{self.place}: {problem}", next_step)

    def value(self, role: str, column: str) -> Any:
        """The value of a column; `role` is the setting below `columns` that names it.

        Raises:
            ConfigError: there is no such column, or the row has no value there: null, or NaN, which pandas writes for
                it.
        """
        if column not in self.values:
            near = ", ".join(f"`{name}`" for name in self.values)
            problem = f"there is no column `{column}`; there are {near}"
            raise self.error(problem, f"set columns.{role} to one of them")
        value = self.values[column]
        if value is None or value != value:
            raise self.error(f"the column `{column}` is empty", "fill it, or leave the row out")
        return value

    def text(self, role: str, column: str) -> str:
        """The text of a column; numbers are written as they are, truth values as `true` and `false`.

        Raises:
            ConfigError: there is no such column, or its value is no text.
        """
        value = self.value(role, column)
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            remedy = f"set columns.{role} to a column of texts"
            raise self.error(f"the column `{column}` holds {value!r}, no text", remedy)
        return str(value)

    def label(self, column: str) -> str:
        """The label, as a text without white space around it: also `1` for 1.0, because columns with empty rows are
        saved as such numbers.

        Raises:
            ConfigError: there is no such column, or it is empty.
        """
        value = self.value("label", column)
        is_whole = isinstance(value, float) and value.is_integer()
        label = str(int(value)) if is_whole else self.text("label", column).strip()
        if not label:
            remedy = "fill it, or leave the row out; rows without labels can be predicted as `test`"
            raise self.error(f"the column `{column}` is empty", remedy)
        return label

    def words(self, role: str, column: str) -> list[str]:
        """The texts of a column that holds a list, or texts separated by white space.

        Raises:
            ConfigError: there is no such column, or its value is neither.
        """
        value = self.value(role, column)
        if isinstance(value, str):
            return value.split()
        if not isinstance(value, list) or not all(isinstance(each, str | int) for each in value):
            remedy = f"set columns.{role} to a column of lists, or of words with spaces between them"
            raise self.error(f"the column `{column}` holds {value!r}, no list of texts", remedy)
        return [str(each) for each in value]

    def id(self, column: str | None) -> str:
        """The name of an example: its column, or file and line."""
        return self.name if column is None else self.text("id", column)

    def official_text(self, column: str) -> str:
        """The text of a column of a published file.

        Raises:
            ConfigError: there is no text.
        """
        if not isinstance(self.values.get(column), str):
            raise self.error(f"there is no text `{column}` among {list(self.values)}")
        return self.values[column]


def read_rows(path: Path) -> Iterator[Row]:
    """Stream the rows of a file; its suffix says what it holds: .csv, .tsv, .json, .jsonl (with .gz after it where it
    is gzipped) or .parquet.

    Raises:
        ConfigError: the suffix is another one, a line cannot be read, or a row has more or fewer values than columns.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix + (".gz" if path.suffix == ".gz" else "")
    if suffix not in READERS:
        raise ConfigError(
            f"{path} has none of the suffixes {SUFFIXES}.",
            next_step="convert the file, or rename it after its contents",
        )
    return READERS[suffix](path)


def read_objects(path: Path, next_step: str = "") -> Iterator[Row]:
    """Stream the rows of a file with one JSON object per line; blank lines are left out.

    Args:
        next_step: the advice of errors; without it, for a published file.

    Raises:
        ConfigError: a line is not a JSON object.
    """
    for name, line in read_lines(path):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise wrong_line(path, name, f"no valid JSON: {error}", next_step) from None
        if not isinstance(found, dict):
            raise wrong_line(path, name, "no JSON object", next_step)
        yield Row(path, name, found)


def read_table(
    path: Path, columns: Sequence[str], header: Sequence[str] = (), *, exact: bool = False
) -> Iterator[Row]:
    """Stream the rows of a tab-separated file as the GLUE archives have them, without white space around a value: one
    row per line and no quoting. Fields hold unescaped quotes, so a CSV reader would glue lines together. Blank lines
    may be at the end of the file.

    Args:
        columns: those that are needed; the last is the label, where labels are.
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
        needed = len(names) if exact else max(map(names.index, columns)) + 1
        if len(fields) < needed or (exact and len(fields) > needed):
            problem = f"{len(fields)} columns, {'' if exact else 'at least '}{needed} are needed"
            raise wrong_line(path, name, problem)
        yield Row(path, name, dict(zip(names, map(str.strip, fields), strict=False)))


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds a data set in the sense of this module, with a split `train`."""
    return (folder / DICT_FILE).is_file() or bool(_files_of(folder, "train"))


def read_split(folder: Path, split: str) -> tuple[list[Path], Iterator[Row]]:
    """The files of a split of a data set, and its rows. Both are empty where it has no such split."""
    if not (folder / DICT_FILE).is_file():
        paths = _files_of(folder, split)
        return paths, (row for path in paths for row in read_rows(path))
    saved = folder / split
    if not saved.is_dir():
        return [], iter(())
    from datasets import Dataset

    def read_saved() -> Iterator[Row]:
        for number, values in enumerate(Dataset.load_from_disk(str(saved)).to_list(), 1):
            yield Row(saved, f"{split}-{number}", values, "row")

    return sorted(saved.glob("*.arrow")), read_saved()


def _files_of(folder: Path, split: str) -> list[Path]:
    """Files of a split by the Hub's names, in the folder or in its folder `data`."""
    found = (
        path
        for place in (folder, folder / "data")
        for pattern in (f"{split}.*", f"{split}-*-of-*.*")
        for path in place.glob(pattern)
        if path.suffix in {".csv", ".json", ".jsonl", ".parquet"}
    )
    return sorted(found)


def _read_csv(path: Path) -> Iterator[Row]:
    """Separated by commas; by semicolons where the first line has more of them, as in Excel's of many languages."""
    first = next((line for _, line in read_lines(path)), "")
    return _read_table(path, _Semicolons if first.count(";") > first.count(",") else csv.excel)


def _read_table(path: Path, dialect: type[csv.Dialect]) -> Iterator[Row]:
    # Texts may be longer than the module's limit of 131,072 characters.
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    # Quoted fields may hold line ends, so lines are cut by the reader itself (newline=""); utf-8-sig drops a byte order
    # mark.
    with opened(path) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, dialect, strict=True)
        try:
            columns = next(reader, None) or []
            # The only column may be a whole line of columns with another separator.
            for sign, (name, remedy) in _OTHER_SEPARATORS.items() if len(columns) == 1 else ():
                if sign != dialect.delimiter and sign in columns[0]:
                    problem = (
                        f"there is a single column, `{columns[0]}`; it seems to hold several with {name}"
                    )
                    remedy = f"{remedy}, or save the rows as JSON lines"
                    raise wrong_line(path, 1, f"{problem} between them", remedy)
            _check_columns(path, columns)
            before = reader.line_num
            for values in reader:
                line, before = before + 1, reader.line_num
                if not values:
                    continue
                if len(values) != len(columns):
                    remedy = _OPEN_QUOTE if before > line else _SEPARATORS
                    problem = f"{len(values)} values, but {len(columns)} columns"
                    raise wrong_line(path, line, problem, remedy)
                yield Row(path, f"{stem_of(path)}-{line}", dict(zip(columns, values, strict=True)))
        except csv.Error as error:
            raise wrong_line(path, reader.line_num, str(error), _OPEN_QUOTE) from None
        except UnicodeDecodeError:
            # The error counts bytes from the beginning of a block, and lines end inside of it.
            for _ in read_lines(path):
                pass
            raise


_OPEN_QUOTE = 'write "" for a quotation mark inside of a quoted value; one may be open in an earlier line'
_SEPARATORS = "quote values that hold the separator, or save the rows as JSON lines"
_OTHER_SEPARATORS = {
    "\t": ("tabs", "rename the file to .tsv"),
    ";": ("semicolons", "rename the file to .csv"),
    ",": ("commas", "rename the file to .csv"),
    "|": ("bars", "separate the columns by commas"),
}
"""By character: its name, and what makes a file readable whose columns it separates."""


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    if repeated := sorted({name for name in columns if columns.count(name) > 1}):
        problem = f"the column `{repeated[0]}` occurs more than once"
        raise wrong_line(path, 1, problem, "rename one of the two")


class _Semicolons(csv.excel):
    delimiter = ";"


class _Unquoted(csv.Dialect):
    """As in GLUE."""

    delimiter = "\t"
    quoting = csv.QUOTE_NONE
    lineterminator = "\n"


def _read_json(path: Path) -> Iterator[Row]:
    """Objects in lines, or in one list."""
    with opened(path) as stream:
        is_list = stream.read(4096).removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    if not is_list:
        yield from read_objects(path, _JSON)
        return
    with opened(path) as stream:
        content = stream.read().removeprefix(BOM_UTF8)
    try:
        rows = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise wrong_line(path, error.lineno, f"no valid JSON: {error.msg}", _JSON) from None
    for number, values in enumerate(rows, 1):
        if not isinstance(values, dict):
            raise wrong_file(f"{path}, row {number}: no JSON object", _JSON)
        yield Row(path, f"{stem_of(path)}-{number}", values, "row")


_JSON = "write an object per row: in a line each, or in a list"


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Row(path, f"{path.stem}-{number}", values, "row")
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read as Parquet: {str(error).rstrip('.')}.",
            next_step="write or copy the file again",
        ) from None


_LINE_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": lambda path: _read_table(path, _Unquoted),
    ".json": _read_json,
    ".jsonl": lambda path: read_objects(path, _JSON),
}
READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = MappingProxyType(
    _LINE_READERS
    | {".parquet": _read_parquet}
    | {f"{suffix}.gz": read for suffix, read in _LINE_READERS.items()}
)
"""By suffix."""
SUFFIXES = ".csv, .tsv, .json, .jsonl, all also with .gz, or .parquet"
