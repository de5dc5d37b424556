"""One YAML is one run: load with OmegaConf, merge bases and overrides, validate with pydantic, explain errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cluster.artefacts.errors import ConfigError, ConfigProblem, MissingInputError
from cluster.artefacts.places import folded_uri
from pipeline.config.problems import (
    TAG_FIELDS,
    did_you_mean,
    fields_of,
    members_in,
    nearest,
    problems_of,
    tags_of,
)
from pipeline.config.shipped import FOLDER, SUFFIX, find_beside, find_shipped, names_of_shipped

if TYPE_CHECKING:
    from cluster.templates.base import ClusterTemplate

ConfigT = TypeVar("ConfigT")

BASE_KEY = "base"
"""Names YAML files which are merged first: relative to the file that names them, or `configs/...` that cloze ships."""
_INTERPOLATION = re.compile(r"(\\*)\$\{")


class Config(BaseModel):
    """Base of every configuration: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def load_config(kind: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Read a YAML file, apply `a.b=c` overrides (which win) and validate.

    A base, the file and the overrides are merged key by key. Where one chooses another member of a union than the one
    before, such as another `objective.kind`, none of the former member's settings are left.

    Raises:
        MissingInputError: the file, or a file named by `base`, does not exist.
        ConfigError: every problem at once, with key, value, allowed values and the nearest name.
    """
    return validate(kind, load_plain(kind, path, overrides), str(path))


def load_template(given: str, overrides: Sequence[str] = ()) -> ClusterTemplate:
    """Settings of a cluster.

    Args:
        given: one of `cluster.templates.TEMPLATES`, which takes the settings that come with cloze, or a YAML file with
            `kind`.

    Raises:
        ConfigError: every problem at once, or there is no such kind.
        MissingInputError: there is no such file.
    """
    from cluster.templates import TEMPLATES

    path, kind = Path(f"{FOLDER}/cluster/{given}{SUFFIX}" if given in TEMPLATES else given), given
    if given in TEMPLATES or path.is_file() or given.endswith(SUFFIX):
        kind = str(load_plain(Config, path, overrides).get("kind") or f"in {path}")
    if kind in TEMPLATES:
        return load_config(TEMPLATES[kind], path, overrides)
    raise ConfigError(
        f"There is no kind of clusters {kind}{did_you_mean(kind, TEMPLATES) or '.'}",
        next_step=f"one of {', '.join(TEMPLATES)}, or a YAML file whose `kind` is one of them",
    )


def load_plain(kind: Any, path: Path, overrides: Sequence[str] = ()) -> Any:
    """Like `load_config`, without validation: the merged settings as plain data, `${...}` resolved."""
    given = OmegaConf.to_container(parse_overrides(overrides), resolve=False)
    return _resolved(_merge(members_in(kind), load_merged(kind, path), given), str(path))


def with_overrides(kind: Any, plain: Mapping[str, Any], overrides: Sequence[str], where: str) -> Any:
    """Plain settings of a `kind` with `a.b=c` overrides merged into them. The settings are data, such as those that a
    run stored: `${...}` is resolved in the overrides, and nowhere else."""
    return _merge(members_in(kind), plain, _resolved(parse_overrides(overrides), where))


def _resolved(settings: Any, where: str) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    except OmegaConfBaseException as error:
        raise _interpolation_error(where, error) from None


def validate(kind: type[ConfigT], plain: Any, where: str) -> ConfigT:
    """Validate plain data as `kind`. `where` names its origin in the ConfigError."""
    try:
        found = TypeAdapter(kind).validate_python(plain)
        problems = tuple(_uris_for_paths(found))
        if not problems:
            return found
    except ValidationError:
        problems = tuple(problems_of(kind, plain))
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise ConfigError(f"{where}: {count} in the configuration:", problems=problems)


def _uris_for_paths(value: Any, key: str = "", remedy: str = "") -> Iterator[ConfigProblem]:
    """Settings that are paths, and were given as URIs, which would become relative paths."""
    if isinstance(value, BaseModel):
        publishes = "publish" in type(value).model_fields
        for name, inner in value:
            remedy = "; `publish` copies the results to a URI" if publishes and name == "out" else ""
            yield from _uris_for_paths(inner, f"{key}.{name}".lstrip("."), remedy)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _uris_for_paths(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, tuple | list):
        for number, inner in enumerate(value):
            yield from _uris_for_paths(inner, f"{key}.{number}")
    elif isinstance(value, Path) and (uri := folded_uri(value)):
        yield ConfigProblem(
            key, uri, f"must be a path on a file system that all workers share, not a URI{remedy}"
        )


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
    """The resolved configuration as YAML that `load_config` reads back: what looks like `${...}` in it is escaped."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(to_plain(config))))


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _escaped(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_escaped(inner) for inner in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def load_merged(kind: Any, path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Like `load_plain`, with `${...}` as they are written.

    Args:
        chain: the files that led here by `base`.
    """
    resolved = path.resolve()
    if resolved in chain:
        raise ConfigError(f"{path}: `base` leads back to itself: {' -> '.join(map(str, (*chain, resolved)))}")
    if not path.is_file():
        if (shipped := find_shipped(path)) is not None:
            return load_merged(kind, shipped, chain)
        near = nearest(path.name, [p.name for p in path.parent.glob("*.yaml")])
        near = str(path.parent / near) if near else nearest(str(path), names_of_shipped())
        listed = "`cloze configs list` names those that come with cloze"
        hint = f"did you mean {near}? {listed}" if near else listed
        named_by = f" (named by `base` in {chain[-1]})" if chain else ""
        if path.is_dir():
            raise MissingInputError(
                f"{path}{named_by} is a directory, not a configuration file.", next_step=listed
            )
        raise MissingInputError(f"There is no configuration file {path}{named_by}.", next_step=hint)
    try:
        loaded = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not valid YAML: {error}",
            next_step=f"correct {path} (UTF-8; strings with `: ` or `#` need quotes), then the same command",
        ) from None
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} must hold `key: value` pairs, not a list or a single value.")
    try:
        bases = loaded.pop(BASE_KEY, None) or []
        names = list(bases) if isinstance(bases, ListConfig | list) else [bases]
    except OmegaConfBaseException as error:
        raise _interpolation_error(str(path), error) from None
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: `base` must name a file, or be a list of such names.")
    merged: Any = {}
    for name in names:
        base = find_beside(path.parent, name)
        merged = _merge(members_in(kind), merged, load_merged(kind, base, (*chain, resolved)))
    return _merge(members_in(kind), merged, OmegaConf.to_container(loaded, resolve=False))


def _merge(members: set[type], lower: Any, upper: Any, key: str = "") -> Any:
    """`lower` with what `upper` says otherwise. A mapping changes the elements of a list by their indexes.

    Args:
        members: the classes of settings that are allowed here.
        key: dotted name of the place.
    """
    if isinstance(lower, list) and isinstance(upper, Mapping):
        return _change_elements(members, lower, upper, key)
    if (
        not isinstance(lower, Mapping)
        or not isinstance(upper, Mapping)
        or _other_member(members, lower, upper)
    ):
        return upper
    merged = dict(lower)
    for name, value in upper.items():
        below = [fields_of(member)[name] for member in members if name in fields_of(member)]
        # A mapping from free names, such as tasks, has the members of its values after every name.
        inner = set().union(*map(members_in, below)) if below else members
        merged[name] = (
            _merge(inner, lower[name], value, f"{key}.{name}".lstrip(".")) if name in lower else value
        )
    return merged


def _change_elements(members: set[type], lower: list[Any], upper: Mapping[Any, Any], key: str) -> list[Any]:
    indexes = {str(index): index for index in range(len(lower))}
    wrong = tuple(
        ConfigProblem(
            f"{key}.{name}",
            "",
            f"{key} is a list of {len(lower)}; its elements are named by {', '.join(indexes) or 'no index'},"
            f" and `{key}=[...]` replaces the whole list",
        )
        for name in upper
        if str(name) not in indexes
    )
    if wrong:
        raise ConfigError("Settings that cannot be merged:", problems=wrong)
    changed = list(lower)
    for name, value in upper.items():
        index = indexes[str(name)]
        changed[index] = _merge(members, changed[index], value, f"{key}.{name}")
    return changed


def _other_member(members: set[type], lower: Mapping[str, Any], upper: Mapping[str, Any]) -> bool:
    """Whether `upper` chooses another member of a union than `lower`, none of whose settings are then left."""
    if len(members) > 1 and lower.get("kind") != upper.get("kind"):  # several kinds may share a class
        kinds = set().union(*map(tags_of, members))
        if {str(lower.get("kind")), str(upper.get("kind"))} <= kinds:
            return True
    for tag in TAG_FIELDS:
        before, after = (
            {each for each in members if str(it.get(tag)) in tags_of(each)} for it in (lower, upper)
        )
        if before and after and not before & after:
            return True
    return False


def _interpolation_error(where: str, error: OmegaConfBaseException) -> ConfigError:
    reason, remedy = str(error).partition("\n")[0], "correct the ${...} expression"
    if "Environment variable" in reason:
        remedy = "set the variable that the message names, such as `export CLOZE_DATA=/path/to/corpora`"
    return ConfigError(f"{where}: {reason}", next_step=remedy)
