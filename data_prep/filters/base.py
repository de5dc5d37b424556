"""The interface of a filter: it passes a document on, maybe changed, or drops it with a reason.

A filter is a module in this package with its settings, whose `build` returns a function from a document to `Passed`
or `Dropped`. `data_prep/filters/__init__.py` names them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.manifest import hash_file
from data_prep.document import Document


class FilterConfig(BaseModel, ABC):
    """Settings of all filters; every subclass narrows `kind` to its own name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str

    def __hash__(self) -> int:
        """Settings may be mappings, and configurations are keys."""
        return hash(self.model_dump_json())

    def identity(self) -> dict[str, Any]:
        """The settings as they enter fingerprints; a file that they name counts by its content, not its place.

        Raises:
            MissingInputError: the file does not exist.
        """
        files = {
            name: hash_file(require_file(path, name))[0] for name, path in self if isinstance(path, Path)
        }
        return self.model_dump(mode="json") | files

    @abstractmethod
    def build(self) -> Apply:
        """The filter; what it needs is loaded.

        Raises:
            MissingInputError: a file that the settings name does not exist.
        """


@dataclass(frozen=True, slots=True)
class Passed:
    """The document is kept; a changed document is a new object."""

    document: Document
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further counts, such as the number of masked e-mail addresses; summed over documents."""

    @classmethod
    def with_text(cls, document: Document, text: str, **counts: int) -> Passed:
        """The document with this text; the very same object when that is its text already."""
        same = text == document.text
        return cls(document if same else replace(document, text=text), counts)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The document ends here."""

    reason: str
    """A short snake_case name of the rule that failed."""


Apply = Callable[[Document], Passed | Dropped]
"""A filter at work. A pure function: what it does to a document depends on that document and the settings only."""


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
