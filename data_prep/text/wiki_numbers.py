"""Numbers, quantities, money and dates as templates of Wikipedias show them, as a wiki's language writes them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import NamedTuple

from data_prep.text import table
from data_prep.text.wiki_page import Page, Show, Values, month_name

_WORDS = table("wiki_words")


class _Separators(NamedTuple):
    groups: str
    decimals: str
    least_digits: int = 4
    """Numbers of fewer digits are written without groups."""


_SEPARATORS = {lang: _Separators(*signs) for *signs, langs in _WORDS["separators"] for lang in langs.split()}
_ENGLISH = _Separators(",", ".")
_NUMBER = re.compile(r"([-−+]?)(\d+)(?:\.(\d+))?")
_SUPERSCRIPTS = str.maketrans("0123456789+-−–", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻")


def write_number(text: str, lang: str) -> str:
    """A number in digits with the separators of a language; any other text as it is."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return text
    sign, whole, fraction = found.groups()
    separators = _SEPARATORS.get(lang, _ENGLISH)
    if len(whole) >= separators.least_digits and (whole[0] != "0"):
        whole = f"{int(whole):,}".replace(",", separators.groups)
    return sign + whole + (separators.decimals + fraction if fraction else "")


def read_number(text: str, lang: str) -> str:
    """The reverse of `write_number`: digits with a decimal point and no other separators."""
    separators = _SEPARATORS.get(lang, _ENGLISH)
    return text.replace(separators.groups, "").replace(separators.decimals, ".")


def superscript(text: str) -> str:
    """Digits and signs as the small raised characters that Unicode has."""
    return text.translate(_SUPERSCRIPTS)


def format_number(values: Values, page: Page) -> str:
    """`{{formatnum:1234567}}`; with `R` the reverse, with `NOSEP` without separators."""
    number, how = values["1"].strip(), values["2"]
    if how == "NOSEP":
        return number
    return read_number(number, page.lang) if how == "R" else write_number(number, page.lang)


