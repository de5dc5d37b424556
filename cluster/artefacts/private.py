"""A directory for copies and compiled code that other users of the machine cannot write to.

What lies there is read back without a manifest, and numba's compiled loops and torch's operators are code.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def private_cache() -> Path:
    """~/.cache/cloze; where that cannot be written, a directory for temporary files that this user owns."""
    try:
        usual = Path.home() / ".cache" / "cloze"
    except RuntimeError:  # an unknown home
        usual = None
    for candidate in (usual, Path(tempfile.gettempdir()) / f"cloze-{os.getuid()}"):
        # In a directory that all users share, another one may have put a link.
        if candidate is not None and _make_private(candidate, links=candidate == usual):
            return candidate
    return Path(tempfile.mkdtemp(prefix="cloze-"))


def _make_private(directory: Path, *, links: bool) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat(follow_symlinks=links)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if found.st_mode & 0o022:
            directory.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)
