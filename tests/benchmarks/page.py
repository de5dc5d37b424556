"""The outcomes of benchmarks as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.readme import figure
from tests.benchmarks.results import Results

TEMPLATE = Path(__file__).with_name("page.html.j2")


def render(results: Results, different: Sequence[str]) -> str:
    """HTML without scripts, images or links to other files."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    rows = [
        {
            "what": line["what"],
            "peer": line["peer"],
            "ratio": figure(line["ratio"], line["ratio"]),
            "spread": figure(min(line["rounds"]), max(line["rounds"])),
            "rounds": len(line["rounds"]),
            "ours": f"{line['ours']:,.0f} {line['unit']}",
            "theirs": f"{line['theirs']:,.0f} {line['unit']}",
        }
        for line in results.ratios().values()
    ]
    notes = [line["text"] for line in results.lines if "ratio" not in line]
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(results=results, rows=rows, notes=notes, different=different)
