"""The plots of a report, as SVG text that a page can hold."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.dedup.config import meeting_probability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS_PER_DECADE = 8


def length_histogram(lengths: Mapping[str, np.ndarray]) -> str:
    """Documents by their number of tokens, one line for each name; both axes logarithmic."""
    filled = [own for own in lengths.values() if len(own)]
    shortest = min((int(own.min()) for own in filled), default=1)
    longest = max((int(own.max()) for own in filled), default=1)
    first = np.log10(max(shortest, 1))
    last = np.log10(longest + 1)
    edges = np.logspace(first, last, max(BINS_PER_DECADE, round(BINS_PER_DECADE * (last - first))) + 1)

    def draw(axes: Axes) -> None:
        for name, own in lengths.items():
            counts, _ = np.histogram(np.maximum(own, 1), bins=edges)
            axes.stairs(counts, edges, label=name)
        axes.set(xscale="log", yscale="symlog", xlabel="tokens per document", ylabel="documents")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        if len(lengths) > 1:
            axes.legend(fontsize="small")

    return _svg(draw)


def found_by_similarity(near: Mapping[str, Any]) -> str:
    """The S-curve of near-deduplication with the threshold, as `describe_bands` gives them."""
    similarity = np.linspace(0, 1, 201)
    found = meeting_probability(similarity, near["bands"], near["rows"])
    if near["verified"]:
        found = np.where(similarity < near["threshold"], 0, found)

    def draw(axes: Axes) -> None:
        axes.plot(similarity, found, label=f"{near['bands']} bands of {near['rows']} values")
        at_threshold = near["found"][f"{near['threshold']:g}"]
        axes.axvline(near["threshold"], linestyle=":", label=f"threshold: {at_threshold:.1%} of pairs found")
        axes.set(xlabel="Jaccard similarity of a pair", ylabel="probability that it is found")
        axes.legend(fontsize="small")

    return _svg(draw)


def _svg(draw: Callable[[Axes], None]) -> str:
    """Draw into a new figure, without a window system and without anything that changes from run to run."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "cloze", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 3.2), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
