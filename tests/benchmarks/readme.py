"""The table of speeds in docs/speeds.md: rendered from `published.json`, and compared with what was just measured.

`python -m tests.benchmarks.readme bench/results.json` takes that run's ratios over and writes the table; without an
argument it only writes the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import BaseModel, TypeAdapter

from tests.benchmarks.results import Results

PUBLISHED = Path(__file__).with_name("published.json")
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
    def low(self) -> float:
        """The lowest ratio on any machine."""
        return min(low for low, _ in self.ranges.values())

    @property
    def high(self) -> float:
        """The highest ratio on any machine."""
        return max(high for _, high in self.ranges.values())


_ROWS = TypeAdapter(list[Row])


def published() -> list[Row]:
    """The rows in their order."""
    return _ROWS.validate_json(PUBLISHED.read_bytes())


def figure(lowest: float, highest: float) -> str:
    """A range of ratios as it is printed: one number where both ends round to it."""
    low, high = _rounded(lowest), _rounded(highest)
    return low if low == high else f"{low} to {high}"


def _rounded(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [f"| {row.what} | {row.against} | {figure(row.low, row.high)} | {row.figures} |" for row in rows]
    return "\n".join(["| what | against | ratio | cloze / peer |", "|---|---|---|---|", *lines]) + "\n"


def differences(results: Results, rows: Sequence[Row]) -> list[str]:
    """Rows of the table that these rounds contradict: they do not meet the range of this machine, or where a row was
    not measured on it, that of all machines."""
    found, contradicted, machine = results.ratios(), [], _name_of(results)
    for row in rows:
        if row.key is None or (line := found.get(row.key)) is None:
            continue
        low, high = min(line["rounds"]), max(line["rounds"])
        lowest, highest = row.ranges.get(machine, (row.low, row.high))
        if high < lowest or low > highest:
            contradicted.append(
                f"{row.what}, against {row.against}: the table says {figure(lowest, highest)},"
                f" measured {figure(low, high)}"
            )
    return contradicted


def taken_over(results: Results, rows: Sequence[Row]) -> list[Row]:
    """The rows with the range and the figures of these rounds for this machine, where they were measured."""
    found, machine = results.ratios(), _name_of(results)
    return [
        row.model_copy(
            update={
                "ranges": row.ranges | {machine: (min(line["rounds"]), max(line["rounds"]))},
                "figures": f"{_short(line['ours'])} / {_short(line['theirs'])} {line['unit']}",
            }
        )
        if row.key and (line := found.get(row.key))
        else row
        for row in rows
    ]


def _short(number: float) -> str:
    """A number with three digits: 244 million, 8,866, 12, 1.7."""
    if number >= 1e6:
        return f"{number / 1e6:.3g} million"
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _name_of(results: Results) -> str:
    processor = results.machine["processor"].replace("(R)", "").removesuffix(" Processor")
    return f"{processor}, {results.machine['cores']} cores"


def with_table(readme: str, rows: Sequence[Row]) -> str:
    """The text of the page with this table."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table(rows) + END + rest.split(END)[1]


def main() -> None:
    """Write the rows and the table."""
    rows = published()
    if len(sys.argv) > 1:
        rows = taken_over(Results(**orjson.loads(Path(sys.argv[1]).read_bytes())), rows)
        PUBLISHED.write_bytes(_ROWS.dump_json(rows, indent=2) + b"\n")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
