"""Files of artefacts that are not what their manifests say, and the inputs that a preparation rejected."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError
from cluster.artefacts.manifest import MANIFEST_NAME, Manifest, read_manifest
from cluster.artefacts.places import Place, Uri, as_place
from cluster.artefacts.shard_records import SHARD_RECORDS, Reject
from cluster.artefacts.storage import Damage, is_committed
from cluster.copies import damage_at, manifest_at
from cluster.publication import find_published
from data_prep.layout import DEDUP, DOCUMENTS, REPAIR, STAGES, WORK

_MARKS = (SHARD_RECORDS.directory_name, "state.json", "trainer.json", "scores.json")
"""Names of artefacts' directories, which identify one even if its manifest is lost."""


def verify_preparation(place: Place) -> list[dict[str, Any]]:
    """Hash every file of an artefact, or of all artefacts under a preparation's output directory, those in `work/` and
    the records of shards among them. Logs of speeds carry no hash.

    Stages that are not finished are not reported. They are made under hidden names: a directory that has a stage's name
    and no manifest has lost it. Files at a URI are read through the network, and nothing of them is kept.

    Returns:
        Per artefact `name`, `path`, `kind`, `fingerprint`, `files` and `size_bytes`.

    Raises:
        MissingInputError: there is no artefact at or under `place`.
        CorruptArtefactError: names every damaged file.
    """
    verified, damaged, broken, num_files = [], [], [], 0
    for path in _artefacts(place):
        manifest, damages = examine(path)
        entries = manifest.files if manifest is not None else [MANIFEST_NAME]
        num_files += len(entries)
        damaged += [f"  {path / damage.path}: {damage.reason}" for damage in damages]
        broken += [path] if damages else []
        if manifest is not None:
            verified.append(
                {
                    "name": str(path).removeprefix(f"{place}/") if path != place else manifest.kind,
                    "path": str(path),
                    "kind": manifest.kind,
                    "fingerprint": manifest.fingerprint,
                    "files": len(manifest.files),
                    "size_bytes": sum(entry.size_bytes for entry in manifest.files),
                }
            )
    if not damaged:
        return verified
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


def _artefacts(place: Place) -> list[Place]:
    if isinstance(place, Uri):
        return [as_place(f"{place}/{name}") for name in find_published(place)]
    if is_committed(place) or any((place / name).exists() for name in _MARKS):
        return [place]
    places = (*(place / name for name in STAGES), *sorted((place / WORK).glob("[!.]*")))
    found: list[Place] = [one for one in places if one.is_dir() and any(one.iterdir())]
    if not found:
        raise MissingInputError(
            f"There is no committed artefact at {place}.",
            next_step="make it with `cloze data prepare CONFIG`",
        )
    return found


def examine(place: Place) -> tuple[Manifest | None, list[Damage]]:
    """The manifest of an artefact, None where it is damaged itself, and the damage that is found."""
    try:
        manifest = manifest_at(place) if isinstance(place, Uri) else read_manifest(place)
    except CorruptArtefactError as error:
        return None, [Damage(MANIFEST_NAME, error.problem)]
    assert manifest is not None, "it was found by its manifest"
    found = damage_at(place, manifest)
    if isinstance(place, Path):
        shards = [entry.path for entry in manifest.files if entry.rows is not None]
        found += SHARD_RECORDS.find_damage(place, shards)
    return manifest, found


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
