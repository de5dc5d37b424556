"""Rendering: templates and settings become files; every value is quoted for the file that it goes into."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.artefacts.errors import ConfigError, StorageError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from cluster.templates.base import ClusterTemplate

NEXT = "NEXT.md"
"""The rendered file with the commands to type next."""
SETTINGS = "settings.yaml"
"""The settings, from which the same files are rendered again."""
_ROOT = Path(__file__).parent
_TEMPLATE = ".j2"


def render(settings: ClusterTemplate) -> dict[str, str]:
    """The contents of all files by name, the same for the same settings."""
    return {name: _render(settings, name) for name in (*settings.files(), NEXT)}


def write(directory: Path, files: Mapping[str, str], *, replace: bool) -> None:
    """Write rendered files; scripts can be executed.

    Args:
        replace: whether files that differ are replaced.

    Raises:
        ConfigError: a file with other contents is there.
        StorageError: the file system refuses.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file.", next_step="name a directory with --out")
    changed = {name: text for name, text in files.items() if not _holds(directory / name, text)}
    if kept := [name for name in changed if (directory / name).exists() and not replace]:
        raise ConfigError(
            f"{directory} has other versions of {', '.join(kept)}.",
            next_step="add --replace to render them again, or name another directory with --out",
        )
    try:
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for name, text in changed.items():
                write_durably(directory / name, text.encode())
                (directory / name).chmod(0o755 if text.startswith("#!") else 0o644)
    except OSError as error:
        raise StorageError(
            f"Cannot write {directory}: {error.strerror}.", next_step="name another directory with --out"
        ) from error


def _render(settings: ClusterTemplate, name: str) -> str:
    suffix = Path(name).suffix
    environment = Environment(
        loader=FileSystemLoader(_ROOT / settings.folder),
        # Applied to the value of every expression, so that no template can forget to quote.
        finalize=QUOTING.get(suffix, for_shell),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name + _TEMPLATE).render(settings.values())


def for_yaml(value: Any) -> str:
    """A value as YAML writes it in one line: JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def for_shell(value: Any) -> str:
    """A value as one word of a shell command; nothing for an empty list, and all words of a longer one."""
    return shlex.join(map(str, value)) if isinstance(value, list | tuple) else shlex.quote(str(value))


QUOTING: Mapping[str, Callable[[Any], str]] = {".yaml": for_yaml}
"""How values are quoted, by the suffix of the file; shell scripts and pages of commands otherwise."""


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False
