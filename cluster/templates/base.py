"""The base of all kinds of clusters: texts that cannot break out of the files they go into, and rendering, which quotes
every value for its file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.artefacts.credentials import has_credentials
from cluster.artefacts.errors import ConfigError, StorageError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors

NEXT = "NEXT.md"
"""The rendered file with the commands to type next."""
SETTINGS = "settings.yaml"
"""The settings, to render the same files again."""

Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
"""A DNS label with room for suffixes: lower-case letters, digits and hyphens, 40 characters at most."""
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@,=+-]*$")]
"""A text without spaces and quotes, for places where nothing can be quoted, such as #SBATCH lines."""
Host = Annotated[str, Field(pattern=r"^([a-z_][a-z0-9_-]*@)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")]
"""A host name or an IPv4 address, maybe with a user: it cannot be taken for an option of ssh."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)KEY($|_)|ACCESS_KEY|API_?KEY", re.I)


def _one_line(text: str) -> str:
    """Refuse line breaks and control characters, and credentials: rendered files are copied and committed."""
    if _CONTROL.search(text):
        raise ValueError("must be one line without control characters")
    if has_credentials(text):
        raise ValueError("holds credentials, and rendered files hold none")
    return text


Text = Annotated[str, AfterValidator(_one_line)]
"""Any text in one line; it is quoted where it is written."""


def _absolute(path: str) -> str:
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise ValueError("must be an absolute path without `:` and `..`")
    return path.rstrip("/") or "/"


AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
"""A directory or file, the same on every machine."""


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be read as a command: {error}") from None
    if not words:
        raise ValueError("names no verb; such as `pretrain /shared/run.yaml`")
    if words[0] == "cloze":
        raise ValueError("begins with the verb, without `cloze`")
    return shlex.join(words)


Verb = Annotated[Text, AfterValidator(_command)]
"""A verb of cloze with its arguments, as typed. A shell would get every word quoted."""


def _variables(variables: Mapping[str, str]) -> Mapping[str, str]:
    wrong = [name for name in variables if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: letters, digits and _ make the name of a variable")
    if secret := [name for name in variables if _SECRET_NAME.search(name)]:
        raise ValueError(f"{', '.join(secret)} would hold a secret in clear; set it on the machines instead")
    return dict(sorted(variables.items()))


Variables = Annotated[dict[str, Text], AfterValidator(_variables)]
"""Environment variables by name."""


class Settings(BaseModel):
    """Base of settings: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClusterTemplate(Settings):
    """Settings of a kind of cluster, which know the files that follow from them."""

    kind: str
    """The kind of cluster, for which the folder of its templates is named."""

    def files(self) -> tuple[str, ...]:
        """Names of the files to render, in order of use; `NAME.j2` is the template."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """The names that templates know: `s` are these settings."""
        return {"s": self}


def render(settings: ClusterTemplate) -> dict[str, str]:
    """The contents of all files by name, the same for the same settings."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def rendered(name: str) -> str:
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / settings.kind.replace("-", "_")),
            # Applied to the value of every expression, so that no template can forget to quote.
            finalize=QUOTING.get(Path(name).suffix, for_shell),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        return environment.get_template(f"{name}.j2").render(settings.values())

    return {name: rendered(name) for name in (*settings.files(), NEXT)}


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
    changed = dict(files)
    for name, text in files.items():
        with suppress(OSError, UnicodeDecodeError):
            if (directory / name).read_text(encoding="utf-8") == text:
                del changed[name]
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


def for_yaml(value: Any) -> str:
    """A value as YAML writes it in one line: JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def for_shell(value: Any) -> str:
    """A value as one word of a shell command; nothing for an empty list, and all words of a longer one."""
    return shlex.join(map(str, value)) if isinstance(value, list | tuple) else shlex.quote(str(value))


QUOTING: Mapping[str, Callable[[Any], str]] = {".yaml": for_yaml}
"""How values are quoted, by the suffix of the file; shell scripts and pages of commands otherwise."""
