"""JSON Schemas with the docstrings below the fields of settings as their descriptions.

Pydantic can read these docstrings itself (`use_attribute_docstrings`), but then it parses the source of every class
when the class is made, in every process that loads settings, although only the reference of settings prints them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


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
            if found.get(name):
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
    for field, below in zip_longest(node.body, node.body[1:]):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                yield name, ""
