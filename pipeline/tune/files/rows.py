"""Rows with named columns: CSV, JSON lines, Parquet, and data sets that `datasets` saved.

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
from pipeline.tune.files.lines import opened, read_lines, read_objects, stem_of, wrong_file, wrong_line

DICT_FILE = "dataset_dict.json"
"""Lies in a folder of several splits that `datasets` saved."""
_CSV_FIELD_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file."""

    path: Path
    name: str
    """Such as `dev-17`, with the line in which the row begins, or the row's number from 1 in Parquet and Arrow."""
    values: Mapping[str, Any]
    """By column."""
    unit: str = "line"
    """What the number at the end of `name` counts: `line` or `row`."""

    @property
    def place(self) -> str:
        """File and line, or file and row."""
        return f"{self.path}, {self.unit} {self.name.rpartition('-')[2]}"

    def error(self, problem: str, next_step: str = "") -> ConfigError:
        """The error for this row; without `next_step`, for a published file."""
        return wrong_file(f"{self.place}: {problem}", next_step)


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


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds a data set in the sense of this module, with a split `train`."""
    return (folder / DICT_FILE).is_file() or bool(_files_of(folder, "train"))


def read_split(folder: Path, split: str) -> tuple[list[Path], Iterator[Row]]:
    """The files of a split of a data set, and its rows. Both are empty where it has no such split."""
    if not (folder / DICT_FILE).is_file():
        paths = _files_of(folder, split)
        return paths, (row for path in paths for row in read_rows(path))
    saved = folder / split
    return sorted(saved.glob("*.arrow")), _read_saved(saved) if saved.is_dir() else iter(())


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


def _read_saved(folder: Path) -> Iterator[Row]:
    from datasets import Dataset

    saved = Dataset.load_from_disk(str(folder))
    for number, values in enumerate(saved.to_list(), 1):
        yield Row(folder, f"{folder.name}-{number}", values, "row")


def _read_csv(path: Path) -> Iterator[Row]:
    """Separated by commas; by semicolons where the first line has more of them, as in Excel's of many languages."""
    first = next((line for _, line in read_lines(path)), "")
    return _read_table(path, _Semicolons if first.count(";") > first.count(",") else csv.excel)


def _read_tsv(path: Path) -> Iterator[Row]:
    """Tab-separated without quoting, as in GLUE."""
    return _read_table(path, _Unquoted)


def _read_table(path: Path, dialect: type[csv.Dialect]) -> Iterator[Row]:
    # Texts may be longer than the module's limit of 131,072 characters.
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    # Quoted fields may hold line ends, so lines are cut by the reader itself (newline=""); utf-8-sig drops a byte order
    # mark.
    with opened(path) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, dialect, strict=True)
        try:
            columns = next(reader, None) or []
            _check_separator(path, columns, dialect.delimiter)
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


def _check_separator(path: Path, columns: Sequence[str], delimiter: str) -> None:
    """Refuse a table whose only column is a whole line of columns with another separator."""
    others = [
        name for sign, name in _OTHER_SEPARATORS.items() if sign != delimiter and sign in "".join(columns)
    ]
    if len(columns) == 1 and others:
        name, remedy = others[0]
        problem = (
            f"there is a single column, `{columns[0]}`; it seems to hold several with {name} between them"
        )
        raise wrong_line(path, 1, problem, f"{remedy}, or save the rows as JSON lines")


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
    delimiter = "\t"
    quoting = csv.QUOTE_NONE
    lineterminator = "\n"


def _read_json(path: Path) -> Iterator[Row]:
    """Objects in lines, or in one list."""
    with opened(path) as stream:
        is_list = stream.read(4096).removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    return _read_json_list(path) if is_list else _read_json_lines(path)


def _read_json_lines(path: Path) -> Iterator[Row]:
    for name, found in read_objects(path, _JSON):
        yield Row(path, name, found)


def _read_json_list(path: Path) -> Iterator[Row]:
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


_LINE_READERS = {".csv": _read_csv, ".tsv": _read_tsv, ".json": _read_json, ".jsonl": _read_json_lines}
READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = MappingProxyType(
    _LINE_READERS
    | {".parquet": _read_parquet}
    | {f"{suffix}.gz": read for suffix, read in _LINE_READERS.items()}
)
"""By suffix."""
SUFFIXES = ".csv, .tsv, .json, .jsonl, all also with .gz, or .parquet"
