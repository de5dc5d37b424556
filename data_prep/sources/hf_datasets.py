"""Data sets of the Hugging Face hub, and local ones that `datasets` loads.

A data set is resolved to its data files, as `datasets` finds them for a configuration and split: local paths, or
`hf://` URIs pinned to a commit. From there on they are source files like any other: hashed, split and read one by
one, so that a changed hub shows as changed data and not as a silent difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.reading import inside
from data_prep.sources import parquet
from data_prep.sources.base import Item, SourceFile
from data_prep.sources.records import MAX_LINE_BYTES, RecordsConfig, holds_lines, read_json
from data_prep.sources.streams import Gap, open_file

_STATE_NAME = "state.json"
"""Files that `save_to_disk` writes beside the Arrow files of a split."""
_PINNED = re.compile(r"hf://datasets/[^@]+@[^/]+/(.+)")
_JSON_LINES, _PARQUET = frozenset({".jsonl", ".ndjson"}), frozenset({".parquet"})
_LOADERS: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType(
    {
        ".arrow": ("arrow", {}),
        ".json": ("json", {}),
        ".csv": ("csv", {}),
        ".tsv": ("csv", {"sep": "\t"}),
        ".txt": ("text", {}),
    }
)
"""Module of `datasets` that reads the other formats, with its settings."""
_FORMATS = _JSON_LINES | _PARQUET | _LOADERS.keys()
_COMPRESSIONS = frozenset({".gz", ".bz2", ".xz", ".zst"})


class HfDatasetsConfig(RecordsConfig):
    """A data set of Parquet, Arrow, JSON, CSV or text files, on the Hugging Face hub or on disk."""

    kind: Literal["hf_datasets"] = "hf_datasets"
    path: str = Field(min_length=1)
    """Name on the hub (`owner/name`), a directory of data files, one that `save_to_disk` wrote, or one file."""
    config_name: str | None = None
    """Name of the data set's configuration."""
    split: str = "train"
    """Name of its split."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None is `main` as it is when the preparation starts."""

    places: ClassVar[frozenset[str]] = frozenset({"path"})

    def list_files(self) -> list[SourceFile]:
        """The data files of the split, sorted by name.

        Raises:
            MissingInputError: there is no such data set, configuration or split, or the hub does not answer.
            ConfigError: its files are of a format that is not read here, or lack a column that a setting names.
        """
        path = os.path.expanduser(self.path)
        if os.path.isfile(path):
            files = [SourceFile(path, os.path.basename(path))]
        elif saved := _saved_split(Path(path), self.split):
            files = [SourceFile(str(file), file.name) for file in saved]
        else:
            files = [SourceFile(name, name_below(name, path)) for name in _resolve(self, path)]
        for file in files:
            if _format(file) not in _FORMATS:
                raise ConfigError(
                    f"{self.path} holds {file.name}, which is of a format that this source does not read.",
                    next_step=f"convert it to Parquet; it reads {', '.join(sorted(_FORMATS))}",
                )
        if tables := [file for file in files if _format(file) in _PARQUET]:
            parquet.require_columns(self, tables)
        return sorted(files, key=lambda file: file.name)

    def split_file(self, file: SourceFile, size_bytes: int, part_bytes: int) -> list[SourceFile]:
        if _format(file) in _PARQUET:
            return parquet.split_row_groups(file, size_bytes, part_bytes)
        return super().split_file(file, size_bytes, part_bytes)

    def is_divisible(self, file: SourceFile) -> bool:
        """JSON lines are, and Parquet files at their row groups."""
        return _format(file) in _JSON_LINES and holds_lines(file)

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The rows of a part in order. A damaged file ends at the damage, with one reject."""
        suffix = _format(part)
        if suffix in _PARQUET:
            return parquet.read_rows(self, part)
        if suffix in _JSON_LINES:
            return read_json(self, part, MAX_LINE_BYTES)
        return _read_with_datasets(self, part, *_LOADERS[suffix])


def _format(file: SourceFile) -> str:
    stem, suffix = os.path.splitext(file.name.lower())
    return os.path.splitext(stem)[1] if suffix in _COMPRESSIONS else suffix


def _saved_split(path: Path, split: str) -> list[Path]:
    """The Arrow files of a directory, or its split, that `save_to_disk` wrote; none when it did not."""
    for directory in (path / split, path):
        try:
            state = orjson.loads((directory / _STATE_NAME).read_bytes())
            return [inside(directory, entry["filename"]) for entry in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return []


def _resolve(config: HfDatasetsConfig, path: str) -> list[str]:
    """Files that `datasets` finds: local paths, or URIs pinned to a commit."""
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(path, name=config.config_name, revision=config.revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        if isinstance(error, ConnectionError):
            raise MissingInputError(
                f"The Hugging Face hub does not answer for the data set {config.path}: {reason}.",
                next_step="check the network and HF_HUB_OFFLINE, or name a local copy: `hf download --repo-type"
                f" dataset {config.path} --local-dir DIR`, then `path: DIR`",
            ) from error
        raise MissingInputError(
            f"The data set {config.path} cannot be loaded: {reason}",
            next_step="correct the source's `path`, `config_name` or `revision`; for a gated data set,"
            " `hf auth login`",
        ) from error
    found = {str(name): files for name, files in (builder.config.data_files or {}).items()}
    if config.split not in found:
        raise MissingInputError(
            f"{config.path} has no split {config.split!r}.",
            next_step=f"set the source's `split` to one of: {', '.join(found) or 'none'}",
        )
    return list(found[config.split])


def name_below(name: str, path: str) -> str:
    """A file's path below the data set: the same on every machine and for every revision."""
    if pinned := _PINNED.fullmatch(name):
        return pinned.group(1)
    return os.path.relpath(name, path).replace(os.sep, "/")


def _read_with_datasets(
    config: HfDatasetsConfig, file: SourceFile, loader: str, settings: dict[str, Any]
) -> Iterator[Item]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    damage = (*parquet.DAMAGE, DatasetGenerationError)
    with open_file(file.path) as stored:
        size_bytes = stored.seek(0, 2)
    row = 0
    try:
        rows: Any = load_dataset(
            loader, data_files={"train": [file.path]}, split="train", streaming=True, **settings
        )
        for table in rows.with_format("arrow").iter(batch_size=parquet.BATCH_ROWS):
            there = table.column_names
            present = parquet.present_columns(config, file, table.schema)
            columns = [name if name in there else name.partition(".")[0] for name in present]
            selected = table.select(list(dict.fromkeys(columns)))
            yield from parquet.documents_of(config, file, selected.to_batches(), row, 0, size_bytes)
            row += table.num_rows
    except ConfigError:
        raise
    except damage as error:
        yield Gap(0, f"cannot be read after row {row}: {str(error).splitlines()[0][:200]}")
