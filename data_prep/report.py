"""One page about a token store: numbers, plots and sampled documents in a file that needs nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.artefacts.visible import render
from cluster.copies import beside, manifest_at
from data_prep.dedup.config import meeting_probability
from data_prep.hashing import hash_strings
from data_prep.layout import DOCUMENTS
from data_prep.token_store import TokenStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Path(__file__).with_name("report.html.j2")
SAMPLED_DOCUMENTS = 12
EXCERPT_CHARACTERS = 700
SAMPLE_SALT = 2
"""Hash seed that makes the sampled documents independent of the held-out ones."""
BINS_PER_DECADE = 8


def render_report(store: TokenStore, facts: Mapping[str, Any]) -> str:
    """HTML of one self-contained page; the same store gives the same page, timings aside.

    Args:
        facts: what `describe_store` says of the store.
    """
    numbers, names = store.sources()
    near = facts.get("near_duplicates")
    curve = {"Near-duplicates found, by their similarity": found_by_similarity(near)} if near else {}
    lengths = {name: store.lengths[numbers == number] for number, name in enumerate(names)}
    # The documents with the lowest hashed ids, so that every run shows the same; none where all are gone.
    documents, samples = manifest_at(beside(store.path, DOCUMENTS)), []
    if documents is not None and documents.stats:
        hashes = hash_strings(store.doc_ids(), salt=SAMPLE_SALT)
        samples = list(store.documents(np.sort(np.argsort(hashes, kind="stable")[:SAMPLED_DOCUMENTS])))
    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        {"number": _number},
        facts=facts,
        # The row of an only language would repeat the figures of all sources.
        tables=[
            ("Sources", facts["sources"]),
            *([("Languages", facts["languages"])] if len(facts["languages"]) > 1 else []),
        ],
        plots=curve | {"Lengths of documents": length_histogram(lengths)},
        dropped=documents.stats.get("dropped_examples", []) if documents else [],
        samples=samples,
        excerpt=EXCERPT_CHARACTERS,
    )


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(own)}" for name, own in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def length_histogram(lengths: Mapping[str, np.ndarray]) -> str:
    """Documents by their number of tokens, one line for each name; both axes logarithmic."""
    shortest = min((int(own.min()) for own in lengths.values() if len(own)), default=1)
    longest = max((int(own.max()) for own in lengths.values() if len(own)), default=1)
    first, last = np.log10(max(shortest, 1)), np.log10(longest + 1)
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
    return "".join(text.getvalue().partition("<svg")[1:])
