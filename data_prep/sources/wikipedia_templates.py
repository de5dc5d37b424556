"""Templates that stand for words of the sentence they are in; all others are furniture of a page.

A template's text lies in the wiki that a dump was taken from, and a dump of articles does not hold it. What the
common ones show is therefore written down here, by name: those of the English Wikipedia, which many wikis share,
and some of other languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping

Values = Mapping[str, str]
"""Parameters of a template as rendered text, by name; unnamed ones are "1", "2" and so on."""
Show = Callable[[Values], str]

_LANGUAGE = re.compile(r"lang-[\w-]+|link-[a-z-]+")
"""`{{lang-la|urbs}}` in most wikis, `{{link-en|福|Foo}}` in the Chinese one."""
_NUMBER = re.compile(r"(?:formatnum|formatnombre):(.+)", re.DOTALL)
_CENTURY, _CENTURY_SIGN = re.compile(r"(?:[ivx]+e|ier) siècle"), re.compile("[ivx]+")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July")
_MONTHS += ("August", "September", "October", "November", "December")
_VULGAR_FRACTIONS = {unicodedata.normalize("NFKC", each): each for each in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_RANGE_WORDS = {
    "-": "–",
    "–": "–",
    "to": " to ",
    "and": " and ",
    "or": " or ",
    "by": " by ",
    "x": " × ",
    "±": " ± ",
}


def template_key(name: str) -> str:
    """A template's name as MediaWiki compares it: without case of its first letter, underscores for spaces."""
    return " ".join(name.replace("_", " ").split()).lower().removeprefix("template:")


def shown_by(key: str) -> Show | None:
    """What shows the template of this `template_key`; None for furniture."""
    if show := _TEMPLATES.get(key):
        return show
    if _LANGUAGE.fullmatch(key):
        return _first
    if number := _NUMBER.fullmatch(key):
        return _constant(number.group(1).strip())
    return (
        _constant(_CENTURY_SIGN.sub(lambda sign: sign.group().upper(), key, count=1))
        if _CENTURY.fullmatch(key)
        else None
    )


def _constant(text: str) -> Show:
    return lambda values: text


def _first(values: Values) -> str:
    return values.get("1", "")


def _second(values: Values) -> str:
    return values.get("2", "")


def _second_or_first(values: Values) -> str:
    return values.get("2") or values.get("1", "")


def _unnamed(values: Values) -> list[str]:
    numbers = sorted(int(key) for key in values if key.isdecimal())
    return [value for number in numbers if (value := values[str(number)])]


def _joined(separator: str) -> Show:
    return lambda values: separator.join(_unnamed(values))


def _prefixed(prefix: str) -> Show:
    return lambda values: f"{prefix} {values.get('1', '')}".rstrip()


def _quantity(values: Values) -> str:
    """`{{convert|3|to|5|km|mi}}` reads "3 to 5 km"; the converted quantity is left out."""
    first, second = values.get("1", ""), values.get("2", "")
    if second in _RANGE_WORDS:
        return f"{first}{_RANGE_WORDS[second]}{values.get('3', '')} {values.get('4', '')}".strip()
    return f"{first} {second}".strip()


def _value(values: Values) -> str:
    uncertainty = f" ± {values['2']}" if values.get("2") else ""
    return f"{values.get('1', '')}{uncertainty} {values.get('u') or values.get('ul') or ''}".strip()


def _fraction(values: Values) -> str:
    """`{{frac|1|2}}` is ½, `{{frac|3|1|16}}` 3 1⁄16."""
    *whole, numerator, denominator = ["1", *_unnamed(values)][-3 if "3" in values else -2 :]
    fraction = f"{numerator}\u2044{denominator}"
    return " ".join([*whole, _VULGAR_FRACTIONS.get(fraction, fraction)])


def _date(values: Values) -> str:
    """Year, month and day, as "3 May 1980"."""
    year, month, day = (values.get(key, "") for key in "123")
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = _MONTHS[int(month) - 1]
    return " ".join(filter(None, (day.lstrip("0"), month, year)))


def _as_of(values: Values) -> str:
    words = "since" if "since" in values else "as of"
    words = words if values.get("lc") else words.capitalize()
    return values.get("alt") or f"{words} {_date(values)}".strip()


def _quotation(values: Values) -> str:
    text = values.get("text") or values.get("quote") or values.get("1", "")
    return f"\n{text}\n" if text else ""


def _ship(values: Values) -> str:
    return " ".join(_unnamed({**values, "3": "", "4": ""}))


def _japanese(values: Values) -> str:
    """`{{nihongo|English|kanji|romaji|extra}}`."""
    name, *rest = (values.get(key, "") for key in "1234")
    inside = ", ".join(filter(None, rest))
    return f"{name} ({inside})" if name and inside else name or inside


