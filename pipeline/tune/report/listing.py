"""All scores below a directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.places import Place
from cluster.artefacts.storage import find_artefacts
from cluster.copies import local_copy, manifest_at
from cluster.publication import find_published
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.tune.scores import KIND, SCORES_FILE, read_scores, scores_in
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
    if isinstance(root, Path):
        places = [(path, str(path.relative_to(root))) for path in find_artefacts(root)]
    else:
        places = [(root / name if name else root, name or ".") for name in find_published(root)]
    found = [listed for place, name in places if (listed := _listed(place, name)) is not None]
    return sorted(sorted(found, key=lambda each: each.name), key=lambda each: each.time, reverse=True)


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
        if isinstance(place, Path):
            scores = read_scores(place)
        else:
            # This is the only file that is read from an artefact at a URI.
            scores = scores_in(local_copy(place, kind=KIND, only=[SCORES_FILE]), manifest)
        rows = summarise(scores)
    except ClozeError as error:
        return Listed(place, name, time=time, problem=error.problem)
    except (ValueError, KeyError, TypeError) as error:
        return Listed(place, name, time=time, problem=f"its scores cannot be read: {error}")
    reference = next((entry.uri for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND), None)
    return Listed(place, name, reference, time, rows)
