"""All scores below a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.manifest import MANIFEST_NAME, read_manifest
from pipeline.checkpoints.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.finetune.scores import KIND, read_scores
from pipeline.finetune.summary import SummaryRow, summarise


@dataclass(frozen=True, slots=True)
class Listed:
    """An artefact of scores, or a damaged one."""

    directory: Path
    name: str
    """Its directory, relative to the listed one."""
    reference: str | None = None
    """The checkpoint; None without one, or where the artefact is damaged."""
    time: str = ""
    """When it was made, ISO 8601."""
    rows: list[SummaryRow] = field(default_factory=list)
    """A line per task and initial weights, and one for each baseline."""
    problem: str = ""
    """The damage."""

    @property
    def tasks(self) -> list[str]:
        """Names of its tasks."""
        return list(dict.fromkeys(row.task for row in self.rows))


def list_scores(root: Path) -> list[Listed]:
    """Every artefact of scores below `root`, the newest first, then those whose manifest cannot be read.

    Raises:
        MissingInputError: there is no such directory.
    """
    if not root.is_dir():
        raise MissingInputError(
            f"There is no directory {root} with scores.",
            next_step="name the directory that `out` of the fine-tuning configuration names",
        )
    found = [listed for path in _artefacts(root) if (listed := _listed(path, root)) is not None]
    return sorted(sorted(found, key=lambda each: each.name), key=lambda each: each.time, reverse=True)


def _artefacts(root: Path) -> Iterator[Path]:
    """Directories with a manifest; neither the insides of artefacts nor hidden directories are looked into."""
    for directory, below, files in os.walk(root):
        if MANIFEST_NAME in files:
            below.clear()
            yield Path(directory)
        below[:] = sorted(name for name in below if not name.startswith("."))


def _listed(path: Path, root: Path) -> Listed | None:
    """None for artefacts of other kinds."""
    name = str(path.relative_to(root))
    try:
        manifest = read_manifest(path)
    except ClozeError as error:
        return Listed(path, name, problem=error.problem)
    if manifest.kind != KIND:
        return None
    time = manifest.created_by.time
    try:
        rows = summarise(read_scores(path))
    except ClozeError as error:
        return Listed(path, name, time=time, problem=error.problem)
    except (ValueError, KeyError, TypeError) as error:
        return Listed(path, name, time=time, problem=f"its scores cannot be read: {error}")
    reference = next((entry.uri for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND), None)
    return Listed(path, name, reference, time, rows)
