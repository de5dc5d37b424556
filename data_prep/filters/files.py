"""Files that filters name in their settings: word lists, models."""

from __future__ import annotations

from pathlib import Path

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.manifest import hash_file


def require_file(path: Path, key: str) -> Path:
    """The path, when a file is there.

    Raises:
        MissingInputError: there is none.
    """
    if not path.is_file():
        raise MissingInputError(
            f"{path}, which a filter names as `{key}`, is not a file.",
            next_step=f"correct `{key}`; the file must be at the same place on every machine",
        )
    return path


def file_identity(path: Path | None, key: str) -> str | None:
    """The hash of the file's content, which enters fingerprints in the place of its path.

    Raises:
        MissingInputError: it is not there.
    """
    return None if path is None else hash_file(require_file(path, key))[0]


def read_list(path: Path | None, key: str) -> list[str]:
    """The lines of a UTF-8 text file that hold something; none without a path.

    Raises:
        MissingInputError: it is not there.
    """
    if path is None:
        return []
    found = require_file(path, key).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in found if line.strip()]
