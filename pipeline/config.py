"""One YAML is one run: load with OmegaConf, merge bases and overrides, validate with pydantic, explain errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from cluster.errors import ConfigError, ConfigProblem, MissingInputError

ConfigT = TypeVar("ConfigT")

BASE_KEY = "base"
"""Names YAML files, relative to the file that names them, which are merged first."""


_TAG_FIELDS = ("kind", "network")
"""What the members of a union are told apart by."""


class Config(BaseModel):
    """Base of every configuration: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class SettingsMisfit(ValueError):
    """Settings each of which is right and which are wrong together; what a validator of a `Config` raises."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("; ".join(f"{problem.key} {problem.message}" for problem in problems))
        self.problems = tuple(problems)


def load_config(kind: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Read a YAML file, apply `a.b=c` overrides (which win) and validate.

    A base, the file and the overrides are merged key by key. Where one chooses another member of a union than the one
    before, such as another `objective.kind`, none of the former member's settings are left.

    Raises:
        MissingInputError: the file, or a file named by `base`, does not exist.
        ConfigError: every problem at once, with key, value, what is allowed and the nearest name.
    """
    merged = _merge(kind, _load_merged(kind, path, ()), parse_overrides(overrides))
    try:
        plain = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {error}", next_step=_interpolation_remedy(str(error))) from None
    return validate(kind, plain, str(path))


def validate(kind: type[ConfigT], plain: Any, where: str) -> ConfigT:
    """Validate plain data as `kind`. `where` names its origin in the ConfigError."""
    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        problems = tuple(problem for detail in _own_errors(error) for problem in _explain(kind, detail))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{where}: {count} in the configuration:", problems=problems) from None


def _own_errors(error: ValidationError) -> list[Mapping[str, Any]]:
    """The errors, without those that only follow from others: a list of wrong items is not also too short."""
    details: list[Mapping[str, Any]] = [*error.errors(include_url=False)]
    places = [tuple(detail["loc"]) for detail in details]

    def follows(place: tuple[Any, ...]) -> bool:
        return any(other != place and other[: len(place)] == place for other in places)

    return [
        detail for detail in details if detail["type"] != "too_short" or not follows(tuple(detail["loc"]))
    ]


def parse_overrides(overrides: Sequence[str]) -> DictConfig:
    """Turn `["a.b=c"]` into a config.

    Raises:
        ConfigError: an override has no `=` or no key.
    """
    wrong = tuple(
        ConfigProblem(override, "", "an override is written key=value, such as optimizer.lr=1e-4")
        for override in overrides
        if not override.partition("=")[1] or not override.partition("=")[0].strip()
    )
    if wrong:
        raise ConfigError("Overrides that cannot be read:", problems=wrong)
    try:
        return OmegaConf.from_dotlist(list(overrides))
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"Overrides {' '.join(overrides)} cannot be read: {error}") from None


def to_plain(config: BaseModel) -> dict[str, Any]:
    """The resolved configuration as JSON-like data."""
    return config.model_dump(mode="json")


def to_yaml(config: BaseModel) -> str:
    """The resolved configuration as YAML that `load_config` reads back."""
    return OmegaConf.to_yaml(OmegaConf.create(to_plain(config)))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _load_merged(kind: Any, path: Path, chain: tuple[Path, ...]) -> DictConfig:
    resolved = path.resolve()
    if resolved in chain:
        raise ConfigError(f"{path}: `base` leads back to itself: {' -> '.join(map(str, (*chain, resolved)))}")
    if not path.is_file():
        near = nearest(path.name, [p.name for p in path.parent.glob("*.yaml")])
        hint = (
            f"did you mean {path.parent / near}?" if near else "`ls configs/*` lists those that are shipped"
        )
        named_by = f" (named by `base` in {chain[-1]})" if chain else ""
        raise MissingInputError(f"There is no configuration file {path}{named_by}.", next_step=hint)
    try:
        loaded = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} must hold `key: value` pairs, not a list or a single value.")
    bases = loaded.pop(BASE_KEY, None) or []
    names = [bases] if isinstance(bases, str) else list(bases)
    merged = OmegaConf.create({})
    for name in names:
        merged = _merge(kind, merged, _load_merged(kind, path.parent / name, (*chain, resolved)))
    return _merge(kind, merged, loaded)


def _merge(kind: Any, lower: DictConfig, upper: DictConfig) -> DictConfig:
    """`lower` with what `upper` says otherwise."""
    below, above = (OmegaConf.to_container(layer, resolve=False) for layer in (lower, upper))
    replaced = list(_replaced(_models_in(kind), below, above))
    merged = OmegaConf.merge(lower, upper)
    for place in replaced:
        OmegaConf.update(merged, place, OmegaConf.select(upper, place), merge=False)
    assert isinstance(merged, DictConfig)
    return merged


