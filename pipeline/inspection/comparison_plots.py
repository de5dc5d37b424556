"""Curves of two runs: on a terminal, and as one self-contained HTML page with plots in SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.inspection.comparison import Axis, RunComparison
from pipeline.inspection.curves import HELD_OUT_KIND, Bins, Curve, bin_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "loss": "training loss",
    HELD_OUT_KIND: "held-out",
    "grad_norm": "gradient norm",
    "lr": "learning rate",
    "tokens_per_s": "tokens per second",
}
"""What a page shows, by curve; the metric is added to the held-out one."""
_COLUMNS_OF_PAGE = 800
_SPIKE = 10.0
"""Times the usual distance between a column's mean and its largest value."""
_COLORS = ("#1f5fbf", "#d9730d")
_MARKERS = ("braille", "*")
_TERMINAL_COLORS = ("blue", "orange")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ names | join(" and ") }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .8rem .2rem 0; text-align: left;
vertical-align: top; border-bottom: 1px solid #ddd; overflow-wrap: anywhere } svg { max-width: 100%; height: auto }
</style></head><body>
<h1>{{ names | join(" and ") }}</h1>
{% for title, rows in tables %}<h2>{{ title }}</h2>
{% if rows %}<table><tr><th></th>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% else %}<p>none</p>{% endif %}
{% endfor %}
{% for title, svg in plots %}<h2>{{ title }}</h2>
{{ svg | safe }}
{% endfor %}
<p>Lines are means of {{ columns }} columns of a plot; the shades reach from their least to their largest value.</p>
</body></html>
"""


def terminal_plot(comparison: RunComparison, curve: str, width: int, height: int, *, colors: bool) -> str:
    """A plot of one curve of both runs in characters; empty where neither has logged it.

    Lines are means of the steps of half a character; a single value far above them is marked by `^`.

    Args:
        width: characters in a line.
        height: lines.
        colors: tell the runs apart by color too.
    """
    import plotext

    bins = _binned(comparison, curve, num_columns=2 * width)
    if not any(len(own.places) for own in bins):
        return ""
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plotsize(width, height)
    plotext.theme("clear")
    plotext.title(panel_title(comparison, curve))
    plotext.xlabel(comparison.common.axis)
    for facts, own, marker, color in zip(comparison.facts, bins, _MARKERS, _TERMINAL_COLORS, strict=True):
        if len(own.places):
            plotext.plot(
                own.places.tolist(), own.means.tolist(), label=facts.name, marker=marker, color=color
            )
            stands_out = _stands_out(own)
            plotext.scatter(
                own.places[stands_out].tolist(), own.highs[stands_out].tolist(), marker="^", color=color
            )
    text = plotext.build()
    return text if colors else plotext.uncolorize(text)


def panel_title(comparison: RunComparison, curve: str) -> str:
    """What a curve shows; of evaluations the metric, or that of each run where they differ."""
    metrics = dict.fromkeys(facts.metric for facts in comparison.facts)
    return f"{PANELS[curve]} {' | '.join(metrics)}" if curve == HELD_OUT_KIND else PANELS[curve]


def _stands_out(bins: Bins) -> np.ndarray:
    """[columns] bool: columns with a value that lies further above their mean than noise does in the others."""
    above = bins.highs - bins.means
    return above > _SPIKE * max(float(np.median(above)), 1e-9)


def page(comparison: RunComparison, tables: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> str:
    """HTML of one page that needs nothing else: no network, no script.

    Args:
        tables: (title, rows) of what is said in words; a row is a label and a cell for each run.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    binned = {name: _binned(comparison, name, _COLUMNS_OF_PAGE) for name in PANELS}
    plots = [
        (panel_title(comparison, name), _svg(comparison, name, bins))
        for name, bins in binned.items()
        if any(len(own.places) for own in bins)
    ]
    return environment.from_string(_PAGE).render(
        names=[facts.name for facts in comparison.facts],
        tables=tables,
        plots=plots,
        columns=_COLUMNS_OF_PAGE,
    )


def _binned(comparison: RunComparison, curve: str, num_columns: int) -> list[Bins]:
    axis: Axis = comparison.common.axis
    curves: list[Curve] = [own[curve] for own in comparison.curves]
    ends = [own.along(axis) for own in curves]
    last = max((float(own[-1]) for own in ends if len(own)), default=1.0)
    return [bin_curve(own, axis, (0.0, last), num_columns) for own in curves]


def _svg(comparison: RunComparison, curve: str, bins: Sequence[Bins]) -> str:
    """Drawn without a window system, and without anything that changes from one time to the next."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "cloze", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        axes: Axes = figure.add_subplot()
        for facts, own, color in zip(comparison.facts, bins, _COLORS, strict=True):
            axes.fill_between(own.places, own.lows, own.highs, color=color, alpha=0.2, linewidth=0)
            # A single value is a point; a line through it would not be seen.
            marker = "o" if len(own.places) < 40 else None
            axes.plot(own.places, own.means, color=color, linewidth=1, label=facts.name, marker=marker, ms=3)
        axes.set(xlabel=comparison.common.axis, ylabel=panel_title(comparison, curve))
        axes.legend(fontsize="small")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return "<svg" + text.getvalue().partition("<svg")[2]
