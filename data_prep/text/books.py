"""Plain-text books: chapters, and the frame that Project Gutenberg puts around a book."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

CHAPTER_BREAK = "\n\n\n"
"""Two blank lines separate chapters, one separates paragraphs."""
MAX_HEADING_CHARACTERS = 120


def join_chapters(parts: Iterable[Sequence[str]]) -> str:
    """The text of a book whose chapters are lists of paragraphs."""
    return CHAPTER_BREAK.join("\n\n".join(part) for part in parts if part)


def split_chapters(paragraphs: Sequence[str]) -> list[list[str]]:
    """Cut the paragraphs of a book before each heading that opens a chapter, a part or a preface.

    Headings that follow one another (a part's and its first chapter's, or in a table of contents) stay
    together. Numbers alone are headings where no chapter is called so, and only where they count up.
    """
    headings = _headings(paragraphs)
    starts = [0, *sorted(number for number in headings if number and number - 1 not in headings)]
    ends = [*starts[1:], len(paragraphs)]
    return [list(paragraphs[start:end]) for start, end in zip(starts, ends, strict=True) if start < end]


# -- headings -----------------------------------------------------------------------------------------------


def _cased(words: str) -> str:
    """Alternatives of an expression: words with a capital and in capitals, as headings write them."""
    return "|".join(sorted({form for word in words.split() for form in (word.capitalize(), word.upper())}))


_CHAPTERS = _cased(
    "chapter letter canto stave kapitel capitel brief chapitre lettre chant capitol capitolul capítulo capitolo"
)
_PARTS = _cased(
    "book part volume vol buch teil theil band abtheilung livre partie tome cartea partea libro parte tomo"
)
_LONE = _cased(
    "prologue epilogue preface foreword afterword introduction introductory conclusion finale prolog epilog"
    " vorwort einleitung nachwort préface avant-propos épilogue prefață prólogo epílogo"
)
_NUMBER_WORDS = _cased(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty thirty forty fifty first second third fourth fifth sixth seventh eighth ninth tenth"
    " eleventh twelfth twentieth last eins zwei drei vier fünf sechs sieben acht neun zehn premier première deux"
    " deuxième seconde trois troisième quatrième cinquième dernier dernière întâi întâia doua treia patra"
    " primero primera segundo segunda tercero tercera primo prima secondo seconda terzo terza"
)
_ORDINALS = _cased(
    "erstes zweites drittes viertes fünftes sechstes siebentes siebtes achtes neuntes zehntes elftes zwölftes"
    " dreizehntes vierzehntes fünfzehntes sechzehntes siebzehntes achtzehntes neunzehntes zwanzigstes letztes"
    " erster zweiter dritter vierter fünfter sechster erste zweite dritte vierte fünfte sechste"
    " première premier deuxième seconde troisième quatrième cinquième dernière primera segunda tercera prima"
    " seconda terza first second third fourth fifth last"
)
_ROMAN = r"(?=[CLXVI])C{0,3}(?:XC|XL|L?X{0,4})(?:IX|IV|V?I{0,4})"
_UNITS = r"(?:[ -](?i:one|two|three|four|five|six|seven|eight|nine|first|second|third))?"
_NUMBER = rf"(?:\d{{1,3}}|(?i:{_ROMAN})|(?:[Tt]he |THE )?(?:{_NUMBER_WORDS}|premier|première){_UNITS})"
_TITLE = r"(?:[.:)\]]?|(?:[.:)\]]| ?[—–-]{1,2}|(?= ))[ _]*(?![a-zà-ÿ ]).{1,90})"
"""The part after the number: nothing, or a title, which begins with no small letter."""


def _named(names: str) -> re.Pattern[str]:
    """`CHAPTER IV. A Title`, `BOOK THE FIRST`, `Erstes Kapitel`, `3. Kapitel`, `Première partie`."""
    return re.compile(
        rf"(?:{names})[.,]? (?:No\. ?)?{_NUMBER}{_TITLE}"
        rf"|(?:THE |The )?(?:{_ORDINALS}|\d{{1,3}}\.) (?i:{names}){_TITLE}"
    )


_CHAPTER, _PART = _named(_CHAPTERS), _named(_PARTS)
_BARE = re.compile(rf"(?:{_CHAPTERS}|{_PARTS})[.,]? {_NUMBER}(?:[.:]?|[.:]? [^a-zà-ÿ]{{1,80}})")
_LONE_NAME = re.compile(rf"(?:{_LONE})[.:]?")
_LONE_ROMAN = re.compile(rf"({_ROMAN})(?:\.?|(?:\.| ?[—–-]{{1,2}}) ?(?![a-zà-ÿ ]).{{1,80}})")
_LONE_DIGITS = re.compile(r"(\d{1,3})\.?")


def is_bare_heading(line: str) -> bool:
    """Whether a line is a chapter's or part's name and number, with no title or one in capitals."""
    return len(line) <= MAX_HEADING_CHARACTERS and _BARE.fullmatch(line.strip(" []_*-")) is not None


def _headings(paragraphs: Sequence[str]) -> set[int]:
    """Indices of the paragraphs that are headings."""
    short = [
        (number, text.replace("\n", " ").strip(" []_*-"))
        for number, text in enumerate(paragraphs)
        if len(text) <= MAX_HEADING_CHARACTERS
    ]
    named = [number for number, text in short if _CHAPTER.fullmatch(text)]
    found = {number for number, text in short if _PART.fullmatch(text) or _LONE_NAME.fullmatch(text)}
    found.update(named)
    if len(named) < 2:
        roman = list(_counting_up((number, _roman_value(text)) for number, text in short))
        digits = ((number, _LONE_DIGITS.fullmatch(text)) for number, text in short)
        found.update(roman or _counting_up((number, int(each[1]) if each else 0) for number, each in digits))
    return found


def _counting_up(candidates: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Paragraphs whose number is the next one, or is the 1 before a 2."""
    numbered = [(number, value) for number, value in candidates if value]
    values = [value for _, value in numbered]
    for (number, value), before, after in zip(numbered, [0, *values], [*values[1:], 0], strict=False):
        if (value > 1 and before == value - 1) or (value == 1 and after == 2):
            yield number


