"""Errors of configurations: key, value, allowed values, and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ConfigProblem

TAG_FIELDS = ("kind", "network")
"""Fields that discriminate the members of a union."""


def members_at(kind: Any, location: tuple[Any, ...]) -> set[type]:
    """The config classes that are allowed at `location`; indexes, keys of mappings and union tags are passed over."""
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
    """The names of this member in a union: the values of its `kind` or `network`."""
    annotations = fields_of(model)
    return {str(tag) for name in TAG_FIELDS for tag in get_args(annotations.get(name))}


def field_names(models: Iterable[type]) -> set[str]:
    return {name for model in models for name in fields_of(model)}


class SettingsMisfit(ValueError):
    """Settings that are valid singly but conflict; raised by a validator of a `Config`."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("; ".join(f"{problem.key} {problem.message}" for problem in problems))
        self.problems = tuple(problems)


def problems_of(kind: Any, plain: Any) -> list[ConfigProblem]:
    """Everything that is wrong with plain data as a `kind`, in the order of its keys; empty when nothing is.

    Settings with a misspelt `kind` are checked as the kind with the nearest name.
    """
    try:
        TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        details = _own_errors(error)
    else:
        return []
    problems: list[ConfigProblem] = []
    for detail in details:
        problems += _explain(kind, detail)
        if detail["type"] == "union_tag_invalid":
            problems += _below_misspelt_tag(kind, plain, detail)
    return problems


def _below_misspelt_tag(kind: Any, plain: Any, detail: Mapping[str, Any]) -> list[ConfigProblem]:
    """Further errors of a member of a union whose tag is wrong."""
    location, given = tuple(detail["loc"]), detail["input"]
    if not isinstance(given, Mapping):
        return []
    members = members_at(kind, location)
    near = nearest(str(detail["ctx"]["tag"]), set().union(*map(tags_of, members)))
    key = ".".join(map(str, _without_tags(kind, location)))
    if not near:
        allowed = field_names(members)
        return [
            _unknown(f"{key}.{name}", given[name], name, allowed) for name in given if name not in allowed
        ]
    corrected = _with(plain, _without_tags(kind, location), {**given, _tag_name(kind, location): near})
    return [problem for problem in problems_of(kind, corrected) if problem.key.startswith(f"{key}.")]


def _with(plain: Any, place: Sequence[Any], value: Any) -> Any:
    """Plain data with another value at a place."""
    if not place:
        return value
    changed = dict(plain) if isinstance(plain, Mapping) else list(plain)
    changed[place[0]] = _with(changed[place[0]], place[1:], value)
    return changed


def _own_errors(error: ValidationError) -> list[Mapping[str, Any]]:
    """The errors, without those that only follow from others: a list of wrong items is not also too short."""
    details: list[Mapping[str, Any]] = [*error.errors(include_url=False)]
    places = [tuple(detail["loc"]) for detail in details]

    def follows(place: tuple[Any, ...]) -> bool:
        return any(other != place and other[: len(place)] == place for other in places)

    return [
        detail for detail in details if detail["type"] != "too_short" or not follows(tuple(detail["loc"]))
    ]


def _explain(kind: Any, detail: Mapping[str, Any]) -> list[ConfigProblem]:
    location = tuple(detail["loc"])
    path = ".".join(map(str, _without_tags(kind, location)))
    value, context = detail.get("input"), detail.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, SettingsMisfit):
        return [replace(each, key=f"{path}.{each.key}".lstrip(".")) for each in cause.problems]
    key = path or "(top level)"
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return [_unknown(key, value, str(location[-1]), field_names(members_at(kind, location[:-1])))]
    elif detail["type"] in ("missing", "missing_argument"):
        return [ConfigProblem(key, "", "is required")]
    elif detail["type"] == "literal_error":
        message = _one_of(value, str(context["expected"]))
    elif detail["type"] == "union_tag_invalid":
        key, value = f"{key}.{_tag_name(kind, location)}", context["tag"]
        message = _one_of(value, str(context["expected_tags"]))
    elif detail["type"] in ("union_tag_not_found", "model_attributes_type", "model_type", "dataclass_type"):
        name = _tag_name(kind, location)
        tags = sorted(set().union(*map(tags_of, members_at(kind, location))))
        message = "must hold `key: value` pairs" + (
            f", among them `{name}`, one of {', '.join(tags)}" if tags else ""
        )
    else:
        message = str(detail["msg"]).removeprefix("Value error, ")
        if isinstance(value, Mapping | BaseModel | ArgsKwargs):
            return [ConfigProblem(key, "", message)]
    return [ConfigProblem(key, _shorten(value), message)]


def _unknown(key: str, value: Any, name: str, allowed: Iterable[str]) -> ConfigProblem:
    names = sorted(allowed)
    message = f"unknown key{did_you_mean(name, names)}; allowed are {', '.join(names)}"
    return ConfigProblem(key, _shorten(value), message)


def _one_of(value: Any, expected: str) -> str:
    choices = [choice.strip("' ") for choice in expected.replace(" or ", ", ").split(",")]
    return f"must be one of {', '.join(choices)}{did_you_mean(str(value), choices)}"


def _tag_name(kind: Any, location: tuple[Any, ...]) -> str:
    """The field that distinguishes the members of the union at `location`."""
    fields = field_names(members_at(kind, location))
    return next((name for name in TAG_FIELDS if name in fields), "")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The allowed name that `name` was probably meant to be; empty when none is near."""
    return next(iter(difflib.get_close_matches(name, list(allowed), n=1)), "")


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The nearest allowed name as the end of a message; empty when none is near."""
    near = nearest(name, allowed)
    return f"; did you mean {near}?" if near else ""


def _shorten(value: Any) -> str:
    text = without_credentials(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _without_tags(kind: Any, location: tuple[Any, ...]) -> list[Any]:
    """The location as a user writes it: the names of union members, which pydantic puts in, are left out."""
    return [
        part
        for number, part in enumerate(location)
        if is_mapping_key(kind, location[: number + 1])
        or not any(
            part in tags_of(model) and part not in fields_of(model)
            for model in members_at(kind, location[:number])
        )
    ]
