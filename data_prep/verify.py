"""Checking artefacts without touching them: which files are not what their manifests say."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError
from cluster.artefacts.manifest import MANIFEST_NAME, read_manifest
from cluster.artefacts.shard_records import SHARD_RECORDS
from cluster.artefacts.storage import Damage, find_damage, is_committed
from data_prep.layout import REPAIR, STAGES, WORK

_MARKS = (SHARD_RECORDS.directory_name, "state.json", "trainer.json", "scores.json")
"""Names by which a directory is known as an artefact's, even if its manifest is lost."""


@dataclass(frozen=True, slots=True)
class Health:
    """The result of verifying one artefact."""

    path: Path
    kind: str
    fingerprint: str
    """Empty when the manifest itself is damaged."""
    num_files: int
    size_bytes: int
    damages: tuple[Damage, ...]


def examine(path: Path) -> list[Health]:
    """Hash every file of an artefact, or of all artefacts under a preparation's output directory, those in `work/` and
    the records of shards among them. Logs of speeds carry no hash.

    Stages that are not finished are not reported. They are made under hidden names: a directory that has a stage's name
    and no manifest has lost it.

    Raises:
        MissingInputError: there is no artefact at or under `path`.
    """
    work = sorted(one for one in (path / WORK).glob("[!.]*") if one.is_dir())
    stages = [
        one for one in (*(path / name for name in STAGES), *work) if one.is_dir() and any(one.iterdir())
    ]
    found = [path] if is_committed(path) or any((path / name).exists() for name in _MARKS) else stages
    if not found:
        raise MissingInputError(
            f"There is no committed artefact at {path}.", next_step="make it with `cloze data prepare CONFIG`"
        )
    return [_examine_one(directory) for directory in found]


def verify_preparation(path: Path) -> list[dict[str, Any]]:
    """Like `examine`, for those who need the data to be good.

    Returns:
        Per artefact `name`, `path`, `kind`, `fingerprint`, `files` and `size_bytes`.

    Raises:
        MissingInputError: there is no artefact at or under `path`.
        CorruptArtefactError: names every damaged file.
    """
    healths = examine(path)
    damaged = [
        f"  {health.path / damage.path}: {damage.reason}" for health in healths for damage in health.damages
    ]
    if damaged:
        num_files = sum(health.num_files for health in healths)
        broken = [health.path for health in healths if health.damages]
        # Finished artefacts do not need it, so a preparation that is confirmed does not make it again.
        only_work = all(one.parent == path / WORK for one in broken)
        removal = f"rm -r {shlex.join(map(str, broken))}  (it only led to the other artefacts, which verify)"
        raise CorruptArtefactError(
            f"{len(damaged)} damaged files under {path}:\n" + "\n".join(damaged),
            kept=f"{num_files - len(damaged)} of {num_files} files verify",
            next_step=removal if only_work else REPAIR,
        )
    return [
        {
            "name": str(health.path.relative_to(path)) if health.path != path else health.kind,
            "path": str(health.path),
            "kind": health.kind,
            "fingerprint": health.fingerprint,
            "files": health.num_files,
            "size_bytes": health.size_bytes,
        }
        for health in healths
    ]


def _examine_one(directory: Path) -> Health:
    try:
        manifest = read_manifest(directory)
    except CorruptArtefactError as error:
        return Health(directory, directory.name, "", 1, 0, (Damage(MANIFEST_NAME, error.problem),))
    shards = [entry.path for entry in manifest.files if entry.rows is not None]
    return Health(
        path=directory,
        kind=manifest.kind,
        fingerprint=manifest.fingerprint,
        num_files=len(manifest.files),
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
        damages=(*find_damage(directory, manifest), *SHARD_RECORDS.find_damage(directory, shards)),
    )
