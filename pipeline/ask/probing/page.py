"""Accuracy by layer as one self-contained HTML page with a plot."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.artefacts.visible import finalize
from pipeline.ask.probing.run import ProbeResult
from pipeline.tune.report.curves import Curve, plot

COLUMNS = ("layer", "probe", "accuracy", "control", "selectivity")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{{ title }}</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem 1rem .2rem 0; text-align: right;
border-bottom: 1px solid #8886 }
svg { width: 100%; max-width: 40rem } svg text { font-size: 11px; fill: currentColor } svg .grid { stroke: #8884 }
svg polyline { fill: none; stroke: currentColor; stroke-width: 1.5 } circle { fill: currentColor }
.c0 { color: #3b76c4 } .c1 { color: #8a3d8f } .c2 { color: #c4603b } .c3 { color: #3c7a33 }
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ facts }}</p>
{{ drawing | safe }}
<p>{% for curve in curves %}<span class="c{{ curve.colour }}">— {{ curve.name }}</span> &emsp;
{% endfor %}</p>
<table><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
</body></html>
"""


def page(reference: str, result: ProbeResult) -> str:
    """HTML of one page without scripts, images or links to other files."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True)
    curves = [*_curves(result)]
    drawing = plot(curves, title="accuracy by layer", y_format=lambda y: f"{100 * y:g} %", x_name="layer")
    return environment.from_string(_PAGE).render(
        title=f"{result.task}, probed in {reference}",
        facts=facts(result),
        drawing=drawing,
        curves=curves,
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


def _curves(result: ProbeResult) -> Iterator[Curve]:
    """Accuracies of every probe by layer, and those on its control task."""
    for number, probe in enumerate(dict.fromkeys(score.probe for score in result.scores)):
        own = [score for score in result.scores if score.probe == probe]
        layers = [score.layer for score in own]
        yield Curve(probe, 2 * number, layers, [score.accuracy for score in own], marked=True)
        controls = [score.control for score in own if score.control is not None]
        if controls:
            yield Curve(f"{probe}, control task", 2 * number + 1, layers, controls, marked=True)
