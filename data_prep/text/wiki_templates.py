"""Templates that render words of their sentence; all others are furniture of a page.

A template's text lies in the wiki that a dump was taken from, and a dump of articles does not hold it. So
`wiki_templates.yaml` lists what the common ones show, by language and name: each has one of the forms below.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache, partial

from data_prep.text import table
from data_prep.text.wiki_numbers import (
    FORMS,
    MONEY,
    centuries,
    format_number,
    money,
    quantity,
    superscript,
    text_of_name,
    unnamed,
    write_number,
    years,
)
from data_prep.text.wiki_page import Page, Show, Values, magic_word, template_key
from data_prep.text.wikitext_source import literal

_LANGUAGE = re.compile(r"lang-[\w-]+|link-[a-z-]+")
"""`{{lang-la|urbs}}` in most wikis, `{{link-en|福|Foo}}` in the Chinese one."""
_FUNCTIONS = frozenset({"formatnum", "formatnombre"})
"""Names of the parser function that writes numbers; the first parameter follows the colon."""
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
    if not colon or function.lower() not in _FUNCTIONS:
        return None

    def number(values: Values) -> str:
        moved = {str(int(key) + 1) if key.isdecimal() else key: value for key, value in values.items()}
        return format_number(Values({"1": argument.strip(), **moved}), page)

    return number


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
        return partial(money, code=key)
    if _LANGUAGE.fullmatch(key) or key.startswith("script/"):
        return first
    if conversion := _CONVERSION.fullmatch(key):
        return lambda values, page: quantity(Values({"1": values["1"], "2": conversion.group(1)}), page)
    text = text_of_name(key)
    return None if text is None else constant(text)


# -- forms with an argument --------------------------------------------------------------------------------


def constant(text: str) -> Show:
    shown = literal(text)
    return lambda values, page: shown


def parameter(names: str) -> Show:
    """The first of the parameters that is not empty."""
    wanted = names.split(", ")
    return lambda values, page: next((values[name] for name in wanted if values[name]), "")


def joined(separator: str) -> Show:
    """All unnamed parameters."""
    return lambda values, page: separator.join(unnamed(values))


def prefixed(form: str) -> Show:
    """Some text and the first parameter, if there is one."""
    prefix = form.removesuffix("…")
    return lambda values, page: f"{prefix}{values['1']}" if values["1"] else prefix.rstrip(" ")


def wrapped(form: str) -> Show:
    """The first parameter between two texts; nothing where there is none."""
    before, after = map(literal, form.split("…"))
    return lambda values, page: f"{before}{values['1']}{after}" if values["1"] else ""


def law(sign: str) -> Show:
    """German `{{§|433|bgb|juris}}` reads "§ 433 BGB"."""
    return lambda values, page: f"{sign} {values['1']} {values['2'].upper()}".rstrip()


# -- forms without --------------------------------------------------------------------------------


def quotation(values: Values, page: Page) -> str:
    """A quotation on lines of its own."""
    text = parameter("text, Text, texto, testo, texte, quote, citation, 1")(values, page)
    return f"\n{text}\n" if text else ""


def japanese(values: Values, page: Page) -> str:
    """`{{nihongo|English|kanji|romaji|extra}}`."""
    name, *rest = (values[key] for key in "1234")
    inside = ", ".join(filter(None, rest))
    return f"{name} ({inside})" if name and inside else name or inside


def number_with_unit(values: Values, page: Page) -> str:
    rest = [values[key] for key in "2345" if values[key]]
    return " ".join([write_number(values["1"].replace(" ", ""), page.lang), *rest])


def fraction(values: Values, page: Page) -> str:
    """`{{frac|1|2}}` is ½, `{{frac|3|1|16}}` 3 1⁄16."""
    numbers = unnamed(values)
    if not numbers:
        return ""
    *whole, numerator, denominator = ["1", *numbers][-3 if len(numbers) > 2 else -2 :]
    fraction = f"{numerator}\u2044{denominator}"
    return " ".join([*whole, _VULGAR_FRACTIONS.get(fraction, fraction)])


def as_written(values: Values, page: Page) -> str:
    """`{{sic|hostige}}`."""
    text = "".join(unnamed(values))
    return text if values["hide"] in ("y", "yes") else f"{text} [sic]".strip()


def citation_in_text(values: Values, page: Page) -> str:
    """`{{harvtxt|Boolos|Jeffrey|1974|p=3}}` reads "Boolos & Jeffrey (1974, p. 3)"."""
    *names, year = unnamed(values) or [""]
    who = (
        f"{names[0]} et al."
        if len(names) > 3
        else " & ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    )
    where = "".join(f", {sign} {values[key]}" for key, sign in (("p", "p."), ("pp", "pp.")) if values[key])
    return f"{who} ({year}{where})".strip()


_CHINESE = (("c", "Chinese"), ("s", "simplified Chinese"), ("t", "traditional Chinese"), ("p", "pinyin"))
_MUSIC = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}
first = parameter("1")
_FORMS_OF: Mapping[str, Callable[[str], Show]] = {
    form.__name__: form for form in (constant, parameter, joined, prefixed, wrapped, years, centuries, law)
}
_NAMED = (quotation, japanese, number_with_unit, fraction, as_written, citation_in_text)
_FORMS: Mapping[str, Show] = {
    **FORMS,
    **{form.__name__: form for form in _NAMED},
    "first": first,
    "second": parameter("2"),
    "last": lambda values, page: (unnamed(values) or [""])[-1],
    # Such as a list in columns.
    "on_own_lines": lambda values, page: f"\n{values['1']}\n" if values["1"] else "",
    "number": lambda values, page: write_number(values["1"], page.lang),
    "us_patent": lambda values, page: f"U.S. patent {write_number(values['1'], page.lang)}",
    "power_of_ten": lambda values, page: f"×10{superscript(values['1'])}",
    "spanish_ordinal": lambda values, page: f"{values['1']}.{'ª' if values['2'] == 'a' else 'º'}",
    "raised": lambda values, page: superscript(values["1"]) if values["1"] else "e",
    "ship": lambda values, page: " ".join(unnamed({**values, "3": "", "4": ""})),
    "ship_class": lambda values, page: f"{values['1']}-class {values['2']}".strip(),
    "reading": lambda values, page: f"{values['1']}（{values['2']}）",
    "chinese": lambda values, page: "; ".join(
        f"{label}: {values[key]}" for key, label in _CHINESE if values[key]
    ),
    "music": lambda values, page: _MUSIC.get(values["1"], ""),
    "biography": lambda values, page: biography(values),
}


# -- biographies ------------------------------------------------------------------------------------------------------

# The Italian Wikipedia's template writes an article's first sentence from its parameters
# (https://it.wikipedia.org/wiki/Template:Bio). Without it, every fourth article there would begin in mid-air.

_ARTICLE_UNO = re.compile(r"s[^aeiouàèéìòù]|z|gn|ps|pn|x|y|i[aeou]", re.IGNORECASE)
_VOWEL = re.compile(r"[aeiouàèéìòùh]", re.IGNORECASE)
_UNKNOWN = frozenset({"", "?"})


def biography(values: Values) -> str:
    """`{{Bio|Nome=Dante|Cognome=Alighieri|...}}`: "Dante Alighieri (Firenze, 1265 – Ravenna, 1321) è stato un ..."."""
    name = " ".join(filter(None, (values[key] for key in ("Titolo", "Nome", "Cognome"))))
    if values["Pseudonimo"]:
        name = f"{values['Pseudonimo']}, pseudonimo di {name}"
    name += _after(values["PostCognome"])
    birth, death = _event(values, "Nascita"), _event(values, "Morte")
    life = f"{birth or '...'} – {death}" if death else birth
    dates = "; ".join(filter(None, (values["PreData"], life)))
    start = f"{name} ({dates})" if dates else name
    end = values["FineIncipit"] or _predicate(values)
    return f"{start} {end}".strip() + ("" if values["Punto"] == "no" else ".")


def _event(values: Values, kind: str) -> str:
    place = values[f"Luogo{kind}Alt"] or values[f"Luogo{kind}"]
    year = values[f"Anno{kind}"]
    day = values[f"GiornoMese{kind}"]
    date = " ".join(part for part in (day, year) if part not in _UNKNOWN)
    if not date and not place and year != "?":
        return ""
    return ", ".join(filter(None, (place, date or ("..." if year == "?" else ""))))


def _predicate(values: Values) -> str:
    """Verb, article, occupations and nationality."""
    is_woman, is_dead = values["Sesso"] == "F", bool(values["AnnoMorte"])
    work = _occupations(values)
    if not work:
        return ""
    verb = ("è stata" if is_woman else "è stato") if is_dead else "è"
    if is_woman:
        article = "un'" if _VOWEL.match(work) and not work.startswith("h") else "una "
    else:
        article = "uno " if _ARTICLE_UNO.match(work) else "un "
    return f"{verb} {article}{work}"


def _occupations(values: Values) -> str:
    first, second, third, more = (
        values[key] for key in ("Attività", "Attività2", "Attività3", "AttivitàAltre")
    )
    work = " ".join(filter(None, (values["PreAttività"] or values["Preattività"], first)))
    if more:
        work = ", ".join(filter(None, (work, second, third))) + _after(more)
    elif third:
        work = f"{work}, {second} e {third}"
    elif second:
        work = f"{work} e {second}"
    nation = values["Nazionalità"]
    if values["NazionalitàNaturalizzato"]:
        nation = f"{nation} naturalizzato {values['NazionalitàNaturalizzato']}"
        nation = nation.replace("zzato ", "zzata ") if values["Sesso"] == "F" else nation
    return " ".join(filter(None, (work, nation))) + _after(values["PostNazionalità"])


def _after(text: str) -> str:
    """The text with a space ahead of it, unless it begins with a comma."""
    return text if text.startswith(",") or not text else f" {text}"
