"""The reference of settings: every key with its type, default, unit and meaning, from types and docstrings."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from cluster.templates import TEMPLATES
from pipeline.config.loading import BASE_KEY
from pipeline.config.problems import TAG_FIELDS


class DocumentedSchema(GenerateJsonSchema):
    """Describes the properties of models and dataclasses by their fields' docstrings."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """The schema of a pydantic model."""
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """The schema of a dataclass."""
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(schema: JsonSchemaValue, cls: type) -> JsonSchemaValue:
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        found |= _docstrings(each.__module__).get(each.__qualname__, {})
    # Settings that may also be written in a short form have their properties in one of the alternatives.
    for each in (schema, *schema.get("anyOf", ())):
        for name, value in each.get("properties", {}).items():
            if name in found:
                value.setdefault("description", found[name])
    return schema


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """The docstrings below the annotated names of the classes of a module, by class and name; empty for none."""
    if not hasattr(sys.modules[module], "__file__"):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: dict(_below_names(each)) for each in tree.body if isinstance(each, ast.ClassDef)}


def _below_names(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "data": ("data_prep.config", "PreparationConfig"),
        "pretrain": ("pipeline.run.config", "PretrainConfig"),
        "finetune": ("pipeline.tune.config", "FinetuneConfig"),
        "probe": ("pipeline.ask.config", "ProbeConfig"),
        "prompt": ("pipeline.ask.config", "PromptConfig"),
        "road": ("pipeline.road.stages", "RoadConfig"),
        "ladder": ("pipeline.road.ladder.config", "LadderConfig"),
        **{kind: (each.__module__, each.__qualname__) for kind, each in TEMPLATES.items()},
    }
)
"""The kinds of YAML files: where the class of each is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a configuration."""

    name: str
    type: str
    """The allowed values in words: `integer >= 1`, `one of a, b`, `settings (see optimizer)`."""
    default: str
    """As YAML writes it; `required` where there is none."""
    meaning: str
    """The docstring, with the unit."""


@dataclass(frozen=True, slots=True)
class Section:
    """The settings below one key."""

    key: str
    """Dotted, such as `sources.books_text`: the kind `books_text` of the members of `sources`. A part that is several
    kinds has them between bars. Empty at the top."""
    meaning: str
    settings: tuple[Setting, ...]

    @property
    def names(self) -> list[str]:
        """The keys that a user types for it: one for each kind."""
        return _names(self.key)


def json_schema(kind: str) -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of the YAML files of a kind, for editors.

    Nothing is required in it but the kinds of members, because `base` may give the rest, and every value may be an
    `${...}` expression.
    """
    schema = _for_editors(_schema(kind))
    schema["$defs"]["Interpolation"] = _INTERPOLATION
    schema["properties"][BASE_KEY] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "YAML files, relative to this one, that are merged first.",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def reference(kind: str) -> list[Section]:
    """Every setting of a kind of YAML file, the top level first."""
    schema = _schema(kind)
    definitions = schema["$defs"]
    keys: dict[str, str] = {}
    pending = list(_members("", schema, definitions))
    while pending:
        key, name = pending.pop(0)
        if name not in keys:
            keys[name] = key
            pending += _members(key, definitions[name], definitions)
    sections = [_section("", schema, definitions, keys)]
    return sections + [_section(key, definitions[name], definitions, keys) for name, key in keys.items()]


def class_of(kind: str) -> Any:
    """The class of the settings of a kind of YAML file."""
    module, name = KINDS[kind]
    return getattr(import_module(module), name)


def _schema(kind: str) -> dict[str, Any]:
    return {"$defs": {}} | TypeAdapter(class_of(kind)).json_schema(schema_generator=DocumentedSchema)


_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}


def _for_editors(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return [_for_editors(each) for each in node] if isinstance(node, list) else node
    made: dict[str, Any] = {}
    for word, value in node.items():
        if word in ("properties", "$defs"):
            made[word] = {name: _for_editors(each) for name, each in value.items()}
        elif word == "required":
            made[word] = [name for name in value if name in TAG_FIELDS]
        elif word in ("oneOf", "anyOf", "items", "prefixItems", "additionalProperties"):
            # Members of a union whose kind may be left out cannot be distinguished here.
            made["anyOf" if word == "oneOf" else word] = _for_editors(value)
        elif word not in ("discriminator", "title"):
            made[word] = value
    if made.get("type") in ("integer", "number", "boolean", "array") or "enum" in made:
        about = {word: made.pop(word) for word in ("description", "default") if word in made}
        return about | {"anyOf": [made, {"$ref": "#/$defs/Interpolation"}]}
    return made


def _objects(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The object with keys that a definition is, or those among its alternatives."""
    if "properties" in node:
        assert isinstance(node, dict)
        yield node
    for each in node.get("anyOf", ()):
        yield from _objects(each)


