"""The kinds of values, their files, and how two sets of values are compared."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
import yaml
from llvmlite.binding import get_host_cpu_features

KINDS: Mapping[str, float] = {
    "documents": 0.0,
    "tokens": 0.0,
    "samples": 0.0,
    "losses": 2e-4,
    "checkpoints": 2e-2,
    "exports": 0.0,
    "scores": 2e-3,
}
"""By kind, which is the name of a module and of a file here, the largest relative difference of a floating-point number
on another processor than the recorded one: rounding, grown by updates. On the same one, and for all else, it is 0."""
SHOWN = 400
"""Characters of a text that are recorded; of a longer one, the beginning and a hash of all."""
ABSENT = object()
RAISE = "raise VERSION of the stage that makes it"
MEANT = (
    f"If it is meant: say why in the commit, {RAISE}, and record the values with `make golden ARGS=--write`."
)


class _Dumper(yaml.CSafeDumper):
    """Writes texts of several lines as they are, and lists of numbers or names in lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, "|" if "\n" in text else None
    ),
)
_Dumper.add_representer(
    list,
    lambda dumper, items: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", items, flow_style=not any(isinstance(each, dict | list) for each in items)
    ),
)


def compute(kind: str, directory: Path) -> dict[str, Any]:
    """The values of a kind, as they come back from a file; `directory` is empty, for what is made on the way."""
    values = {"processor": processor()} if KINDS[kind] else {}
    values |= import_module(f"tests.golden.{kind}").values(directory)
    return orjson.loads(orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY))


def processor() -> str:
    """What the last bits of a number depend on: the processor's instructions, and the library."""
    features = xxhash.xxh3_64_hexdigest(get_host_cpu_features().flatten().encode())
    return f"{platform.machine()} with instructions {features}, torch {version('torch')}"


def read(kind: str) -> dict[str, Any]:
    """The recorded values; none, where there is no file yet."""
    path = _path(kind)
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) if path.exists() else {}


def write(kind: str, values: Mapping[str, Any]) -> None:
    """Record values."""
    text = yaml.dump(values, Dumper=_Dumper, width=118, sort_keys=False, allow_unicode=True)
    _path(kind).write_text(text, encoding="utf-8")


def differences(recorded: Any, found: Any, tolerance: float = 0.0) -> Iterator[str]:
    """Every difference, in words; floating-point numbers of another processor may differ by `tolerance`, relatively."""
    if recorded.get("processor") == found.get("processor"):
        tolerance = 0.0
    old, new = dict(_leaves(recorded)), dict(_leaves(found))
    for place in dict.fromkeys([*old, *new]):
        before, now = old.get(place, ABSENT), new.get(place, ABSENT)
        if place == "processor" or before == now:
            continue
        if before is ABSENT:
            yield f"{place} is new: {now!r}"
        elif now is ABSENT:
            yield f"{place} is gone; it was {before!r}"
        elif not (
            isinstance(before, float)
            and isinstance(now, float)
            and math.isclose(before, now, rel_tol=tolerance)
        ):
            version = str(before).partition(",")[0] if str(before).startswith("version ") else ""
            stale = f"; {RAISE}" if version and str(now).startswith(f"{version},") else ""
            yield f"{place} was {before!r} and is {now!r}{stale}"


def shown(text: str, most: int = SHOWN) -> str:
    """A text as it is recorded."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text)} characters, {xxhash.xxh3_64_hexdigest(text.encode())})"


def digest(*arrays: np.ndarray) -> str:
    """A hash of numbers, whatever the size of their type."""
    found = xxhash.xxh3_64()
    for array in arrays:
        found.update(np.asarray(array, dtype="<f8" if array.dtype.kind == "f" else "<i8").tobytes())
        found.update(str(array.shape).encode())
    return found.hexdigest()


def _path(kind: str) -> Path:
    return Path(__file__).with_name(f"{kind}.yaml")


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with the names on the way to it; lists of equal elements differ where their elements do."""
    if isinstance(value, dict | list) and value:
        named = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in named:
            yield from _leaves(inner, f"{place}.{name}" if place else str(name))
    else:
        yield place, value
