"""Costs of the stages of a ladder, attempt by attempt: a line of JSON each, appended when the attempt ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from cluster.artefacts.storage import contents_of, storage_errors

COSTS_FILE = "costs.jsonl"


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a stage."""

    stage: str
    wall_s: float
    """Seconds by the clock."""
    cpu_s: float
    """Seconds of processor cores, of the stage's process and those that it started."""
    exit_code: int = 0
    """0 for a finished attempt."""


def add_cost(work: Path, cost: Cost) -> None:
    """Append an attempt to the file."""
    with storage_errors(work), (work / COSTS_FILE).open("ab") as stream:
        stream.write(orjson.dumps(asdict(cost), option=orjson.OPT_APPEND_NEWLINE))


def read_costs(work: Path) -> Mapping[str, Cost]:
    """All attempts at each stage together; attempts that were killed with the whole ladder are missing."""
    path, found = work / COSTS_FILE, dict[str, Cost]()
    if not path.exists():
        return found
    with contents_of(path):
        for line in path.read_bytes().splitlines():
            one = Cost(**orjson.loads(line))
            before = found.get(one.stage, Cost(one.stage, 0.0, 0.0))
            found[one.stage] = Cost(
                one.stage, before.wall_s + one.wall_s, before.cpu_s + one.cpu_s, one.exit_code
            )
    return found
