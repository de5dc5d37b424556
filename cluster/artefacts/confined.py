"""Confinement: file names from a manifest or a record lead to files of that artefact, and nowhere else.

Anyone who can write to the directory or the store of a manifest can write the manifest. So a name is checked when it is
read, and the path that it leads to again when it is used, because a link may have been put there since.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cluster.artefacts.errors import CorruptArtefactError

_DRIVE = re.compile(r"[A-Za-z]:")
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Matches most names of files, about which there is nothing to ask."""
_LONGEST_BYTES = 255
"""Limit on one part of a name; common file systems take no longer ones."""
_LONGEST_NAME_BYTES = 1024
"""Limit on a whole name, as for the keys of S3; file systems take paths of 4096 bytes."""


def confined_name(name: str) -> str:
    """Return `name` if it is relative, normalised, with forward slashes, and of printable characters.

    Raises:
        ValueError: it is not; gives the reason.
    """
    if _PLAIN.fullmatch(name):
        return name
    reasons = {
        "has a part that is empty, `.` or `..`": not {"", ".", ".."}.isdisjoint(name.split("/")),
        "has a backslash": "\\" in name,
        "begins with a drive": _DRIVE.match(name) is not None,
        "has characters that are not printable": not name.isprintable(),
        "is too long": len(name.encode(errors="replace")) > _LONGEST_NAME_BYTES
        or any(len(part.encode(errors="replace")) > _LONGEST_BYTES for part in name.split("/")),
    }
    if found := [reason for reason, applies in reasons.items() if applies]:
        raise ValueError(f"{name[:200]!r} is not the name of a file inside the artefact: it {found[0]}")
    return name


def inside(directory: Path, name: str) -> Path:
    """The path of a file of an artefact.

    Raises:
        CorruptArtefactError: the name, or a link on the way, leads out of `directory`.
    """
    path = _joined(directory, name)
    if not _leads_into(path, directory, name.count("/") + 1):
        raise CorruptArtefactError(
            f"{path} is a link that leads out of {directory}.", next_step="put the file itself in its place"
        )
    return path


def place_inside(directory: Path, name: str) -> Path:
    """The path of a file to be replaced or moved; unlike for `inside`, the file itself may be a link to anywhere.

    Raises:
        CorruptArtefactError: the name, or a link among the directories on the way, leads out of `directory`.
    """
    path = _joined(directory, name)
    if not _leads_into(path.parent, directory, name.count("/")):
        raise CorruptArtefactError(
            f"{path.parent} is a link that leads out of {directory}.",
            next_step="put the directory itself in its place",
        )
    return path


def _joined(directory: Path, name: str) -> Path:
    try:
        return directory / confined_name(name)
    except ValueError as error:
        raise CorruptArtefactError(f"{directory}: {error}.") from None


def _leads_into(path: Path, directory: Path, depth: int) -> bool:
    """Whether `path`, which lies `depth` names below `directory`, is there when links are followed."""
    # Where none of these names is a link, as nearly always, it is: resolving both paths would look at every directory
    # above them, for each of a hundred thousand files.
    place = str(path)
    for _ in range(depth):
        if os.path.islink(place):
            return os.path.realpath(path).startswith(os.path.join(os.path.realpath(directory), ""))
        place = os.path.dirname(place)
    return True
