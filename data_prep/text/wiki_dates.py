"""Templates of dates: days, ages, centuries."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping

from data_prep.text.wiki_numbers import Values, unnamed
from data_prep.text.wiki_page import Page, Show, month_name


def years(form: str) -> Show:
    """`{{circa|1850|1860}}` reads "c. 1850 – c. 1860", `{{reign|1850|1860}}` "r. 1850–1860"."""
    sign, again, separator = form.split("|")

    def show(values: Values, page: Page) -> str:
        shown = [f"{sign if not at else again}{year}" for at, year in enumerate(unnamed(values)[:2])]
        return separator.join(shown) or sign.strip()

    return show


def centuries(before_christ: str) -> Show:
    """`{{s|XIX|e}}` reads "XIXe siècle", `{{sp|V|e|au|VI|e|s}}` "Ve au VIe siècles". With one parameter, `s` is the
    "do not wrap" of other wikis."""

    def show(values: Values, page: Page) -> str:
        parts = [values[key] for key in "123456789" if key in values]
        if len(parts) < 2:
            return "".join(parts)
        shown = parts.pop(0) + parts.pop(0)
        many = False
        while len(parts) >= 2:
            word = "et" if re.fullmatch("[IVX]+", parts[0]) else parts.pop(0)
            if len(parts) < 2:
                break
            shown += f" {word} {parts.pop(0)}{parts.pop(0)}"
            many = True
        return f"{shown} {'siècles' if many else 'siècle'}{before_christ}"

    return show


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
            if page.saved is None:
                return ""
            then = (page.saved.year, page.saved.month, page.saved.day)
    except ValueError:
        return ""
    return str(then[0] - born[0] - (then[1:] < born[1:]))


def age_of_day_first(values: Values, page: Page) -> str:
    return age({"1": values.get("3", ""), "2": values.get("2", ""), "3": values.get("1", "")}, page)


def date(values: Values, page: Page) -> str:
    return spelled_date(values.get("1", ""), values.get("2", ""), values.get("3", ""), page.lang)


def day_first(values: Values, page: Page) -> str:
    return spelled_date(values.get("3", ""), values.get("2", ""), values.get("1", ""), page.lang)


def date_in_french(values: Values, page: Page) -> str:
    """Day, month and year; what follows is the subject to which the year links."""
    day, month, year = (values.get(key, "") for key in "123")
    return spelled_date(year, month, day if day != "1" else "1er", "fr")


def as_of(values: Values, page: Page) -> str:
    words = "since" if "since" in values else "as of"
    words = words if values.get("lc") else words.capitalize()
    return values.get("alt") or f"{words} {date(values, page)}".strip()


def old_style_date(values: Values, page: Page) -> str:
    return f"{values.get('1', '')} [O.S. {values.get('3', '')}] {values.get('2', '')}".strip()


def julian_date(values: Values, page: Page) -> str:
    """Russian `{{СС3|26.5.1799}}`: a date of the Julian calendar, with the Gregorian one."""
    try:
        day, month, year = (int(part) for part in values.get("1", "").split("."))
        shift = year // 100 - year // 400 - 2 - (year % 100 == 0 and year % 400 != 0 and month < 3)
        later = datetime.date(year, month, day) + datetime.timedelta(days=shift)
    except (ValueError, OverflowError):
        return values.get("1", "")
    old, new = month_name(month, "ru, genitive"), month_name(later.month, "ru, genitive")
    if later.year != year:
        return f"{day} {old} {year} ({later.day} {new} {later.year})"
    return f"{day} ({later.day}) {new} {year}" if old == new else f"{day} {old} ({later.day} {new}) {year}"


def life(values: Values, page: Page) -> str:
    """Chinese `{{bd|1879年|3月14日|1955年|4月18日}}`."""
    born, died = values.get("1", "") + values.get("2", ""), values.get("3", "") + values.get("4", "")
    return f"（{born}－{died}）"


def hour(values: Values, page: Page) -> str:
    return " ".join(filter(None, (values.get("1", ""), "h", values.get("2", ""))))


def siglo(values: Values, page: Page) -> str:
    """Spanish `{{siglo|V|a}}`; the second parameter says before (`a`) or after Christ."""
    era = {"a": " a. C.", "d": " d. C."}.get(values.get("2", ""), "")
    return f"siglo {values.get('1', '')}{era}"


def century(values: Values, page: Page) -> str:
    """French `{{s|XIX|e}}`; with one parameter it is the "do not wrap" of other wikis."""
    return centuries("")(values, page) if values.get("1") and values.get("2") else values.get("1", "")


DATES: tuple[Show, ...] = (
    *(age, age_of_day_first, date, day_first, date_in_french, as_of, old_style_date, julian_date, life, hour),
    *(siglo, century),
)
"""Forms of `wiki_templates.yaml`, by the names of their functions."""


# -- French templates whose name is their text, such as `{{XIXe siècle}}`, `{{IIe}}`, `{{12e}}`, `{{1er mai}}` ---------


_CENTURY_NAME = re.compile(r"((?:[ivx]+e)|ier) (siècle|millénaire)( av\. j\.-c\.)?")
_CENTURIES = re.compile(r"([ivx]+e|ier) (et|au|ou) ([ivx]+e) siècles?")
_FIRST_OF_MONTH = re.compile(r"1er [a-zéû]+")
_ROMAN = re.compile(r"(i|ii|iii|iv|v|vi{1,3}|ix|x[ivx]*)(er|re|e)")
_ARABIC = re.compile(r"\d{1,4}(?:er|re|e|d|de|ers|res|es|nd|nde)")


def _century_in_name(found: re.Match[str]) -> str:
    number, unit, era = found.groups()
    return f"{_roman(number)} {unit}{' av. J.-C.' if era else ''}"


def _roman(number: str) -> str:
    return "Ier" if number == "ier" else number[:-1].upper() + "e"


NAMES_THAT_ARE_TEXT: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_CENTURY_NAME, _century_in_name),
    (_CENTURIES, lambda found: f"{_roman(found.group(1))} {found.group(2)} {_roman(found.group(3))} siècles"),
    (_FIRST_OF_MONTH, lambda found: found.group()),
    (_ROMAN, lambda found: found.group(1).upper() + found.group(2)),
    (_ARABIC, lambda found: found.group()),
)
