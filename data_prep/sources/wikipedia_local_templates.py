"""Templates that stand for words, by the language of the wikis that have them; see `wikipedia_templates.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from types import MappingProxyType

from data_prep.sources.wikipedia_biography import biography
from data_prep.sources.wikipedia_numbers import Values, superscript, unit_of_measure, write_number
from data_prep.sources.wikipedia_page import Page, month_name
from data_prep.sources.wikipedia_template_forms import (
    Show,
    age,
    constant,
    first,
    in_language,
    japanese,
    joined,
    parameter,
    prefixed,
    second,
    spelled_date,
    table,
    wrapped,
)


def _number_with_unit(values: Values, page: Page) -> str:
    rest = [values[key] for key in "2345" if values.get(key)]
    return " ".join([write_number(values.get("1", "").replace(" ", ""), page.lang), *rest])


# -- French -----------------------------------------------------------------------------------------------------------


def _centuries(before_christ: str = "") -> Show:
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


def _raised(values: Values, page: Page) -> str:
    return superscript(values.get("1", "")) if values.get("1") else "e"


def _hour(values: Values, page: Page) -> str:
    return " ".join(filter(None, (values.get("1", ""), "h", values.get("2", ""))))


def _date_in_french(values: Values, page: Page) -> str:
    """Day, month and year; what follows is the subject to which the year links."""
    day, month, year = (values.get(key, "") for key in "123")
    return spelled_date(year, month, day if day != "1" else "1er", "fr")


_ABBREVIATIONS = re.findall(
    r"\S+",
    "M. Mme Mlle Mgr MM. Mmes Me Dr Pr St Ste p. pp. vol. chap. t. col. éd. fasc. ill. trad. art. Cie Vve Mr fl.",
)

_FRENCH: Mapping[str, Show] = {
    **table(_centuries(), "s, s-, sp, sp-, s2, s2-, s mini, s mini-"),
    **table(_centuries(" av. J.-C."), "-s, -s-, -sp, -sp-, -s2, -s2-"),
    **table(
        _date_in_french, "date, date-, date de naissance, date de naissance-, date de décès, date de décès-"
    ),
    **table(in_language(unit_of_measure), "unité, unite, tmp"),
    **table(_number_with_unit, "nombre, nb, num, nombre formaté"),
    **table(_raised, "e, exp, exposant"),
    **table(constant("av. J.-C."), "av jc, av. j.-c., av. jc, avjc"),
    **table(constant("apr. J.-C."), "apr jc, ap. j.-c., apr. j.-c., apr. jc, ap jc"),
    **table(wrapped("« ", " »"), 'citation, guillemets, guil, ", cit, citation courte'),
    **table(wrapped("– ", " –"), "incise"),
    **table(prefixed("no"), "n°, numéro"),
    **table(prefixed("nos"), "n°s, numéros"),
    **table(_hour, "heure, durée"),
    **table(
        first,
        "pc, petites capitales, souligner, italique, gras, abréviation, abrév, lnobr, nobr romains",
    ),
    **table(
        first,
        "romain, rom, rom-maj, souverain, souverain-, souverain2, souverain2-, souverain3, noble, noble-",
    ),
    **table(
        first,
        "quand, qui, où, lesquelles, lequel, pas clair, précision nécessaire, référence souhaitée, refsou",
    ),
    **table(first, "c'est-à-dire, passage à actualiser, passage évasif, interprétation, citation needed"),
    **table(joined(""), "fchim, formule chimique, chim, ion"),
    **{name.lower(): prefixed(name) for name in _ABBREVIATIONS},
    **{name: constant(name) for name in ("er", "re", "nd", "nde", "ème", "es", "ers", "res", "°c")},
    "x10": lambda values, page: f"×10{superscript(values.get('1', ''))}",
    "lien": parameter("texte", "fr", "trad", "1"),
    "âge": age,
    "ind": first,
    "le": first,
    "japonais": japanese,
}

# -- German, Italian, Spanish ----------------------------------------------------------------------------------------


def _age_of_day_first(values: Values, page: Page) -> str:
    return age({"1": values.get("3", ""), "2": values.get("2", ""), "3": values.get("1", "")}, page)


def _law(sign: str) -> Show:
    """German `{{§|433|bgb|juris}}` reads "§ 433 BGB"."""
    return lambda values, page: f"{sign} {values.get('1', '')} {values.get('2', '').upper()}".rstrip()


def _siglo(values: Values, page: Page) -> str:
    """Spanish `{{siglo|V|a}}`; the second parameter says before (`a`) or after Christ."""
    era = {"a": " a. C.", "d": " d. C."}.get(values.get("2", ""), "")
    return f"siglo {values.get('1', '')}{era}"


def _date_in_spanish(values: Values, page: Page) -> str:
    return spelled_date(values.get("3", ""), values.get("2", ""), values.get("1", ""), "es")


_GERMAN: Mapping[str, Show] = {
    **table(wrapped("„", "“"), '", zitat-de'),
    **table(wrapped("“", "”"), '"-en, "-us, zitat-en'),
    **table(wrapped("« ", " »"), '"-fr, zitat-fr'),
    **table(wrapped("«", "»"), '"-it, "-es, "-ch, "-ru'),
    **table(
        lambda values, page: write_number(values.get("1", ""), "de"), "formatnum, formatzahl, zahl, eurozahl"
    ),
    **table(
        first, "hebr, arab, arabisch, hebräisch, polytonisch, elsalt, elsneu, kursiv, versal, kapitälchen"
    ),
    **table(first, "hoch, tief, unicode, sicher, person, schreibweise"),
    "§": _law("§"),
    "§§": _law("§§"),
    "art.": _law("Art."),
    "bruch": joined("⁄"),
    "0": constant(""),
    "alter": _age_of_day_first,
    "lang": second,
}
_ITALIAN: Mapping[str, Show] = {
    **table(
        first,
        "tutto attaccato, ta, maiuscoletto, smcaps, citazione necessaria, cn, senza fonte, chiarire, sf",
    ),
    **table(first, "apice, apici, pedice, stub senza fonte, non chiaro, punto di vista"),
    **table(joined(""), "formula chimica, chem"),
    "bio": lambda values, page: biography(values),
    "...": constant("[...]"),
    "cita": constant(""),
    "ndr": wrapped("[", "]"),
    "unità": in_language(unit_of_measure),
}
_SPANISH: Mapping[str, Show] = {
    **table(in_language(unit_of_measure), "unidad, unidades"),
    **table(_date_in_spanish, "fecha, fecha de inicio"),
    **table(
        first, "esd, versalita, bandera2, subíndice, superíndice, sub, sup, sin itálicas, cita requerida"
    ),
    **table(constant("a. C."), "ac, a. c., a.c., a. c"),
    **table(constant("d. C."), "dc, d. c., d.c., d. c"),
    **table(wrapped("«", "»"), "comillas, «, «»"),
    "siglo": _siglo,
    "ord": lambda values, page: f"{values.get('1', '')}.{'ª' if values.get('2') == 'a' else 'º'}",
    "edad": _age_of_day_first,
    "º": prefixed("", ""),
}
# -- Portuguese, Catalan, Russian, Chinese, Korean ---------------------------------------------------------------------


def _day_first(values: Values, page: Page) -> str:
    return spelled_date(values.get("3", ""), values.get("2", ""), values.get("1", ""), page.lang)


def _life(values: Values, page: Page) -> str:
    """Chinese `{{bd|1879年|3月14日|1955年|4月18日}}`."""
    born, died = values.get("1", "") + values.get("2", ""), values.get("3", "") + values.get("4", "")
    return f"（{born}－{died}）"


def _old_style_date(values: Values, page: Page) -> str:
    """Russian `{{СС3|26.5.1799}}`: a date of the Julian calendar, with the Gregorian one."""
    try:
        day, month, year = (int(part) for part in values.get("1", "").split("."))
        behind = year // 100 - year // 400 - 2 - (year % 100 == 0 and year % 400 != 0 and month < 3)
        later = date(year, month, day) + timedelta(days=behind)
    except (ValueError, OverflowError):
        return values.get("1", "")
    old, new = month_name(month, "ru, genitive"), month_name(later.month, "ru, genitive")
    if later.year != year:
        return f"{day} {old} {year} ({later.day} {new} {later.year})"
    return f"{day} ({later.day}) {new} {year}" if old == new else f"{day} {old} ({later.day} {new}) {year}"


_PORTUGUESE: Mapping[str, Show] = {
    **table(_number_with_unit, "fmtn, unidade, número"),
    **table(prefixed("século"), "séc, século"),
    **table(_day_first, "dtlink, dtext, data, dni, data de nascimento, data de morte"),
    **table(first, "ilc, carece de fontes2, citar necessário"),
    **table(constant("a.C."), "ac, a.c., a. c."),
    **table(constant("d.C."), "dc, d.c., d. c."),
}
_CATALAN: Mapping[str, Show] = {
    **table(first, "romanes, versaleta, cita necessària"),
    **table(prefixed("segle"), "segle"),
    **table(joined(" "), "unitats"),
    **table(constant("aC"), "ac"),
    **table(constant("dC"), "dc"),
}
_RUSSIAN: Mapping[str, Show] = {
    **table(_old_style_date, "сс3, сс2, сс, старый стиль"),
    **table(_number_with_unit, "num, число, nobr num"),
    **table(first, "s, нет аи2, перенос, comment"),
}
LOCAL: Mapping[str, Mapping[str, Show]] = MappingProxyType(
    {
        "fr": _FRENCH,
        "de": _GERMAN,
        "it": _ITALIAN,
        "es": _SPANISH,
        "pt": _PORTUGUESE,
        "ca": _CATALAN,
        "ru": _RUSSIAN,
        "zh": {"bd": _life},
        "ko": {"llang": second},
    }
)
"""By language and `template_key`. Looked at before the templates that many wikis share."""

_CENTURY = re.compile(r"((?:[ivx]+e)|ier) (siècle|millénaire)( av\. j\.-c\.)?")
_CENTURIES = re.compile(r"([ivx]+e|ier) (et|au|ou) ([ivx]+e) siècles?")
_FIRST_OF_MONTH = re.compile(r"1er [a-zéû]+")
_ROMAN = re.compile(r"(i|ii|iii|iv|v|vi{1,3}|ix|x[ivx]*)(er|re|e)")
_ARABIC = re.compile(r"\d{1,4}(?:er|re|e|d|de|ers|res|es|nd|nde)")


def _century(found: re.Match[str]) -> str:
    number, unit, era = found.groups()
    return f"{_roman(number)} {unit}{' av. J.-C.' if era else ''}"


def _roman(number: str) -> str:
    return "Ier" if number == "ier" else number[:-1].upper() + "e"


LOCAL_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_CENTURY, _century),
    (_CENTURIES, lambda found: f"{_roman(found.group(1))} {found.group(2)} {_roman(found.group(3))} siècles"),
    (_FIRST_OF_MONTH, lambda found: found.group()),
    (_ROMAN, lambda found: found.group(1).upper() + found.group(2)),
    (_ARABIC, lambda found: found.group()),
)
"""French templates whose name is their text: `{{XIXe siècle}}`, `{{IIe}}`, `{{12e}}`, `{{1er mai}}`."""
