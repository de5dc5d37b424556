"""Templates that stand for words of the sentence they are in; all others are furniture of a page.

A template's text lies in the wiki that a dump was taken from, and a dump of articles does not hold it. So
`wiki_templates.yaml` lists what the common ones show, by language and name: each has one of the forms below.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache, partial

from data_prep.text import table
from data_prep.text.wiki_biography import biography
from data_prep.text.wiki_numbers import (
    MONEY,
    Values,
    currency,
    format_number,
    height,
    money,
    ordinal,
    quantity,
    rupees,
    superscript,
    track_gauge,
    uncertain_value,
    unit_of_measure,
    write_number,
)
from data_prep.text.wiki_page import Page, magic_word, month_name, template_key
from data_prep.text.wikitext_source import literal

Show = Callable[[Values, Page], str]
"""The text of a template from its parameters, on a page."""


_LANGUAGE = re.compile(r"lang-[\w-]+|link-[a-z-]+")
"""`{{lang-la|urbs}}` in most wikis, `{{link-en|福|Foo}}` in the Chinese one."""
_FUNCTIONS = frozenset({"formatnum", "formatnombre"})
"""Names of the parser function that writes numbers; the first parameter stands after the colon."""
_CONVERSION = re.compile(r"(ft|mi|km|m|cm|in|lb|kg|acre|ha|sqmi|sqkm|nmi|mm|yd) to [a-z]+")
_VULGAR_FRACTIONS = {unicodedata.normalize("NFKC", each): each for each in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}


def shown_by(name: str, page: Page) -> Callable[[Values], str] | None:
    """The function that renders the template of this name as text; None for a template that shows no text."""
    key, tables = template_key(name), _tables()
    show = tables.get(page.lang, {}).get(key) or tables["shared"].get(key) or _by_pattern(key)
    if show is not None:
        return lambda values: show(values, page)
    if (word := magic_word(name.strip(), page)) is not None:
        return lambda values: word
    function, colon, argument = name.strip().partition(":")
    if colon and function.lower() in _FUNCTIONS:
        return lambda values: format_number(_with_argument(argument, values), page.lang)
    return None


@cache
def _tables() -> Mapping[str, Mapping[str, Show]]:
    """The templates of `wiki_templates.yaml`, by language and `template_key`."""
    found: dict[str, dict[str, Show]] = {}
    for lang, forms in table("wiki_templates").items():
        shown = found[lang] = {}
        for form, entries in forms.items():
            if isinstance(entries, list):
                shown |= dict.fromkeys(entries, _FORMS[form])
            else:
                shown |= {name: _FORMS_OF[form](text) for text, names in entries.items() for name in names}
    return found


def _by_pattern(key: str) -> Show | None:
    if key in MONEY:
        return _in_language(partial(money, code=key))
    if _LANGUAGE.fullmatch(key) or key.startswith("script/"):
        return first
    if conversion := _CONVERSION.fullmatch(key):
        return lambda values, page: quantity({"1": values.get("1", ""), "2": conversion.group(1)}, page.lang)
    for pattern, text in _NAMES_THAT_ARE_TEXT:
        if found := pattern.fullmatch(key):
            return constant(text(found))
    return None


def _with_argument(argument: str, values: Values) -> Values:
    """Parameters of a parser function, whose first stands after the colon."""
    moved = {str(int(key) + 1) if key.isdecimal() else key: value for key, value in values.items()}
    return {"1": argument.strip(), **moved}


# -- forms with an argument --------------------------------------------------------------------------------


def constant(text: str) -> Show:
    shown = literal(text)
    return lambda values, page: shown


def parameter(names: str) -> Show:
    """The first of the parameters that is not empty."""
    wanted = names.split(", ")
    return lambda values, page: next((values[name] for name in wanted if values.get(name)), "")


def joined(separator: str) -> Show:
    """All unnamed parameters."""
    return lambda values, page: separator.join(unnamed(values))


def prefixed(form: str) -> Show:
    """The first parameter after some text, which stands alone where there is no parameter."""
    prefix = form.removesuffix("…")
    return lambda values, page: f"{prefix}{values['1']}" if values.get("1") else prefix.rstrip(" ")


def wrapped(form: str) -> Show:
    """The first parameter between two texts; nothing where there is none."""
    before, after = map(literal, form.split("…"))
    return lambda values, page: f"{before}{values['1']}{after}" if values.get("1") else ""


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


def law(sign: str) -> Show:
    """German `{{§|433|bgb|juris}}` reads "§ 433 BGB"."""
    return lambda values, page: f"{sign} {values.get('1', '')} {values.get('2', '').upper()}".rstrip()


# -- forms without --------------------------------------------------------------------------------


def unnamed(values: Values) -> list[str]:
    """Unnamed parameters in their order, without empty ones."""
    numbers = sorted(int(key) for key in values if key.isdecimal())
    return [value for number in numbers if (value := values[str(number)])]


def last(values: Values, page: Page) -> str:
    """The last unnamed parameter."""
    return (unnamed(values) or [""])[-1]


def on_own_lines(values: Values, page: Page) -> str:
    """The first parameter, such as a list in columns, between line breaks."""
    return f"\n{values['1']}\n" if values.get("1") else ""


def quotation(values: Values, page: Page) -> str:
    """A quotation on lines of its own."""
    text = parameter("text, Text, texto, testo, texte, quote, citation, 1")(values, page)
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
        behind = year // 100 - year // 400 - 2 - (year % 100 == 0 and year % 400 != 0 and month < 3)
        later = datetime.date(year, month, day) + datetime.timedelta(days=behind)
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
    return (centuries("") if values.get("1") and values.get("2") else first)(values, page)


def number_with_unit(values: Values, page: Page) -> str:
    rest = [values[key] for key in "2345" if values.get(key)]
    return " ".join([write_number(values.get("1", "").replace(" ", ""), page.lang), *rest])


def raised(values: Values, page: Page) -> str:
    return superscript(values.get("1", "")) if values.get("1") else "e"


def fraction(values: Values, page: Page) -> str:
    """`{{frac|1|2}}` is ½, `{{frac|3|1|16}}` 3 1⁄16."""
    numbers = unnamed(values)
    if not numbers:
        return ""
    *whole, numerator, denominator = ["1", *numbers][-3 if len(numbers) > 2 else -2 :]
    fraction = f"{numerator}\u2044{denominator}"
    return " ".join([*whole, _VULGAR_FRACTIONS.get(fraction, fraction)])


def ship(values: Values, page: Page) -> str:
    return " ".join(unnamed({**values, "3": "", "4": ""}))


def ship_class(values: Values, page: Page) -> str:
    return f"{values.get('1', '')}-class {values.get('2', '')}".strip()


def reading(values: Values, page: Page) -> str:
    return f"{values.get('1', '')}（{values.get('2', '')}）"


def as_written(values: Values, page: Page) -> str:
    """`{{sic|hostige}}`."""
    text = "".join(unnamed(values))
    return text if values.get("hide") in ("y", "yes") else f"{text} [sic]".strip()


def citation_in_text(values: Values, page: Page) -> str:
    """`{{harvtxt|Boolos|Jeffrey|1974|p=3}}` reads "Boolos & Jeffrey (1974, p. 3)"."""
    *names, year = unnamed(values) or [""]
    who = (
        f"{names[0]} et al."
        if len(names) > 3
        else " & ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    )
    where = "".join(
        f", {sign} {values[key]}" for key, sign in (("p", "p."), ("pp", "pp.")) if values.get(key)
    )
    return f"{who} ({year}{where})".strip()


_CHINESE = (("c", "Chinese"), ("s", "simplified Chinese"), ("t", "traditional Chinese"), ("p", "pinyin"))


def chinese(values: Values, page: Page) -> str:
    return "; ".join(f"{label}: {values[key]}" for key, label in _CHINESE if values.get(key))


def music(values: Values, page: Page) -> str:
    return {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}.get(values.get("1", ""), "")


first, second = parameter("1"), parameter("2")
_FORMS_OF: Mapping[str, Callable[[str], Show]] = {
    form.__name__: form for form in (constant, parameter, joined, prefixed, wrapped, years, centuries, law)
}


def _in_language(write: Callable[[Values, str], str]) -> Show:
    """Words and formats that depend on the language of the wiki."""
    return lambda values, page: write(values, page.lang)


_FORMS: Mapping[str, Show] = {
    "first": first,
    "second": second,
    "number": lambda values, page: write_number(values.get("1", ""), page.lang),
    "us_patent": lambda values, page: f"U.S. patent {write_number(values.get('1', ''), page.lang)}",
    "power_of_ten": lambda values, page: f"×10{superscript(values.get('1', ''))}",
    "spanish_ordinal": lambda values, page: f"{values.get('1', '')}.{'ª' if values.get('2') == 'a' else 'º'}",
    "biography": lambda values, page: biography(values),
    **{
        write.__name__: _in_language(write)
        for write in (
            quantity,
            uncertain_value,
            ordinal,
            height,
            currency,
            rupees,
            track_gauge,
            unit_of_measure,
        )
    },
    **{
        show.__name__: show
        for show in (
            last,
            on_own_lines,
            quotation,
            japanese,
            age,
            age_of_day_first,
            date,
            day_first,
            date_in_french,
            as_of,
            old_style_date,
            julian_date,
            life,
            hour,
            siglo,
            century,
            number_with_unit,
            raised,
            fraction,
            ship,
            ship_class,
            reading,
            as_written,
            citation_in_text,
            chinese,
            music,
        )
    },
}


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


_NAMES_THAT_ARE_TEXT: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_CENTURY_NAME, _century_in_name),
    (_CENTURIES, lambda found: f"{_roman(found.group(1))} {found.group(2)} {_roman(found.group(3))} siècles"),
    (_FIRST_OF_MONTH, lambda found: found.group()),
    (_ROMAN, lambda found: found.group(1).upper() + found.group(2)),
    (_ARABIC, lambda found: found.group()),
)
