"""The values that fields of configurations allow, by their types and in the same words everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class Rule(NamedTuple):
    """Values that a field may have."""

    allows: Callable[[Any], bool]
    said: str
    """Completes "must be ..."."""


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, and no switch."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and no switch."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def at_least(least: int) -> Rule:
    """Whole numbers from `least` on."""
    return Rule(lambda value: is_whole(value) and value >= least, f"a whole number of at least {least}")


WHOLE = Rule(is_whole, "a whole number")
POSITIVE = Rule(lambda value: is_number(value) and value > 0, "a number above 0")
PROBABILITY = Rule(lambda value: is_number(value) and 0 <= value < 1, "a probability in [0, 1)")


class Settings:
    """Settings, a dataclass whose values are checked when it is made; read from a file, it takes no other keys.

    Raises:
        ValueError: a value is outside what its docstring allows; all such values are named at once.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if problems := field_problems(self, self.rules()) or self.fit_problems():
            raise ValueError("; ".join(problems))

    def rules(self) -> Mapping[str, Rule]:
        """Rules of single fields, by name, instead of those that `field_problems` has."""
        return {}

    def fit_problems(self) -> list[str]:
        """Values that are allowed alone and not together."""
        return []


def required_vocab_size(vocab_size: int | None) -> int:
    """The vocabulary size of a network, for code that builds tensors from it.

    Raises:
        ValueError: it has not been set.
    """
    if vocab_size is None:
        raise ValueError(
            "vocab_size is not set, so the network cannot be built; take it from the tokenizer: "
            "dataclasses.replace(config, vocab_size=...)"
        )
    return vocab_size


def field_problems(config: Any, others: Mapping[str, Rule]) -> list[str]:
    """A sentence for each field of a dataclass that has a value which it does not allow.

    Whole numbers are at least 1, numbers under names that end in `dropout` are probabilities, other numbers are above
    0; switches and Literals have one of their values. None is allowed where the type says so. Fields of other types are
    not checked.

    Args:
        others: rules of single fields instead of these, by name.
    """
    problems = []
    for name, hint in _hints(type(config)).items():
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        value, rule = getattr(config, name), others.get(name) or _rule(name, kinds)
        if rule and not (value is None and NoneType in kinds) and not rule.allows(value):
            problems.append(f"{name} must be {rule.said}, not {value!r}")
    return problems


_hints = cache(get_type_hints)


def _rule(name: str, kinds: tuple[Any, ...]) -> Rule | None:
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if choices := [*((True, False) if bool in kinds else ()), *literals]:
        return Rule(choices.__contains__, f"one of {', '.join(map(str, choices))}")
    if float in kinds:
        return PROBABILITY if name.endswith("dropout") else POSITIVE
    return at_least(1) if int in kinds else None