def _members(key: str, node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and definition of everything with keys of its own directly below a definition."""
    for each in _objects(node):
        for name, value in each["properties"].items():
            found = list(_references(value))
            place = f"{key}.{name}".lstrip(".")
            for reference in found:
                if not any(True for _ in _objects(definitions[reference])):
                    continue
                tag = _tag(definitions[reference]) if len(found) > 1 else ""
                yield (f"{place}.{tag}" if tag else place), reference


def _references(node: Any) -> Iterator[str]:
    """Names of the definitions that a schema refers to, each once."""
    seen: dict[str, None] = {}

    def search(part: Any) -> None:
        if isinstance(part, Mapping):
            if "$ref" in part:
                seen[part["$ref"].rpartition("/")[2]] = None
            for name, value in part.items():
                if name not in ("default", "discriminator"):
                    search(value)
        elif isinstance(part, list):
            for value in part:
                search(value)

    search(node)
    yield from seen


def _tag(node: Mapping[str, Any]) -> str:
    """The name of a member of a union: the values that its `kind` or `network` may have."""
    for each in _objects(node):
        for name in TAG_FIELDS:
            if name in each["properties"]:
                return "|".join(_choices(each["properties"][name]))
    return str(node.get("title", ""))


def _choices(node: Mapping[str, Any]) -> list[str]:
    return [str(node["const"])] if "const" in node else [str(choice) for choice in node.get("enum", ())]


def _names(key: str) -> list[str]:
    """A section's key with each of the kinds by itself."""
    return [".".join(parts) for parts in product(*(part.split("|") for part in key.split(".")))]


def _section(
    key: str, node: Mapping[str, Any], definitions: Mapping[str, Any], keys: Mapping[str, str]
) -> Section:
    settings = []
    for each in _objects(node):
        required = each.get("required", ())
        for name, value in each["properties"].items():
            default = "required" if name in required else _yaml(value.get("default"))
            settings.append(
                Setting(name, _type(value, definitions, keys), default, _meaning(name, value, definitions))
            )
    return Section(key, _one_line(node.get("description", "")), tuple(settings))


def _meaning(name: str, value: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    own = value.get("description", "")
    found = list(_references(value))
    if not own and name in TAG_FIELDS:
        return "Says which settings these are."
    if not own and len(found) == 1:
        own = definitions[found[0]].get("description", "")
    return _one_line(own)


def _type(node: Mapping[str, Any], definitions: Mapping[str, Any], keys: Mapping[str, str]) -> str:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name not in keys:
            return _type(definitions[name], definitions, keys)
        short = [each for each in definitions[name].get("anyOf", ()) if "properties" not in each]
        return " or ".join(
            [*(_type(each, definitions, keys) for each in short), f"settings (see {_names(keys[name])[0]})"]
        )
    if "const" in node or "enum" in node:
        choices = _choices(node)
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in node:
            if (members := _kinds(node[union], keys)) is not None:
                return members
            return " or ".join(dict.fromkeys(_type(each, definitions, keys) for each in node[union]))
    if node.get("type") == "array":
        if "prefixItems" in node:
            return f"list of {', '.join(_type(each, definitions, keys) for each in node['prefixItems'])}"
        return f"list of {_type(node.get('items', {}), definitions, keys)}"
    if node.get("type") == "object":
        values = node.get("additionalProperties") or {}
        if values is True:
            return "mapping of names to values of any type"
        return f"mapping of names to {_type(values, definitions, keys)}"
    return _scalar(node)


def _kinds(alternatives: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> str | None:
    """A union of settings that its members' kinds distinguish; None for any other union."""
    found = [keys.get(each.get("$ref", "").rpartition("/")[2], "") for each in alternatives]
    places, kinds = zip(*(key.rpartition(".")[::2] for key in found), strict=True)
    if len(found) < 2 or not all(found) or len(set(places)) > 1:
        return None
    return f"settings of the kind {', '.join(kinds).replace('|', ', ')} (see {_names(places[0])[0]}.KIND)"


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _scalar(node: Mapping[str, Any]) -> str:
    name = str(node.get("format") or node.get("type") or "anything")
    bounds = [f"{sign} {node[word]:,}" for word, sign in _BOUNDS.items() if word in node]
    if pattern := node.get("pattern"):
        bounds.append(f"like {pattern}")
    return " ".join([name, ", ".join(bounds)]).strip()


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        tag = next((value[name] for name in TAG_FIELDS if name in value), "")
        return (f"{tag} with its defaults" if tag else "their defaults") if value else "{}"
    return orjson.dumps(value).decode() if not isinstance(value, str) else value or '""'


def _one_line(text: str) -> str:
    """A docstring without its line breaks, and without what programs alone want to know."""
    return " ".join(text.partition("\n\nRaises:")[0].split())