_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


def _roman_value(text: str) -> int:
    found = _LONE_ROMAN.fullmatch(text)
    if not found:
        return 0
    values = [_ROMAN_DIGITS[digit] for digit in found.group(1)]
    return sum(
        -value if value < after else value for value, after in zip(values, [*values[1:], 0], strict=True)
    )


# -- Project Gutenberg's frame -------------------------------------------------------------------------------

HEADER_CHARACTERS = 100_000
"""The header's end is looked for in this much of a file's beginning: a novel may well say `*** START OF`."""
FOOTER_CHARACTERS = 60_000
"""The footer's start is looked for in this much of a file's end; the licence is about 20,000 long."""

_HEADER_END = re.compile(
    r"^[ \t]*\*{3}[ ]?START OF (?:THE|THIS) PROJECT GUTENBERG[^*]{0,500}\*{3}[^\n]*\n"
    r"|^[ \t]*\*END[ *]{1,3}THE SMALL PRINT![^\n]{0,200}\n",
    re.IGNORECASE | re.MULTILINE,
)
"""Since 2004; before."""
_FOOTER_START = re.compile(
    r"^[ \t]*\*{3}[ ]?END OF (?:THE|THIS) PROJECT GUTENBERG"
    r"|^[ \t]*(?:\*{3} ?)?End of (?:the |this )?Project Gutenberg(?:'s|’s|\b)[^\n]{0,300}$"
    r"|^[ \t]*\*{3}START\*{2}THE SMALL PRINT!",
    re.IGNORECASE | re.MULTILINE,
)
_FIELD = re.compile(
    r"^(Title|Author|Language): *(\S[^\n]{0,300}(?:\n[ \t]+\S[^\n]{0,300}){0,5})", re.MULTILINE
)
_CREDITS = re.compile(
    r"\s*(?:Produced by|E-?text prepared by|This e-?text was (?:produced|prepared|typed|scanned)|"
    r"(?:Transcribed|Prepared|Scanned|Typed|Digitized) (?:and proofed |and edited )?(?:by|from)|"
    r"(?:HTML|Text) version by)\b[^\n]*(?:\n[^\n]+){0,7}(?=\n[ \t]*\n|\s*$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A book without its frame, and what the frame says of it."""

    text: str
    title: str = ""
    author: str = ""


def take_off_frame(text: str) -> Frame:
    """The book between Project Gutenberg's header and footer, of any of their styles; other text as it is.

    Lines of thanks at the book's beginning (`Produced by`) belong to the frame, transcriber's notes to the book.
    """
    head = text[:HEADER_CHARACTERS]
    title = author = ""
    ends = [found.end() for found in _HEADER_END.finditer(head)]
    if ends:
        fields = {key: " ".join(value.split()) for key, value in _FIELD.findall(head[: ends[0]])}
        title, author = fields.get("Title", ""), fields.get("Author", "")
        text = text[ends[-1] :]
        while credit := _CREDITS.match(text[:HEADER_CHARACTERS]):
            text = text[credit.end() :]
    tail_start = max(0, len(text) - FOOTER_CHARACTERS)
    if footer := _FOOTER_START.search(text, tail_start):
        text = text[: footer.start()]
    return Frame(text.strip("\n"), title, author)