def _reading(values: Values) -> str:
    return f"{values.get('1', '')}（{values.get('2', '')}）"


def _century(values: Values) -> str:
    """French `{{s|XIX|e}}`; with one parameter it is the "do not wrap" of other wikis."""
    return f"{values['1']}{values['2']} siècle" if values.get("1") and values.get("2") else _first(values)


def _siglo(values: Values) -> str:
    """Spanish `{{siglo|V|a}}`; the second parameter says before (`a`) or after Christ."""
    era = " a. C." if values.get("2") == "a" else ""
    return f"siglo {values.get('1', '')}{era}"


def _table(show: Show, names: str) -> dict[str, Show]:
    return {name.strip(): show for name in names.split(",")}


_TEMPLATES: Mapping[str, Show] = {
    **_table(
        _first,
        "nowrap, nobr, nobold, small, smaller, big, larger, sic, abbr, tooltip, angbr, as written, angle bracket",
    ),
    **_table(
        _first,
        "comment, vanchor, visible anchor, sc, smallcaps, sup, sub, em, strong, code, mvar, math, var, nastaliq",
    ),
    **_table(_first, "flag, flagcountry, flagu, ill, interlanguage link, not a typo, notatypo, proper name"),
    **_table(_first, "center, centre, midsize, unicode, iast, pie, gloss, citation, nobreak"),
    **_table(_first, "仮リンク, ruby, нп, нп1, нп2, нп3, нп5, не переведено"),
    **_table(
        _first, "ens, las, frs, grcs, rus, its, ess, ars, jas, pls, nls, pts, czs, hus, sws, fas, hes, trs"
    ),
    **_table(_first, "refnec, référence nécessaire, citation nécessaire, exp, cita requerida, le"),
    **_table(_first, "要出典範囲, 要検証範囲, нет аи 2, число, num, обл."),
    **_table(_second, "lang, langue, langx, transl, transliteration, rtl-lang, script, legend, lang2"),
    **_table(_second_or_first, "resize, font, font color, color, citation étrangère, hill"),
    **_table(_joined(""), "chem, chem2, linktext, nuclide"),
    **_table(_joined(" "), "date, date-, bibleverse, bibleref, nombre, unité, unidad, xt"),
    **_table(_joined(", "), "hlist, flatlist, comma separated entries"),
    **_table(_joined("\n"), "ubl, unbulleted list, plainlist, bulleted list, ublist"),
    **_table(
        _quotation, "quote, blockquote, cquote, quotation, centered pull quote, poemquote, verse translation"
    ),
    **_table(
        _quotation, "citation bloc, cita, zitat, citazione, цитата, citaat, cytat, citace, 引用, 引用文"
    ),
    **_table(_quantity, "convert, cvt, conv, converti"),
    **_table(_value, "val, m"),
    **_table(_fraction, "frac, sfrac, fraction, fract"),
    **_table(
        _date, "birth date, death date, start date, end date, dts, birth date and age, death date and age"
    ),
    **_table(_ship, "ship, sclass"),
    **_table(_japanese, "nihongo, nihongo2, nihongo3"),
    **_table(_prefixed("c."), "circa, c., ca., ca, c"),
    **_table(_prefixed("r."), "reign"),
    **_table(_constant(" – "), "spaced ndash, spnd, snd, snds, dash"),
    **_table(_constant(" "), "nbsp, thinsp, thin space, spaces, space, hair space, zwsp, sp"),
    **_table(_constant(" · "), "·, dot, middot, bullet, •"),
    **{
        name: _prefixed(name.upper())
        for name in ("uss", "hms", "ss", "rms", "hmas", "hmcs", "ms", "mv", "ins", "sms")
    },
    "ndash": _constant("–"),
    "–": _constant("–"),
    "mdash": _constant("—"),
    "mdashb": _constant("—"),
    "—": _constant("—"),
    "'": _constant("'"),
    "'s": _constant("'s"),
    "' \"": _constant("' \""),
    "okina": _constant("ʻ"),
    "extinct": _constant("†"),
    "dagger": _constant("†"),
    "1er": _constant("1er"),
    "=": _constant("="),
    "as of": _as_of,
    "asof": _as_of,
    "s": _century,
    "s-": _century,
    '"': lambda values: f"„{values.get('1', '')}“",
    "siglo": _siglo,
    "lien": lambda values: (
        values.get("texte") or values.get("fr") or values.get("trad") or values.get("1", "")
    ),
    "tsl": lambda values: values.get("3") or values.get("2", ""),
    **{name.lower(): _prefixed(name) for name in ("M.", "Mme", "Mlle", "Mgr")},
    **dict.fromkeys(("av jc", "av. j.-c.", "av. jc"), _constant("av. J.-C.")),
    "読み仮名": _reading,
    "読み仮名 ruby不使用": _reading,
    "ruby-ja": _first,
}
