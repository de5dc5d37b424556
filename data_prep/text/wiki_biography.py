"""The first sentence of the Italian Wikipedia's biographies, which `{{Bio}}` writes from its parameters.

See https://it.wikipedia.org/wiki/Template:Bio. Without it, every fourth article there would begin in mid-air.
"""

from __future__ import annotations

import re

from data_prep.text.wiki_numbers import Values

_ARTICLE_UNO = re.compile(r"s[^aeiouàèéìòù]|z|gn|ps|pn|x|y|i[aeou]", re.IGNORECASE)
_VOWEL = re.compile(r"[aeiouàèéìòùh]", re.IGNORECASE)
_UNKNOWN = frozenset({"", "?"})


def biography(values: Values) -> str:
    """`{{Bio|Nome=Dante|Cognome=Alighieri|...}}`: "Dante Alighieri (Firenze, 1265 – Ravenna, 1321) è stato un ..."."""
    name = " ".join(filter(None, (values.get(key) for key in ("Titolo", "Nome", "Cognome"))))
    if values.get("Pseudonimo"):
        name = f"{values['Pseudonimo']}, pseudonimo di {name}"
    after = values.get("PostCognome", "")
    name += after if after.startswith(",") else f" {after}" if after else ""
    dates = "; ".join(filter(None, (values.get("PreData"), _lifetime(values))))
    start = f"{name} ({dates})" if dates else name
    end = values.get("FineIncipit") or _predicate(values)
    return f"{start} {end}".strip() + ("" if values.get("Punto") == "no" else ".")


def _lifetime(values: Values) -> str:
    birth, death = _event(values, "Nascita"), _event(values, "Morte")
    if not death:
        return birth
    return f"{birth or '...'} – {death}"


def _event(values: Values, kind: str) -> str:
    place = values.get(f"Luogo{kind}Alt") or values.get(f"Luogo{kind}", "")
    year = values.get(f"Anno{kind}", "")
    day = values.get(f"GiornoMese{kind}", "")
    date = " ".join(part for part in (day, year) if part not in _UNKNOWN)
    if not date and not place and year != "?":
        return ""
    return ", ".join(filter(None, (place, date or ("..." if year == "?" else ""))))


def _predicate(values: Values) -> str:
    """Verb, article, occupations and nationality."""
    is_woman, is_dead = values.get("Sesso") == "F", bool(values.get("AnnoMorte"))
    work = _occupations(values)
    if not work:
        return ""
    verb = ("è stata" if is_woman else "è stato") if is_dead else "è"
    return f"{verb} {_with_article(work, is_woman)}"


def _occupations(values: Values) -> str:
    first, second, third, more = (
        values.get(key, "") for key in ("Attività", "Attività2", "Attività3", "AttivitàAltre")
    )
    work = " ".join(filter(None, (values.get("PreAttività") or values.get("Preattività"), first)))
    if more:
        named = ", ".join(filter(None, (work, second, third)))
        work = named + (more if more.startswith(",") else f" {more}")
    elif third:
        work = f"{work}, {second} e {third}"
    elif second:
        work = f"{work} e {second}"
    nation = values.get("Nazionalità", "")
    if values.get("NazionalitàNaturalizzato"):
        nation = f"{nation} naturalizzato {values['NazionalitàNaturalizzato']}"
        nation = nation.replace("zzato ", "zzata ") if values.get("Sesso") == "F" else nation
    after = values.get("PostNazionalità", "")
    return " ".join(filter(None, (work, nation))) + (
        after if after.startswith(",") else f" {after}" if after else ""
    )


def _with_article(words: str, is_woman: bool) -> str:
    if is_woman:
        return f"un'{words}" if _VOWEL.match(words) and not words.startswith("h") else f"una {words}"
    return f"uno {words}" if _ARTICLE_UNO.match(words) else f"un {words}"