def ordinal(values: Values, page: Page) -> str:
    """`{{ordinal|22}}` is 22nd."""
    number = values["1"]
    digits = number.replace(",", "")
    if not digits.isdecimal():
        return number
    teens = digits[-2:-1] == "1"
    return number + ("th" if teens else {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th"))


# -- quantities -------------------------------------------------------------------------------------------------------

_RANGE_WORDS: Mapping[str, str] = _WORDS["between"]
_UNITS: Mapping[str, str] = _WORDS["units"]
"""How units are written whose code in `{{convert}}` is another."""
_PLURALS: Mapping[str, str] = _WORDS["plurals"]


def quantity(values: Values, page: Page) -> str:
    """`{{convert|3|to|5|km|mi}}` reads "3 to 5 km"; the converted quantity is left out."""
    shown, rest = write_number(values["1"], page.lang), [values[str(n)] for n in range(2, 10)]
    while rest and rest[0] in _RANGE_WORDS:
        shown += _RANGE_WORDS[rest[0]] + write_number(rest[1], page.lang)
        rest = rest[2:]
    unit, smaller, smaller_unit = (*rest, "", "", "")[:3]
    if smaller_unit in _SMALLER_UNITS.get(unit, ()) and _NUMBER.fullmatch(smaller):
        return f"{shown} {unit} {smaller} {smaller_unit}"  # `{{convert|5|ft|3|in|m}}`
    if thousands := _THOUSANDS.match(unit):
        shown, unit = f"{shown} {_BIG_NUMBERS[thousands.group(1)]}", unit[thousands.end() :]
    if values["adj"] in ("on", "mid"):
        return f"{shown}{'-' if unit in _PLURALS else ' '}{_UNITS.get(unit, unit)}"
    plural = _PLURALS.get(unit, unit) if values["1"] != "1" else unit
    return f"{shown} {_UNITS.get(plural, plural)}".strip()


_SMALLER_UNITS = {"ft": ("in",), "mi": ("yd", "ft"), "yd": ("ft", "in"), "lb": ("oz",), "st": ("lb",)}
_THOUSANDS = re.compile("e(3|6|9|12)")
_BIG_NUMBERS = {"3": "thousand", "6": "million", "9": "billion", "12": "trillion"}


def uncertain_value(values: Values, page: Page) -> str:
    """`{{val|1.2|0.1|e=6|u=m}}` reads "1.2 ± 0.1 ×10⁶ m"; in Italian `{{M|5||km}}` is one too."""
    number = write_number(values["1"], page.lang)
    uncertainty = values["2"]
    if uncertainty in _RANGE_WORDS:
        number += _RANGE_WORDS[uncertainty] + write_number(values["3"], page.lang)
    elif uncertainty:
        number += f" ± {write_number(uncertainty, page.lang)}"
    exponent = f"×10{superscript(values['e'])}" if values["e"] else ""
    unit = values["u"] or values["ul"] or (values["3"] if page.lang == "it" else "")
    return f"{number}{exponent} {unit}".strip()


def unit_of_measure(values: Values, page: Page) -> str:
    """French `{{unité|90|km|2}}` reads "90 km²", Spanish `{{unidad|12345|km}}` "12 345 km"."""
    shown = write_number(values["1"].replace(" ", ""), page.lang)
    for word, text in (("à", " à "), ("et", " et "), ("ou", " ou "), ("+/-", " ± ")):
        if values[word]:
            shown += text + write_number(values[word], page.lang)
    if values["e"]:
        shown += f" × 10{superscript(values['e'])}"
    for number in range(2, 8):
        part = values[str(number)]
        if part:
            shown += superscript(part) if re.fullmatch(r"[-−]?\d", part) else f" {part}"
    return shown


def height(values: Values, page: Page) -> str:
    """`{{height|m=1.85}}`, `{{height|ft=6|in=1}}`."""
    units = [unit for unit in ("m", "cm", "ft", "in") if values[unit]]
    if not units and page.lang == "de":  # `{{Höhe|1234|DE-NHN}}`
        level = _SEA_LEVELS.get(values["2"], "m")
        return f"{write_number(values['1'], page.lang)} {level}"
    return " ".join(f"{values[unit]} {unit}" for unit in units)


_SEA_LEVELS = {"DE-NN": "m ü. NN", "DE-NHN": "m ü. NHN", "DE": "m ü. NHN", "AT": "m ü. A.", "CH": "m ü. M."}


def track_gauge(values: Values, page: Page) -> str:
    """`{{track gauge|1435mm}}` reads "1,435 mm"."""
    code = values["1"]
    found = re.fullmatch(r"([\d.]+)\s*(mm|cm|m|in)", code)
    return f"{write_number(found.group(1), page.lang)} {found.group(2)}" if found else code


# -- money ------------------------------------------------------------------------------------------------------------

_SIGNS = {code: sign for sign, codes in _WORDS["currencies"].items() for code in codes}
"""Prefixes of an amount, by template and by code."""
MONEY = frozenset(_SIGNS)
_SIGN_BEHIND = frozenset(
    {"fr", "de", "it", "es", "pl", "ru", "uk", "bg", "cs", "sk", "sv", "fi", "hu", "ro", "ca"}
)


def money(values: Values, page: Page, code: str) -> str:
    """`{{USD|100 million}}` reads "US$100 million"; in languages that write so, the sign follows the amount."""
    sign, amount = _SIGNS[code], write_number(values["1"], page.lang)
    if not amount:
        return sign.strip()
    return f"{amount} {sign.strip()}" if page.lang in _SIGN_BEHIND else sign + amount


def currency(values: Values, page: Page) -> str:
    """`{{currency|5000|USD}}`."""
    code = values["2"].lower()
    return money(values, page, code if code in MONEY else "usd")


def rupees(values: Values, page: Page) -> str:
    """`{{INRConvert|5|c}}` reads "₹5 crore"."""
    words = dict(
        zip("clkmbt", (" crore", " lakh", " thousand", " million", " billion", " trillion"), strict=True)
    )
    return money(values, page, "inr") + words.get(values["2"], "")


def unnamed(values: Mapping[str, str]) -> list[str]:
    """Unnamed parameters in their order, without empty ones."""
    numbers = sorted(int(key) for key in values if key.isdecimal())
    return [value for number in numbers if (value := values[str(number)])]


# -- days, ages, centuries --------------------------------------------------------------------------------------------


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


_SPANISH_ERAS = {"a": " a. C.", "d": " d. C."}


def spelled_date(year: str, month: str, day: str, lang: str) -> str:
    """Year, month and day, as "3 May 1980" or "3 de mayo de 1980"."""
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = month_name(int(month), lang)
    separator = " de " if lang in ("es", "pt", "gl") else " "
    return separator.join(filter(None, (day.lstrip("0"), month, year)))


def age(values: Values, page: Page) -> str:
    """Whole years between two dates (year, month, day), or until the page was saved."""
    try:
        born = tuple(int(values[key] or 1) for key in "123")
        if values["4"]:
            then: tuple[int, ...] = tuple(int(values[key] or 1) for key in "456")
        else:
            if page.saved is None:
                return ""
            then = (page.saved.year, page.saved.month, page.saved.day)
    except ValueError:
        return ""
    return str(then[0] - born[0] - (then[1:] < born[1:]))


def date_in_french(values: Values, page: Page) -> str:
    """Day, month and year, then the subject that the year links to."""
    day, month, year = (values[key] for key in "123")
    return spelled_date(year, month, day if day != "1" else "1er", "fr")


def as_of(values: Values, page: Page) -> str:
    words = "since" if "since" in values else "as of"
    words = words if values["lc"] else words.capitalize()
    year, month, day = (values[key] for key in "123")
    return values["alt"] or f"{words} {spelled_date(year, month, day, page.lang)}".strip()


def julian_date(values: Values, page: Page) -> str:
    """Russian `{{СС3|26.5.1799}}`: a date of the Julian calendar, with the Gregorian one."""
    try:
        day, month, year = (int(part) for part in values["1"].split("."))
        shift = year // 100 - year // 400 - 2 - (year % 100 == 0 and year % 400 != 0 and month < 3)
        later = datetime.date(year, month, day) + datetime.timedelta(days=shift)
    except (ValueError, OverflowError):
        return values["1"]
    old, new = month_name(month, "ru, genitive"), month_name(later.month, "ru, genitive")
    if later.year != year:
        return f"{day} {old} {year} ({later.day} {new} {later.year})"
    return f"{day} ({later.day}) {new} {year}" if old == new else f"{day} {old} ({later.day} {new}) {year}"


_NAMED = (quantity, uncertain_value, unit_of_measure, height, track_gauge, ordinal, currency, rupees, age)
FORMS: Mapping[str, Show] = {
    **{form.__name__: form for form in (*_NAMED, date_in_french, as_of, julian_date)},
    "age_of_day_first": lambda values, page: age(
        Values({"1": values["3"], "2": values["2"], "3": values["1"]}), page
    ),
    "date": lambda values, page: spelled_date(values["1"], values["2"], values["3"], page.lang),
    "day_first": lambda values, page: spelled_date(values["3"], values["2"], values["1"], page.lang),
    "old_style_date": lambda values, page: f"{values['1']} [O.S. {values['3']}] {values['2']}".strip(),
    # Chinese `{{bd|1879年|3月14日|1955年|4月18日}}`.
    "life": lambda values, page: f"（{values['1']}{values['2']}－{values['3']}{values['4']}）",
    "hour": lambda values, page: " ".join(filter(None, (values["1"], "h", values["2"]))),
    # Spanish `{{siglo|V|a}}`; the second parameter says before (`a`) or after Christ.
    "siglo": lambda values, page: f"siglo {values['1']}{_SPANISH_ERAS.get(values['2'], '')}",
    # French `{{s|XIX|e}}`; with one parameter it is the "do not wrap" of other wikis.
    "century": lambda values, page: (
        centuries("")(values, page) if values["1"] and values["2"] else values["1"]
    ),
}
"""Forms of `wiki_templates.yaml`."""


_NAMES_THAT_ARE_TEXT = re.compile(
    r"(?:[ivx]+e|ier) (?:siècle|millénaire)(?: av\. j\.-c\.)?|(?:[ivx]+e|ier) (?:et|au|ou) [ivx]+e siècles?"
    r"|1er [a-zéû]+|(?:i|ii|iii|iv|v|vi{1,3}|ix|x[ivx]*)(?:er|re|e)|\d{1,4}(?:er|re|e|d|de|ers|res|es|nd|nde)"
)
_ROMAN = re.compile(r"\b[ivx]+(?=(?:er|re|e)\b)")


def text_of_name(key: str) -> str | None:
    """The text of French templates whose name is their text, such as `{{XIXe siècle}}`, `{{IIe}}`, `{{12e}}`,
    `{{Ve et VIe siècle}}` and `{{1er mai}}`; None for others."""
    if not _NAMES_THAT_ARE_TEXT.fullmatch(key):
        return None
    text = _ROMAN.sub(lambda found: found.group().upper(), key).replace("j.-c.", "J.-C.")
    return f"{text}s" if key.endswith(" siècle") and key.count(" ") > 1 else text