def _replaced(models: set[type], lower: Any, upper: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of the mappings in `upper` that are another member of a union than `lower` has there."""
    if not isinstance(lower, Mapping) or not isinstance(upper, Mapping):
        return
    for tag in _TAG_FIELDS:
        before, after = (
            {each for each in models if str(it.get(tag)) in _tags(each)} for it in (lower, upper)
        )
        if before and after and not before & after:
            yield key
            return
    for name in (name for name in upper if name in lower):
        below = [_annotations(model)[name] for model in models if name in _annotations(model)]
        members = set().union(*map(_models_in, below))
        yield from _replaced(members, lower[name], upper[name], f"{key}.{name}".lstrip("."))


def _interpolation_remedy(message: str) -> str:
    if "Environment variable" in message:
        return "set the variable that the message names, such as `export CLOZE_DATA=/path/to/corpora`"
    return "correct the ${...} expression"


def _explain(kind: Any, detail: Mapping[str, Any]) -> list[ConfigProblem]:
    location = tuple(detail["loc"])
    path = ".".join(map(str, _without_tags(kind, location)))
    value, context = detail.get("input"), detail.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, SettingsMisfit):
        return [replace(each, key=f"{path}.{each.key}".lstrip(".")) for each in cause.problems]
    key = path or "(top level)"
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        allowed = sorted(_field_names(_models_at(kind, location[:-1])))
        message = f"unknown key{_did_you_mean(str(location[-1]), allowed)}; allowed are {', '.join(allowed)}"
    elif detail["type"] in ("missing", "missing_argument"):
        return [ConfigProblem(key, "", "is required")]
    elif detail["type"] == "literal_error":
        message = _one_of(value, str(context["expected"]))
    elif detail["type"] == "union_tag_invalid":
        key, value = f"{key}.{_tag_name(kind, location)}", context["tag"]
        message = _one_of(value, str(context["expected_tags"]))
    elif detail["type"] in ("union_tag_not_found", "model_attributes_type", "model_type", "dataclass_type"):
        name = _tag_name(kind, location)
        tags = sorted(set().union(*map(_tags, _models_at(kind, location))))
        message = "must hold `key: value` pairs" + (
            f", among them `{name}`, one of {', '.join(tags)}" if tags else ""
        )
    else:
        message = str(detail["msg"]).removeprefix("Value error, ")
        if isinstance(value, Mapping | BaseModel | ArgsKwargs):
            return [ConfigProblem(key, "", message)]
    return [ConfigProblem(key, _shorten(value), message)]


def _one_of(value: Any, expected: str) -> str:
    choices = [choice.strip("' ") for choice in expected.replace(" or ", ", ").split(",")]
    return f"must be one of {', '.join(choices)}{_did_you_mean(str(value), choices)}"


def _tag_name(kind: Any, location: tuple[Any, ...]) -> str:
    """The field that tells the members of the union at `location` apart."""
    fields = _field_names(_models_at(kind, location))
    return next((name for name in _TAG_FIELDS if name in fields), "")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The allowed name that `name` was probably meant to be; empty when none is near."""
    return next(iter(difflib.get_close_matches(name, list(allowed), n=1)), "")


def _did_you_mean(name: str, allowed: Iterable[str]) -> str:
    near = nearest(name, allowed)
    return f"; did you mean {near}?" if near else ""


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _models_at(kind: Any, location: tuple[Any, ...]) -> set[type]:
    """The config classes that may stand at `location`; list indexes and union tags are passed over."""
    models = _models_in(kind)
    for part in location:
        annotations = [_annotations(model)[part] for model in models if part in _annotations(model)]
        if annotations:
            models = set().union(*map(_models_in, annotations))
        else:
            tagged = {m for m in models if part in _tags(m)}
            models = tagged or models
    return models


def _without_tags(kind: Any, location: tuple[Any, ...]) -> list[Any]:
    """The location as a user writes it: the names of union members, which pydantic puts in, are left out."""
    return [
        part
        for number, part in enumerate(location)
        if not any(
            part in _tags(model) and part not in _annotations(model)
            for model in _models_at(kind, location[:number])
        )
    ]


def _models_in(annotation: Any) -> set[type]:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return {annotation}
    return set().union(*map(_models_in, get_args(annotation)))


def _annotations(model: type) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    hints = get_type_hints(model)
    return {field.name: hints[field.name] for field in dataclass_fields(model)}


def _tags(model: type) -> set[str]:
    """The names by which a union knows this member: what its `kind`, or its `network`, may be."""
    annotations = _annotations(model)
    return {str(tag) for name in _TAG_FIELDS for tag in get_args(annotations.get(name))}


def _field_names(models: Iterable[type]) -> set[str]:
    return {name for model in models for name in _annotations(model)}
