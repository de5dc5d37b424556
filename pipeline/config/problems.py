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


def _follow(kind: Any, plain: Any, location: Sequence[Any]) -> tuple[list[Any], set[type]]:
    """The place of an error as a user writes it, and the classes of settings that are allowed there.

    Args:
        location: pydantic's, which has the tag of a member of a union before the keys of its settings. The data has
            no such key.
    """
    place: list[Any] = []
    members, is_free = members_in(kind), False
    for part in location:
        is_list = isinstance(plain, list | tuple)
        is_there = part in range(len(plain)) if is_list else isinstance(plain, Mapping) and part in plain
        tagged = {member for member in members if part in tags_of(member)}
        if tagged and not is_there:
            members = tagged
            continue
        place.append(part)
        plain = plain[part] if is_there else None
        annotations = [fields_of(member)[part] for member in members if part in fields_of(member)]
        if annotations and not is_free:
            members = set().union(*map(members_in, annotations))
            # The next part is a key that the user chose, such as the name of a task.
            is_free = any(get_origin(annotation) in (dict, Mapping) for annotation in annotations)
        else:
            is_free = False
    return place, members


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
        problems += _explain(kind, plain, detail)
        if detail["type"] == "union_tag_invalid":
            problems += _below_misspelt_tag(kind, plain, detail)
    return problems


def _below_misspelt_tag(kind: Any, plain: Any, detail: Mapping[str, Any]) -> list[ConfigProblem]:
    """Further errors of a member of a union whose tag is wrong."""
    given = detail["input"]
    if not isinstance(given, Mapping):
        return []
    place, members = _follow(kind, plain, detail["loc"])
    near = nearest(str(detail["ctx"]["tag"]), set().union(*map(tags_of, members)))
    key = ".".join(map(str, place))
    if not near:
        allowed = field_names(members)
        return [
            _unknown(f"{key}.{name}", given[name], name, allowed) for name in given if name not in allowed
        ]
    corrected = _with(plain, place, {**given, _tag_name(members): near})
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


def _explain(kind: Any, plain: Any, detail: Mapping[str, Any]) -> list[ConfigProblem]:
    location = detail["loc"]
    place, members = _follow(kind, plain, location)
    path = ".".join(map(str, place))
    value, context = detail.get("input"), detail.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, SettingsMisfit):
        return [replace(each, key=f"{path}.{each.key}".lstrip(".")) for each in cause.problems]
    key = path or "(top level)"
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return [_unknown(key, value, str(location[-1]), field_names(_follow(kind, plain, location[:-1])[1]))]
    elif detail["type"] in ("missing", "missing_argument"):
        return [ConfigProblem(key, "", "is required")]
    elif detail["type"] == "literal_error":
        message = _one_of(value, str(context["expected"]))
    elif detail["type"] == "union_tag_invalid":
        key, value = f"{key}.{_tag_name(members)}", context["tag"]
        message = _one_of(value, str(context["expected_tags"]))
    elif detail["type"] in ("union_tag_not_found", "model_attributes_type", "model_type", "dataclass_type"):
        name = _tag_name(members)
        tags = sorted(set().union(*map(tags_of, members)))
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


def _tag_name(members: Iterable[type]) -> str:
    """The field that distinguishes the members of a union."""
    fields = field_names(members)
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
