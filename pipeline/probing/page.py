"""Accuracy by layer as one self-contained HTML page with a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.probing.run import LayerScore, ProbeResult

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 320, 50, 40
"""Of the plot, and of its margins, in pixels."""
COLOURS = {"linear": "#3b76c4", "mlp": "#c4603b"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem 1rem .2rem 0; text-align: right;
border-bottom: 1px solid #8886 }
svg text { font-size: 12px; fill: currentColor }
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ facts }}</p>
<svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="accuracy by layer" width="100%">
{% for y, label in ticks %}<line x1="{{ left }}" x2="{{ width - 10 }}" y1="{{ y }}" y2="{{ y }}" stroke="#8884"/>
<text x="{{ left - 6 }}" y="{{ y + 4 }}" text-anchor="end">{{ label }}</text>
{% endfor %}{% for x, label in layers %}<text x="{{ x }}" y="{{ height - 18 }}" text-anchor="middle">{{ label }}</text>
{% endfor %}<text x="{{ width / 2 }}" y="{{ height - 2 }}" text-anchor="middle">layer</text>
{% for line in lines %}<polyline fill="none" stroke="{{ line.colour }}" stroke-width="2"
stroke-dasharray="{{ line.dash }}" points="{{ line.points }}"><title>{{ line.name }}</title></polyline>
{% endfor %}</svg>
<p>{% for line in lines %}<span style="color: {{ line.colour }}">{{ line.sign }} {{ line.name }}</span> &emsp;
{% endfor %}</p>
<table><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
</body></html>
"""
COLUMNS = ("layer", "probe", "accuracy", "control", "selectivity")


def page(reference: str, result: ProbeResult) -> str:
    """HTML of one page without scripts, images or links to other files."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    layers = sorted({score.layer for score in result.scores})
    return environment.from_string(_PAGE).render(
        title=f"{result.task}, probed in {reference}",
        facts=facts(result),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        ticks=[(_y(share / 100), f"{share} %") for share in range(0, 101, 20)],
        layers=[(_x(layer, layers), layer) for layer in layers],
        lines=_lines(result, layers),
        columns=COLUMNS,
        rows=rows(result),
    )


def facts(result: ProbeResult) -> str:
    """How much was learnt from and scored on, and the baseline."""
    return (
        f"{result.num_train_items:,} items to learn from, {result.num_evaluation_items:,} to score on; the most"
        f" frequent label is right for {100 * result.majority:.1f} % of them."
    )


def rows(result: ProbeResult) -> list[list[str]]:
    """The cells of a table with COLUMNS, in percent."""
    return [
        [str(score.layer), score.probe, *map(_percent, (score.accuracy, score.control, score.selectivity))]
        for score in result.scores
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _lines(result: ProbeResult, layers: Sequence[int]) -> list[dict[str, Any]]:
    """A line of accuracy for every probe, and a dashed one of its control task."""
    lines = []
    for probe in dict.fromkeys(score.probe for score in result.scores):
        own = [score for score in result.scores if score.probe == probe]
        common = {"colour": COLOURS[probe]}
        points = [(score, score.accuracy) for score in own]
        lines.append(common | {"name": probe, "dash": "none", "sign": "—", "points": _points(points, layers)})
        controls = [(score, score.control) for score in own if score.control is not None]
        if controls:
            named = {"name": f"{probe}, control task", "dash": "5 4", "sign": "- -"}
            lines.append(common | named | {"points": _points(controls, layers)})
    return lines


def _points(shares: Sequence[tuple[LayerScore, float]], layers: Sequence[int]) -> str:
    return " ".join(f"{_x(score.layer, layers):.1f},{_y(share):.1f}" for score, share in shares)


def _x(layer: int, layers: Sequence[int]) -> float:
    place = layers.index(layer) / max(1, len(layers) - 1)
    return round(LEFT + 15 + place * (WIDTH - LEFT - 40), 1)


def _y(share: float) -> float:
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 15), 1)
