"""Files of artefacts that are not what their manifests say, and the inputs that a preparation rejected."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError
from cluster.artefacts.manifest import MANIFEST_NAME, read_manifest
from cluster.artefacts.places import Place, Uri, as_place
from cluster.artefacts.remote import Remote
from cluster.artefacts.shard_records import SHARD_RECORDS, Reject
from cluster.artefacts.storage import Damage, find_damage, is_committed
from cluster.copies import manifest_at
from cluster.publication import find_published
from data_prep.layout import DEDUP, DOCUMENTS, REPAIR, STAGES, WORK

_MARKS = (SHARD_RECORDS.directory_name, "state.json", "trainer.json", "scores.json")
"""Names of artefacts' directories, which identify one even if its manifest is lost."""


@dataclass(frozen=True, slots=True)
class Health:
    """The result of verifying one artefact."""

    path: Place
    kind: str
    fingerprint: str
    """Empty when the manifest itself is damaged."""
    num_files: int
    size_bytes: int
    damages: tuple[Damage, ...]


def examine(place: Place) -> list[Health]:
    """Hash every file of an artefact, or of all artefacts under a preparation's output directory, those in `work/` and
    the records of shards among them. Logs of speeds carry no hash.

    Stages that are not finished are not reported. They are made under hidden names: a directory that has a stage's name
    and no manifest has lost it. Files at a URI are read through the network, and nothing of them is kept.

    Raises:
        MissingInputError: there is no artefact at or under `place`.
    """
    if isinstance(place, Uri):
        return [_examine_one(as_place(f"{place}/{name}")) for name in find_published(place)]
    found = [place]
    if not is_committed(place) and not any((place / name).exists() for name in _MARKS):
        work = sorted((place / WORK).glob("[!.]*"))
        stages = (*(place / name for name in STAGES), *work)
        found = [one for one in stages if one.is_dir() and any(one.iterdir())]
    if not found:
        raise MissingInputError(
            f"There is no committed artefact at {place}.",
            next_step="make it with `cloze data prepare CONFIG`",
        )
    return [_examine_one(directory) for directory in found]


def verify_preparation(place: Place) -> list[dict[str, Any]]:
    """Like `examine`, for those who need the data to be good.

    Returns:
        Per artefact `name`, `path`, `kind`, `fingerprint`, `files` and `size_bytes`.

    Raises:
        MissingInputError: there is no artefact at or under `place`.
        CorruptArtefactError: names every damaged file.
    """
    healths = examine(place)
    damaged = [
        f"  {health.path / damage.path}: {damage.reason}" for health in healths for damage in health.damages
    ]
    if damaged:
        num_files = sum(health.num_files for health in healths)
        broken = [health.path for health in healths if health.damages]
        remedy = REPAIR
        if isinstance(place, Uri):
            remedy = f"write it again from where it was made: cloze push DIRECTORY {broken[0]} --again"
        elif all(one.parent == place / WORK for one in broken):
            # Finished artefacts do not need it, so a preparation that is confirmed does not make it again.
            only_led = "(it only led to the other artefacts, which verify)"
            remedy = f"rm -r {shlex.join(map(str, broken))}  {only_led}"
        raise CorruptArtefactError(
            f"{len(damaged)} damaged files under {place}:\n" + "\n".join(damaged),
            kept=f"{num_files - len(damaged)} of {num_files} files verify",
            next_step=remedy,
        )
    return [
        {
            "name": str(health.path).removeprefix(f"{place}/") if health.path != place else health.kind,
            "path": str(health.path),
            "kind": health.kind,
            "fingerprint": health.fingerprint,
            "files": health.num_files,
            "size_bytes": health.size_bytes,
        }
        for health in healths
    ]


def _examine_one(place: Place) -> Health:
    try:
        manifest = manifest_at(place) if isinstance(place, Uri) else read_manifest(place)
    except CorruptArtefactError as error:
        return Health(place, place.name, "", 1, 0, (Damage(MANIFEST_NAME, error.problem),))
    assert manifest is not None, "it was found by its manifest"
    if isinstance(place, Uri):
        found = [each for each in Remote.open(place).download(manifest.files, None) if each is not None]
    else:
        shards = [entry.path for entry in manifest.files if entry.rows is not None]
        found = [*find_damage(place, manifest), *SHARD_RECORDS.find_damage(place, shards)]
    size_bytes = sum(entry.size_bytes for entry in manifest.files)
    return Health(place, manifest.kind, manifest.fingerprint, len(manifest.files), size_bytes, tuple(found))


def list_rejects(out: Path) -> list[Reject]:
    """All rejects that are recorded under a preparation's output directory, by shard and place.

    Raises:
        MissingInputError: nothing was prepared there.
    """
    stages = (DOCUMENTS, DEDUP)
    directories = [
        path for stage in stages for path in (out / stage, *sorted(out.glob(f".{stage}.*.partial")))
    ]
    found = [directory for directory in directories if (directory / SHARD_RECORDS.directory_name).is_dir()]
    if not found:
        raise MissingInputError(
            f"No documents were prepared in {out}.", next_step="name the `out` of a preparation"
        )
    return [
        reject
        for directory in found
        for record in SHARD_RECORDS.read_all(directory, anyone=True)
        for reject in record.rejects
    ]
