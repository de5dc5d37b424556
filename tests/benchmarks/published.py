"""The table of speeds in docs/speeds.md: rendered from `published.jsonl`, and compared with what was just measured.

`python -m tests.benchmarks.published bench/results.json` takes that run's ratios over and writes the table; without an
argument it only writes the table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

PUBLISHED = Path(__file__).with_name("published.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "speeds.md"
BEGIN, END = "<!-- speeds -->\n", "<!-- end of speeds -->"


class Row(BaseModel):
    """A row of the table."""

    what: str
    against: str
    key: str | None = None
    """Key of the comparison that measures it; None for a figure that is written by hand."""
    ranges: dict[str, tuple[float, float]]
    """Lowest and highest ratio of the rounds, by machine."""
    figures: str = ""
    """What cloze and the peer do in a second, in the newest run."""

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest ratio on any machine."""
        return min(low for low, _ in self.ranges.values()), max(high for _, high in self.ranges.values())


def published() -> list[Row]:
    """The rows in their order."""
    return [Row.model_validate_json(line) for line in PUBLISHED.read_bytes().splitlines()]


def figure(lowest: float, highest: float) -> str:
    """A range of ratios as it is printed: one number where both ends round to it."""
    low, high = (
        (f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}")
        if ratio >= 2
        else (f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}")
        for ratio in (lowest, highest)
    )
    return low if low == high else f"{low} to {high}"


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [f"| {row.what} | {row.against} | {figure(*row.range)} | {row.figures} |" for row in rows]
    return "\n".join(["| what | against | ratio | cloze / peer |", "|---|---|---|---|", *lines]) + "\n"


def differences(results: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Rows of the table that the rounds of `results.json` contradict.

    They do not meet the range of this machine, or where a row was not measured on it, that of all machines.
    """
    contradicted, machine = [], _name_of(results["machine"])
    for row, line in _measured(results, rows):
        low, high = min(line["rounds"]), max(line["rounds"])
        lowest, highest = row.ranges.get(machine, row.range)
        if high < lowest or low > highest:
            contradicted.append(
                f"{row.what}, against {row.against}: the table says {figure(lowest, highest)},"
                f" measured {figure(low, high)}"
            )
    return contradicted


def take_over(results: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Give the rows that `results.json` measured its range for its machine, and its figures."""
    for row, line in _measured(results, rows):
        row.ranges[_name_of(results["machine"])] = (min(line["rounds"]), max(line["rounds"]))
        row.figures = f"{_short(line['ours'])} / {_short(line['theirs'])} {line['unit']}"


def _measured(results: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[Row, Mapping[str, Any]]]:
    found = {line["key"]: line for line in results["lines"] if "key" in line}
    return [(row, found[row.key]) for row in rows if row.key in found]


def _short(number: float) -> str:
    """A number with three digits: 244 million, 8,866, 12, 1.7."""
    if number >= 1e6:
        return f"{number / 1e6:.3g} million"
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _name_of(machine: Mapping[str, Any]) -> str:
    processor = machine["processor"].replace("(R)", "").removesuffix(" Processor")
    return f"{processor}, {machine['cores']} cores"


def main() -> None:
    """Write the rows and the table."""
    rows = published()
    if len(sys.argv) > 1:
        take_over(orjson.loads(Path(sys.argv[1]).read_bytes()), rows)
        PUBLISHED.write_text("".join(row.model_dump_json() + "\n" for row in rows), encoding="utf-8")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + table(rows) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
