"""The picture of the road on the front page, from the stages that there are: `python -m tests.runbooks.picture`."""

from __future__ import annotations

from html import escape

from data_prep.layout import STAGES
from pipeline.objectives import OBJECTIVES
from tests.runbooks.map import ROOT

PICTURE = ROOT / "docs" / "road.svg"
BOX, GAP, LINE = 176, 44, 18
STYLE = """<style>
  text { font: 13px system-ui, sans-serif; fill: #1d2125 } .title { font-weight: 600 } .faint { fill: #5b646d }
  rect { fill: #f4f6f7; stroke: #0b63a5 } path { fill: none; stroke: #0b63a5; stroke-width: 1.5 }
  .back { stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) { text { fill: #e4e7ea } .faint { fill: #9aa4ad } rect { fill: #1e2327 } }
</style>"""


def columns() -> list[tuple[str, list[str]]]:
    """(verb, its stages or kinds) of every part of a road."""
    forms = ["labels", "spans", "tags", "choices", "texts", "conversations"]
    return [
        ("cloze data prepare", list(STAGES)),
        ("cloze pretrain", list(OBJECTIVES)),
        ("cloze finetune", [*forms, "", "or, untrained:", "cloze prompt, probe"]),
        ("cloze export", ["a Hugging Face directory,", "logits compared first"]),
    ]


def picture() -> str:
    """The SVG: a box for each verb, arrows along the road, and one back for the lineage."""
    found = columns()
    height = 2 * LINE + LINE * max(len(made) for _, made in found)
    width = len(found) * BOX + (len(found) - 1) * GAP
    total = height + 3 * LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {width + 4} {total + 4}" role="img"'
        ' aria-label="The road from sources to an exported network">',
        STYLE,
    ]
    for number, (verb, made) in enumerate(found):
        x = number * (BOX + GAP)
        parts.append(f'<rect x="{x}" y="0" width="{BOX}" height="{height}" rx="6"/>')
        parts.append(f'<text class="title" x="{x + 12}" y="{LINE + 6}">{escape(verb)}</text>')
        for row, name in enumerate(made):
            parts.append(f'<text x="{x + 12}" y="{(row + 2) * LINE + 10}">{escape(name)}</text>')
        if number:
            y = height // 2
            parts.append(f'<path d="M{x - GAP + 4} {y} h{GAP - 10} m-6 -5 l6 5 l-6 5"/>')
    y = height + LINE
    parts.append(f'<path class="back" d="M{width - BOX // 2} {height} V{y} H{BOX // 2} V{height + 4}"/>')
    parts.append(
        f'<text class="faint" x="{width // 2}" y="{y + LINE}" text-anchor="middle">cloze lineage: from a score back'
        " to the bytes of its source files</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture())
