"""Rows with named columns: CSV, JSON lines, Parquet, and data sets that `datasets` saved.

A data set is a folder as `Dataset.save_to_disk` writes it, or one with files such as `train-00000-of-00001.parquet`,
`validation.jsonl` or `data/test.csv`, as the Hugging Face Hub keeps them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster.artefacts.errors import ConfigError
from pipeline.finetune.files.lines import read_objects, wrong_line

DICT_FILE = "dataset_dict.json"
"""Lies in a folder of several splits that `datasets` saved."""
_CSV_FIELD_LIMIT = 2**31 - 1
_MANY_LINES = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file."""

    path: Path
    name: str
    """Such as `dev-17`, with the line in which the row begins, or the row's number from 1 in Parquet and Arrow."""
    values: Mapping[str, Any]
    """By column."""


def read_rows(path: Path) -> Iterator[Row]:
    """Stream the rows of a file; its suffix says what it holds: .csv, .tsv, .json, .jsonl, .parquet.

    Raises:
        ConfigError: the suffix is another one, a line cannot be read, or a row has more or fewer values than columns.
    """
    if path.suffix not in READERS:
        raise ConfigError(
            f"{path} has none of the suffixes {', '.join(READERS)}.",
            next_step="convert the file, or rename it after its contents",
        )
    return READERS[path.suffix](path)


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
        yield Row(folder, f"{folder.name}-{number}", values)


def _read_csv(path: Path) -> Iterator[Row]:
    return _read_table(path, csv.excel)


def _read_tsv(path: Path) -> Iterator[Row]:
    """Tab-separated without quoting, as in GLUE."""
    return _read_table(path, _Unquoted)


def _read_table(path: Path, dialect: type[csv.Dialect]) -> Iterator[Row]:
    # Texts may be longer than the module's limit of 131,072 characters.
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    # Quoted fields may hold line ends, so lines are cut by the reader itself (newline=""); utf-8-sig drops a byte order
    # mark.
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, dialect, strict=True)
        try:
            columns = next(reader, None) or []
            if repeated := sorted({name for name in columns if columns.count(name) > 1}):
                raise wrong_line(path, 1, f"the column `{repeated[0]}` occurs more than once")
            before = reader.line_num
            for values in reader:
                line, before = before + 1, reader.line_num
                if not values:
                    continue
                if len(values) != len(columns):
                    raise wrong_line(
                        path, line, f"{len(values)} values, but {len(columns)} columns{_glued(before - line)}"
                    )
                yield Row(path, f"{path.stem}-{line}", dict(zip(columns, values, strict=True)))
        except csv.Error as error:
            raise wrong_line(path, reader.line_num, f"{error}{_glued(_MANY_LINES)}") from None
        except UnicodeDecodeError as error:
            raise wrong_line(path, reader.line_num + 1, f"near byte {error.start}: not valid UTF-8") from None


def _glued(lines: int) -> str:
    """A hint for a row that goes over many lines."""
    return '; a quotation mark may be open, write "" for one inside a quoted value' if lines else ""


class _Unquoted(csv.Dialect):
    delimiter = "\t"
    quoting = csv.QUOTE_NONE
    lineterminator = "\n"


def _read_json_lines(path: Path) -> Iterator[Row]:
    for name, found in read_objects(path):
        yield Row(path, name, found)


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Row(path, f"{path.stem}-{number}", values)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read as Parquet: {error}.", next_step="write or copy the file again"
        ) from None


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = MappingProxyType(
    {
        ".csv": _read_csv,
        ".tsv": _read_tsv,
        ".json": _read_json_lines,
        ".jsonl": _read_json_lines,
        ".parquet": _read_parquet,
    }
)
"""By suffix."""
