"""All scores below a directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.manifest import Manifest
from cluster.artefacts.places import Place
from cluster.artefacts.storage import find_artefacts
from cluster.copies import local_copy, manifest_at
from cluster.publication import find_published
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.tune.scores import KIND, SCORES_FILE, Score, read_scores, scores_in
from pipeline.tune.summary import SummaryRow, summarise


@dataclass(frozen=True, slots=True)
class Listed:
    """An artefact of scores, or a damaged one."""

    directory: Place
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


def list_scores(root: Place) -> list[Listed]:
    """Every artefact of scores below `root`, the newest first, then those whose manifest cannot be read.

    Raises:
        MissingInputError: there is no such directory.
    """
    if isinstance(root, Path) and not root.is_dir():
        raise MissingInputError(
            f"There is no directory {root} with scores.",
            next_step="name the directory that `out` of the fine-tuning configuration names",
        )
    found = [listed for place, name in _artefacts(root) if (listed := _listed(place, name)) is not None]
    return sorted(sorted(found, key=lambda each: each.name), key=lambda each: each.time, reverse=True)


def _artefacts(root: Place) -> Iterator[tuple[Place, str]]:
    """Artefacts at or below a directory or URI, with their names relative to it."""
    if isinstance(root, Path):
        yield from ((path, str(path.relative_to(root))) for path in find_artefacts(root))
    else:
        yield from ((f"{root}/{name}".rstrip("/"), name or ".") for name in find_published(root))


def _scores(place: Place, manifest: Manifest) -> list[Score]:
    """The scores of an artefact; of one at a URI, only their file is read."""
    if isinstance(place, Path):
        return read_scores(place)
    return scores_in(local_copy(place, kind=KIND, only=[SCORES_FILE]), manifest)


def _listed(place: Place, name: str) -> Listed | None:
    """None for artefacts of other kinds."""
    try:
        manifest = manifest_at(place)
    except ClozeError as error:
        return Listed(place, name, problem=error.problem)
    if manifest is None or manifest.kind != KIND:
        return None
    time = manifest.created_by.time
    try:
        rows = summarise(_scores(place, manifest))
    except ClozeError as error:
        return Listed(place, name, time=time, problem=error.problem)
    except (ValueError, KeyError, TypeError) as error:
        return Listed(place, name, time=time, problem=f"its scores cannot be read: {error}")
    reference = next((entry.uri for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND), None)
    return Listed(place, name, reference, time, rows)
