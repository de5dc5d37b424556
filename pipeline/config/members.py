"""Which classes of settings may stand at a key: what unions, lists and mappings of a configuration are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

TAG_FIELDS = ("kind", "network")
"""Fields that discriminate the members of a union."""


def members_at(kind: Any, location: tuple[Any, ...]) -> set[type]:
    """The config classes that may stand at `location`; indexes, keys of mappings and union tags are passed over."""
    models = members_in(kind)
    for number, part in enumerate(location):
        annotations = [fields_of(model)[part] for model in models if part in fields_of(model)]
        if annotations:
            models = set().union(*map(members_in, annotations))
        elif not is_mapping_key(kind, location[: number + 1]):
            tagged = {m for m in models if part in tags_of(m)}
            models = tagged or models
    return models


def is_mapping_key(kind: Any, location: tuple[Any, ...]) -> bool:
    """Whether the last part of `location` is a key that the user chose, such as the name of a task."""
    if len(location) < 2:
        return False
    holders = members_at(kind, location[:-2])
    fields = [fields_of(model).get(location[-2]) for model in holders]
    return any(get_origin(annotation) in (dict, Mapping) for annotation in fields)


def members_in(annotation: Any) -> set[type]:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return {annotation}
    return set().union(*map(members_in, get_args(annotation)))


def fields_of(model: type) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    hints = get_type_hints(model)
    return {field.name: hints[field.name] for field in dataclass_fields(model)}


def tags_of(model: type) -> set[str]:
    """The names by which a union knows this member: what its `kind`, or its `network`, may be."""
    annotations = fields_of(model)
    return {str(tag) for name in TAG_FIELDS for tag in get_args(annotations.get(name))}


def field_names(models: Iterable[type]) -> set[str]:
    return {name for model in models for name in fields_of(model)}
