"""Which duplicates a preparation removes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class DedupConfig(BaseModel):
    """Deduplication; every kind can be switched on by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    documents: bool = True
    """Keep the first of all documents with the same text."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in SHORT_NAMES:
            raise ValueError(f"`dedup` is {', '.join(SHORT_NAMES)} or a mapping of settings, not {value!r}")
        return SHORT_NAMES[value]


SHORT_NAMES = MappingProxyType({"exact": {"documents": True}, "none": {"documents": False}})
"""Names for the usual cases."""
