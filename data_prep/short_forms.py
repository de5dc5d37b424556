"""Settings that may be written in a shorter form, such as `dedup: full`, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def also_written(*short: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    """The `json_schema_extra` of a model whose validators also take values that fit one of the schemas `short`."""

    def add(schema: dict[str, Any]) -> None:
        about = {name: schema[name] for name in ("title", "description") if name in schema}
        full = dict(schema)
        schema.clear()
        schema.update(about | {"anyOf": [*short, full]})

    return add
