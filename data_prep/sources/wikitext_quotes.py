"""Bold and italic quotes of wikitext, taken out as MediaWiki reads them.

Two apostrophes are italic, three bold, five both, and quotes end with their line. Which apostrophes are markup and
which are text follows `Parser::doQuotes` of MediaWiki (`includes/parser/Parser.php`): `l'''Odyssée''` shows
"l'Odyssée", `''Time'''s` shows "Time's".
"""

from __future__ import annotations

import re

_RUN = re.compile("('{2,})")
_ITALIC, _BOLD, _BOTH = 2, 3, 5


def drop_quotes(text: str) -> str:
    """The text without the quotes that are markup; a line without any is returned as it is."""
    if "''" not in text:
        return text
    return "\n".join([drop_quotes_of_line(line) if "''" in line else line for line in text.split("\n")])


def drop_quotes_of_line(line: str) -> str:
    """Like `drop_quotes`, for what MediaWiki takes for one line, such as the text of a link."""
    pieces = _RUN.split(line)
    texts, lengths = pieces[0::2], [len(run) for run in pieces[1::2]]
    for number, length in enumerate(lengths):
        lengths[number] = _markup_length(length)
        texts[number] += "'" * (length - lengths[number])
    num_bold = sum(length in (_BOLD, _BOTH) for length in lengths)
    num_italic = sum(length in (_ITALIC, _BOTH) for length in lengths)
    if num_bold % 2 and num_italic % 2:
        bold = [number for number, length in enumerate(lengths) if length == _BOLD]
        if bold:
            texts[min(bold, key=lambda number: _rank(texts[number]))] += "'"
    return "".join(texts)


def _markup_length(length: int) -> int:
    """How many apostrophes of a run are markup: the last ones. The apostrophes before them are text."""
    return _BOLD if length == _BOLD + 1 else min(length, _BOTH)


def _rank(before: str) -> int:
    """How unlikely it is that bold quotes are an apostrophe and italic ones, by the text before them: likeliest behind
    a word of one letter, then behind a longer one, least behind a space. MediaWiki looks at bytes, so that a letter
    is one of ASCII, and the beginning of a line ends no word."""
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] == " " and before[-1].isascii() else 1
