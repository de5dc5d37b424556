"""Control characters that stand in a page for something until it is rendered.

None of them can come out of an XML file, and what a page spells as an entity is never turned into one.
"""

from __future__ import annotations

HEADING = "\x02"
"""Starts a heading's line, before its level, until empty sections are dropped."""
PLACE = "\x03"
"""Stands around the number of a protected piece of the page."""
LESS_THAN = "\x04"
"""An escaped `<` until stray tags are removed: it begins none."""
APOSTROPHE = "\x05"
"""An apostrophe that is a character, whatever stands beside it, until bold and italic quotes are taken out."""
EDGE = "\x06"
"""Nothing; holds apart what a tag, a link or a template holds apart, until then."""
LINE_BREAK = "\x07"
"""A `<br>`, until then: it ends a line that is shown, and not a line of the source."""
SPACE = "\x08"
"""A space that is written as an entity, until then."""
BLOCK = "\x0e"
"""A border of a block such as `<div>` or a term's definition, until list marks are removed: it ends a line in which
something is shown before it."""
COLON = "\x0f"
"""A colon in the text of a link, until then: it ends no term."""
ESCAPED = "\x10"
"""Before a character that is no markup, until the end: spelled as an entity, or the first of a link's text."""
SHOWN = {
    LESS_THAN: "<",
    APOSTROPHE: "'",
    EDGE: "",
    LINE_BREAK: "\n",
    SPACE: " ",
    BLOCK: "\n",
    COLON: ":",
    ESCAPED: "",
}
"""The text that each mark becomes in the end."""


def literal(text: str) -> str:
    """The text with every apostrophe in it a character, and no mark of a list or table at its beginning."""
    return (ESCAPED if text.startswith(("*", "#", ":", ";", "|", "!")) else "") + text.replace(
        "'", APOSTROPHE
    )
