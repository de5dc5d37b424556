"""The configurations that come with cloze, in a clone and in an installed package: found by name, listed, copied.

A name is `pretrain/gpt-tiny`, or `gpt-tiny` where only one folder has it; `.yaml` and `configs/` may be left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.storage import storage_errors
from pipeline.config.problems import nearest

FOLDER = "configs"
SHIPPED = Path(__file__).resolve().parents[2] / FOLDER
"""Beside the packages, in a clone and where they are installed."""
SUFFIX = ".yaml"
PARTS = frozenset({"models", "cluster", "filters", "demo", "road", "ladder"})
"""Folders of configurations that other ones name as `base`, or that one command has for itself: `demo/pretrain` is not
meant by `pretrain`."""
_COMMENT = re.compile(r"#\s?(.*)")
_FILE = re.compile(rf"(?<![\w./-])[\w./-]+{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class ShippedConfig:
    """One of the files."""

    name: str
    """Such as `pretrain/gpt-tiny`."""
    path: Path

    @property
    def about(self) -> str:
        """The first sentence of the comment at the top; empty without one."""
        lines = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if (found := _COMMENT.fullmatch(line)) is None:
                break
            lines.append(found[1].strip())
        return " ".join(lines).partition(". ")[0].rstrip(".:")


def list_shipped() -> list[ShippedConfig]:
    """All of them, by name."""
    return [
        ShippedConfig(path.relative_to(SHIPPED).with_suffix("").as_posix(), path)
        for path in sorted(SHIPPED.rglob(f"*{SUFFIX}"))
    ]


def find_shipped(given: Path | str) -> Path | None:
    """The file of a name, or of a path such as `configs/pretrain/gpt-tiny.yaml` outside of a clone; else None."""
    name = Path(given).as_posix().removeprefix(f"{FOLDER}/").removesuffix(SUFFIX)
    for one in list_shipped():
        folder, _, own = one.name.partition("/")
        if name == one.name or (name == own and folder not in PARTS):
            return one.path
    return None


def find_beside(folder: Path, name: Path | str) -> Path:
    """The file that a configuration in a folder names: beside itself, or one that comes with cloze."""
    beside = folder / name
    return beside if beside.is_file() else find_shipped(name) or beside


def require_shipped(name: str) -> Path:
    """The file of a name.

    Raises:
        MissingInputError: there is none of that name; names the nearest.
    """
    if (found := find_shipped(name)) is not None:
        return found
    near = nearest(name.removesuffix(SUFFIX), names_of_shipped())
    raise MissingInputError(
        f"No configuration {name} comes with cloze.",
        next_step=f"did you mean {near}?" if near else "cloze configs list",
    )


def names_of_shipped() -> list[str]:
    """All names that `find_shipped` knows, the short ones too."""
    full = [one.name for one in list_shipped()]
    return [*full, *(name.partition("/")[2] for name in full if name.partition("/")[0] not in PARTS)]


def copy_shipped(name: str, directory: Path, *, replace: bool = False) -> Path:
    """Write a copy that loads as the original does, wherever it lies; returns its path.

    Raises:
        MissingInputError: there is none of that name.
        ConfigError: the directory is a file, or has one of that name and `replace` is not given.
        StorageError: the file system refuses.
    """
    source = require_shipped(name)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file.", next_step="name a directory")
    copy = directory / source.name
    if copy.exists() and not replace:
        raise ConfigError(f"{copy} exists already.", next_step="name another directory, or add --replace")

    def by_name(found: re.Match[str]) -> str:
        """The name of a file beside the original, which is found from any place."""
        place = (source.parent / found[0]).resolve()
        return f"{FOLDER}/{place.relative_to(SHIPPED.resolve()).as_posix()}" if place.is_file() else found[0]

    text = _FILE.sub(by_name, source.read_text(encoding="utf-8"))
    with storage_errors(copy):
        directory.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    return copy
