"""Texts of strangers, such as titles and names of files, for a terminal or a page; and what pages consist of."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONTROLS = {*range(32), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""Embeddings, overrides and isolates, which show other text than there is (CVE-2021-42574)."""
_PICTURES = {code: 0x2400 + code if code < 32 else 0xFFFD for code in _CONTROLS | _DIRECTIONS}
_ODD = re.compile(f"[{''.join(map(chr, sorted(code for code in _PICTURES if code >= 127)))}]")


def visible(text: object) -> str:
    """A text without characters that move a cursor, set colours or exchange the order of others: pictures of them."""
    return str(text).translate(_PICTURES)


def escaped(json: str) -> str:
    """JSON with escapes for these characters, which mean the same to its reader."""
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def finalize(value: Any) -> Any:
    """`visible` for what a template shows; markup stays markup."""
    return value.translate(_PICTURES) if isinstance(value, str) else value


def render(
    template: str, filters: Mapping[str, Callable[..., Any]] = MappingProxyType({}), **values: Any
) -> str:
    """The text of a page: markup in values is escaped, their characters are `visible`, and a name that the template
    knows and `values` lack is an error."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= filters
    return environment.from_string(template).render(values)


def svg(draw: Callable[[Axes], object], *, width: float = 7.5, height: float = 3.2) -> str:
    """An SVG element for a page: a drawing of these inches, without a window system and without anything that changes
    from run to run. Its colours are those of paper; pages invert it on dark screens."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "cloze", "svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing, transparent=True)
    return "".join(text.getvalue().partition("<svg")[1:])
