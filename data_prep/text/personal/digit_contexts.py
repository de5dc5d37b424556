"""Meanings of groups of digits besides telephone numbers, and the words around them that show the meaning."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from data_prep.text.personal import words

_YEAR = r"(?:1\d|20|21)\d\d"
_MONTH = r"(?:0?[1-9]|1[0-2])"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_HOUR = r"(?:[01]?\d|2[0-4])"
_CLOCK = (
    rf"(?:[ \t\xa0,T_/-]{{1,3}}(?:{_HOUR}(?:[.:hH][0-5]\d){{1,2}}(?:[.,]\d+)?(?!\d)"
    r"|(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?(?![ .-]?\d)))?"
)
_FREE, _ENDS = r"(?<!\d)(?<!\d[./-])", r"(?!\d)(?![./-]\d)"
_DAY_AND_MONTH = rf"(?:{_DAY}(?P<b>[./-])\s?{_MONTH}|{_MONTH}(?P<c>[./-])\s?{_DAY})(?:(?P=b)|(?P=c))\s?"
_DATES = regex.compile(
    "|".join(
        (
            rf"(?<!\d){_YEAR}(?P<a>[./-])(?:{_MONTH}(?P=a){_DAY}|{_DAY}(?P=a){_MONTH})(?!\d){_CLOCK}",
            rf"(?<!\d){_DAY_AND_MONTH}{_YEAR}(?!\d){_CLOCK}",
            rf"{_FREE}{_DAY_AND_MONTH.replace('b>', 'd>').replace('c>', 'e>').replace('=b', '=d').replace('=c', '=e')}"
            rf"\d\d{_ENDS}{_CLOCK}",
            rf"(?<!\d){_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])[ T_-]?(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?(?!\d)",
            rf"{_FREE}(?:1\d|20)\d\d ?[/\u2010-\u2015-] ?(?:1\d|20)\d\d{_ENDS}",
            rf"{_FREE}{_HOUR}[.h][0-5]\d ?[\u2010-\u2015-] ?{_HOUR}[.h][0-5]\d(?!\d)(?![./]\d)",
            r"(?<=\d:)\d++|(?<!\d)\d++(?=:\d)",
        )
    )
)
"""Dates in any order with any clock after them, compact timestamps, spans of years and hours, and
what a colon ties to digits."""
MAX_DATE_CHARACTERS = 16
"""Characters of a date that may stand outside a run of digits and separators, such as the seconds after a colon."""

PHONE_CUE = regex.compile(rf"(?i)(?<!\p{{L}})(?:{words('phone')})(?!\p{{L}})|{words('phone_unspaced')}")
"""Words before a telephone number, in some forty languages."""
NOT_A_PHONE = regex.compile(
    rf"(?i)(?:(?<!\p{{L}})(?:{words('other')})\.?"
    r"|[#№§$€£¥₹₽₩])[-:\s]{0,3}(?:1[03][-:\s]{1,2})?[(\"']?\Z|10\.\d{4,9}/\S*\Z|(?:://|www\.)\S*\Z"
)
"""Words before another kind of number; a match ends where the digits begin."""
UNIT_AFTER = regex.compile(
    r"[ \t\xa0\u202f]?(?:[%‰°′″€£¥₹₽₩$]|(?:km|kg|mm|cm|EUR|USD|GBP|CHF|Kč|zł|kr|Ft|lei)\b)"
)
COUNTED_AFTER = regex.compile(
    rf"(?i)[ \t\xa0\u202f](?:(?:US|U\.S\.|Canadian|Australian) )?(?:{words('counted')})\b"
)
"""Things that are counted by a number in groups with spaces."""

_SPACES = frozenset(" \xa0\u2007\u2009\u202f")
_ALONE_BEFORE = regex.compile(r"(?:\A|[\n\r:;•·(\[„“\"]|\n[-*])[ \t\xa0]*\Z")
_ALONE_AFTER = regex.compile(r"[ \t\xa0]*(?:\Z|[\n\r;•·)\],“”\"]|\.(?:\s|\Z))")


def dates_and_times(text: str, run: tuple[int, int]) -> list[tuple[int, int]]:
    """Spans of dates, times and years that touch text[run[0]:run[1]]."""
    start = max(run[0] - MAX_DATE_CHARACTERS, 0)
    return [match.span() for match in _DATES.finditer(text, start, run[1] + MAX_DATE_CHARACTERS)]


def is_thousands(groups: Sequence[str], separators: Sequence[str]) -> bool:
    """Whether a number is written with its thousands set apart: `2 345 678 901`, `12.345.678`."""
    return (
        len(groups) > 2
        and len(set(separators)) == 1
        and (separators[0] in _SPACES or separators[0] == ".")
        and 0 < len(groups[0]) <= 3
        and groups[0][0] != "0"
        and all(len(group) == 3 for group in groups[1:])
    )


def is_range(groups: Sequence[str], separators: Sequence[str]) -> bool:
    """Whether two groups may be the ends of a range: pages 1120-1145, or the years 1914 and 1918."""
    if len(groups) != 2 or len(groups[0]) != len(groups[1]) or groups[0][0] == "0":
        return False
    low, high = map(int, groups)
    if separators[0] in _SPACES:
        return all(1000 <= year <= 2100 for year in (low, high))
    return low < high < 2 * low


def is_dotted_quad(groups: Sequence[str], separators: Sequence[str]) -> bool:
    """Whether it has the form of an IP address or a version."""
    return len(groups) == 4 and set(separators) == {"."} and all(len(group) <= 3 for group in groups)


def stands_alone(text: str, start: int, stop: int) -> bool:
    """Whether a number is in brackets or quotes, after a colon, or by itself in its line."""
    return bool(_ALONE_BEFORE.search(text, max(start - 4, 0), start) and _ALONE_AFTER.match(text, stop))
