"""The numbers of a run's log for other programs: as a table (CSV), and as TensorBoard reads them.

Names are those of MLflow's metrics. The same log gives the same bytes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import entries_that_count
from pipeline.run.log.sender import METRIC_PREFIXES, numbers_of

COLUMNS = ("step", "time_ms", "name", "value")
"""Columns of the table; `time_ms` is milliseconds since 1970."""
_FORMAT = "brain.Event:2"
"""The first record of every file of TensorBoard's (tensorflow/core/util/event.proto)."""
_NOT_IN_A_TAG = re.compile(r"[^-/\w.]")


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one line of the log."""

    step: int
    time_ms: int
    values: dict[str, float]


def read_points(run: RunDirectory) -> Iterator[Point]:
    """The lines with metrics, in the order of the log.

    Raises:
        MissingInputError: nothing was logged yet.
    """
    found = False
    for entry in entries_that_count(run):
        if entry["kind"] in METRIC_PREFIXES and (values := numbers_of(entry)):
            found = True
            yield Point(entry["step"], int(entry["time_ms"]), values)
    if not found:
        raise MissingInputError(
            f"The run {run.path.name} has logged no numbers yet.", next_step=f"cloze resume {run.typed}"
        )


def write_csv(run: RunDirectory, file: Path) -> int:
    """One row per number, in the columns of `COLUMNS`; returns how many rows. Infinities are `inf`, others `nan`.

    Raises:
        MissingInputError: nothing was logged yet.
        ConfigError: a file lies where a directory is to be.
        StorageError: the file system refuses.
    """
    rows = [
        (point.step, point.time_ms, name, repr(value))
        for point in read_points(run)
        for name, value in point.values.items()
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    _replace(file, text.getvalue().encode())
    return len(rows)


def write_tensorboard(run: RunDirectory, directory: Path) -> Path:
    """Write `DIRECTORY/RUN/events.out.tfevents...`; `tensorboard --logdir DIRECTORY` shows all runs that lie there.

    Returns:
        The file; an earlier one of this run is replaced.

    Raises:
        MissingInputError: nothing was logged yet, or tensorboardX is not installed.
        ConfigError: a file lies where a directory is to be.
        StorageError: the file system refuses.
    """
    try:
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import RecordWriter
    except ImportError:
        raise MissingInputError(
            "TensorBoard's format is written by the package tensorboardX, which is not installed.",
            next_step="pip install tensorboardX, or write a table: --csv FILE",
        ) from None

    class Buffer(RecordWriter):
        """Records in memory, so that the file appears as a whole."""

        def __init__(self) -> None:
            self._writer = io.BytesIO()

        def contents(self) -> bytes:
            return self._writer.getvalue()

    # Generated modules, whose classes no type checker sees.
    events, summaries = cast(Any, event_pb2), cast(Any, summary_pb2)
    records: Any = Buffer()
    began_s = None
    for point in read_points(run):
        time_s = point.time_ms / 1000
        if began_s is None:
            began_s = time_s
            records.write(events.Event(wall_time=time_s, file_version=_FORMAT).SerializeToString())
        values = [
            summaries.Summary.Value(tag=_NOT_IN_A_TAG.sub("_", name), simple_value=value)
            for name, value in point.values.items()
        ]
        summary = summaries.Summary(value=values)
        records.write(events.Event(wall_time=time_s, step=point.step, summary=summary).SerializeToString())
    file = directory / run.path.name / f"events.out.tfevents.{int(began_s or 0):010d}.cloze"
    _replace(file, records.contents())
    return file


def _replace(file: Path, contents: bytes) -> None:
    taken = next((place for place in file.parents if place.exists() and not place.is_dir()), None)
    if taken is not None:
        raise ConfigError(f"{taken} is a file, not a directory.", next_step="name another place")
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, contents)
