"""Sizes in bytes as people write them, such as 500GB or 2TiB."""

from __future__ import annotations

import re

from pydantic import ByteSize, TypeAdapter, ValidationError

from cluster.artefacts.errors import ConfigError

_SIZE = re.compile(r"\s*(\d*\.)?\d+\s*[A-Za-z]*\s*", re.ASCII)
"""pydantic ignores what follows a size: it reads 1,000GB as one byte."""


def parse_size(text: str, name: str) -> int:
    """Bytes of a size with or without a unit.

    Args:
        name: the setting, with what stands between it and its value, for the error message.

    Raises:
        ConfigError: it is no size.
    """
    try:
        if _SIZE.fullmatch(text):
            return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        pass
    raise ConfigError(
        f"{name}{text} is no size.", next_step=f"write it like {name}85TB, {name}600GB or {name}512MiB"
    )


def shown_size(size_bytes: int) -> str:
    """A size for people, in binary units."""
    return ByteSize(size_bytes).human_readable()
