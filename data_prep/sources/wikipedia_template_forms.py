"""The forms that what templates show is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from data_prep.sources.wikipedia_numbers import Values
from data_prep.sources.wikipedia_page import Page, month_name
from data_prep.sources.wikitext_marks import literal

Show = Callable[[Values, Page], str]
"""The text of a template from its parameters, on a page."""


def table(show: Show, names: str) -> dict[str, Show]:
    """One entry for every name in a comma-separated list."""
    return {name.strip(): show for name in names.split(",")}


def constant(text: str) -> Show:
    shown = literal(text)
    return lambda values, page: shown


def parameter(*names: str) -> Show:
    """The first of the parameters that is not empty."""
    return lambda values, page: next((values[name] for name in names if values.get(name)), "")


first, second = parameter("1"), parameter("2")


def last(values: Values, page: Page) -> str:
    """The last unnamed parameter."""
    return (unnamed(values) or [""])[-1]


def unnamed(values: Values) -> list[str]:
    """Unnamed parameters in their order, without empty ones."""
    numbers = sorted(int(key) for key in values if key.isdecimal())
    return [value for number in numbers if (value := values[str(number)])]


def joined(separator: str, most: int | None = None) -> Show:
    """Unnamed parameters, `most` of them at most."""
    return lambda values, page: separator.join(unnamed(values)[:most])


def prefixed(prefix: str, separator: str = " ") -> Show:
    return lambda values, page: f"{prefix}{separator if values.get('1') else ''}{values.get('1', '')}"


def wrapped(before: str, after: str) -> Show:
    return lambda values, page: f"{literal(before)}{values['1']}{literal(after)}" if values.get("1") else ""


def on_own_lines(values: Values, page: Page) -> str:
    """The first parameter, such as a list in columns, between line breaks."""
    return f"\n{values['1']}\n" if values.get("1") else ""


def in_language(write: Callable[[Values, str], str]) -> Show:
    """Words and formats that depend on the language of the wiki."""
    return lambda values, page: write(values, page.lang)


def quotation(values: Values, page: Page) -> str:
    """A quotation on lines of its own."""
    text = parameter("text", "Text", "texto", "testo", "texte", "quote", "citation", "1")(values, page)
    return f"\n{text}\n" if text else ""


def japanese(values: Values, page: Page) -> str:
    """`{{nihongo|English|kanji|romaji|extra}}`."""
    name, *rest = (values.get(key, "") for key in "1234")
    inside = ", ".join(filter(None, rest))
    return f"{name} ({inside})" if name and inside else name or inside


def spelled_date(year: str, month: str, day: str, lang: str) -> str:
    """Year, month and day, as "3 May 1980" or "3 de mayo de 1980"."""
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = month_name(int(month), lang)
    separator = " de " if lang in ("es", "pt", "gl") else " "
    return separator.join(filter(None, (day.lstrip("0"), month, year)))


def age(values: Mapping[str, str], page: Page) -> str:
    """Whole years between two dates (year, month, day), or until the page was saved."""
    try:
        born = tuple(int(values.get(key) or 1) for key in "123")
        if values.get("4"):
            then: tuple[int, ...] = tuple(int(values.get(key) or 1) for key in "456")
        else:
            saved: datetime | None = page.saved
            if saved is None:
                return ""
            then = (saved.year, saved.month, saved.day)
    except ValueError:
        return ""
    return str(then[0] - born[0] - (then[1:] < born[1:]))
