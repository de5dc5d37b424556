"""Templates that stand for words of the sentence they are in; all others are furniture of a page.

A template's text lies in the wiki that a dump was taken from, and a dump of articles does not hold it. What the
common ones show is therefore written down here, by name: the English Wikipedia's, which many wikis share;
`wikipedia_local_templates.py` has the templates of other languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial

from data_prep.sources.wikipedia_local_templates import LOCAL, LOCAL_PATTERNS
from data_prep.sources.wikipedia_numbers import (
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
    write_number,
)
from data_prep.sources.wikipedia_page import Page, magic_word
from data_prep.sources.wikipedia_template_forms import (
    Show,
    age,
    constant,
    first,
    in_language,
    japanese,
    joined,
    last,
    on_own_lines,
    parameter,
    prefixed,
    quotation,
    second,
    spelled_date,
    table,
    unnamed,
    wrapped,
)

_NAMESPACE = re.compile(r"^(?:template|vorlage|modèle|plantilla|predefinição|шаблон|sjabloon|szablon) ?: ?")
_LANGUAGE = re.compile(r"lang-[\w-]+|link-[a-z-]+")
"""`{{lang-la|urbs}}` in most wikis, `{{link-en|福|Foo}}` in the Chinese one."""
_FUNCTIONS = {name: in_language(format_number) for name in ("formatnum", "formatnombre")}
"""Parser functions that articles use, by name; the first parameter stands behind the colon."""
_CONVERSION = re.compile(r"(ft|mi|km|m|cm|in|lb|kg|acre|ha|sqmi|sqkm|nmi|mm|yd) to [a-z]+")
_VULGAR_FRACTIONS = {unicodedata.normalize("NFKC", each): each for each in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}


def template_key(name: str) -> str:
    """A template's name as MediaWiki compares it: without case of its first letter, underscores for spaces."""
    return _NAMESPACE.sub("", " ".join(name.replace("_", " ").split()).lower())


def shown_by(name: str, page: Page) -> Callable[[Values], str] | None:
    """The function that renders the template of this name as text; None for a template that shows no text."""
    key = template_key(name)
    show = LOCAL.get(page.lang, {}).get(key) or _TEMPLATES.get(key) or _by_pattern(key)
    if show is not None:
        return lambda values: show(values, page)
    if (word := magic_word(name.strip(), page)) is not None:
        return lambda values: word
    function, colon, argument = name.strip().partition(":")
    call = _FUNCTIONS.get(function.lower()) if colon else None
    return None if call is None else lambda values: call(_with_argument(argument, values), page)


def _by_pattern(key: str) -> Show | None:
    if key in MONEY:
        return in_language(partial(money, code=key))
    if _LANGUAGE.fullmatch(key) or key.startswith("script/"):
        return first
    if conversion := _CONVERSION.fullmatch(key):
        return lambda values, page: quantity({"1": values.get("1", ""), "2": conversion.group(1)}, page.lang)
    for pattern, text in LOCAL_PATTERNS:
        if found := pattern.fullmatch(key):
            return constant(text(found))
    return None


def _with_argument(argument: str, values: Values) -> Values:
    """Parameters of a parser function, whose first stands behind the colon."""
    moved = {str(int(key) + 1) if key.isdecimal() else key: value for key, value in values.items()}
    return {"1": argument.strip(), **moved}


def _fraction(values: Values, page: Page) -> str:
    """`{{frac|1|2}}` is ½, `{{frac|3|1|16}}` 3 1⁄16."""
    numbers = unnamed(values)
    if not numbers:
        return ""
    *whole, numerator, denominator = ["1", *numbers][-3 if len(numbers) > 2 else -2 :]
    fraction = f"{numerator}\u2044{denominator}"
    return " ".join([*whole, _VULGAR_FRACTIONS.get(fraction, fraction)])


def _date(values: Values, page: Page) -> str:
    return spelled_date(values.get("1", ""), values.get("2", ""), values.get("3", ""), page.lang)


def _as_of(values: Values, page: Page) -> str:
    words = "since" if "since" in values else "as of"
    words = words if values.get("lc") else words.capitalize()
    return values.get("alt") or f"{words} {_date(values, page)}".strip()


def _old_style_date(values: Values, page: Page) -> str:
    return f"{values.get('1', '')} [O.S. {values.get('3', '')}] {values.get('2', '')}".strip()


def _years(sign: str, again: str, separator: str) -> Show:
    """`{{circa|1850|1860}}` reads "c. 1850 – c. 1860", `{{reign|1850|1860}}` "r. 1850–1860"."""

    def show(values: Values, page: Page) -> str:
        years = [f"{sign if not at else again}{year}" for at, year in enumerate(unnamed(values)[:2])]
        return separator.join(years) or sign.strip()

    return show


def _ship(values: Values, page: Page) -> str:
    return " ".join(unnamed({**values, "3": "", "4": ""}))


def _ship_class(values: Values, page: Page) -> str:
    return f"{values.get('1', '')}-class {values.get('2', '')}".strip()


def _reading(values: Values, page: Page) -> str:
    return f"{values.get('1', '')}（{values.get('2', '')}）"


def _century(values: Values, page: Page) -> str:
    """French `{{s|XIX|e}}`; with one parameter it is the "do not wrap" of other wikis."""
    local = LOCAL["fr"]["s"]
    return local(values, page) if values.get("1") and values.get("2") else first(values, page)


def _as_written(values: Values, page: Page) -> str:
    """`{{sic|hostige}}`."""
    text = "".join(unnamed(values))
    return text if values.get("hide") in ("y", "yes") else f"{text} [sic]".strip()


def _citation_in_text(values: Values, page: Page) -> str:
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
_CHINESE += (("w", "Wade–Giles"), ("j", "Jyutping"), ("l", "lit."))


def _chinese(values: Values, page: Page) -> str:
    return "; ".join(f"{label}: {values[key]}" for key, label in _CHINESE if values.get(key))


def _music(values: Values, page: Page) -> str:
    return {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}.get(values.get("1", ""), "")


_SHIP_PREFIXES = (
    "uss hms ss rms hmas hmcs ms mv ins sms usns uscgc hnlms hdms hmnzs ps gts rfa tss hmt usat css"
)
_SIGNS = dict(
    re.findall(r"(\S+)=(\S+)", """okina=ʻ ayin=ʿ hamza=ʾ (={ )=} pi=π phi=φ hbar=ħ eqm=⇌ -'=' -"=\"""")
)
"""Signs by the names of their templates."""

_TEMPLATES: Mapping[str, Show] = {
    **table(
        first,
        """
        nowrap, nobr, nobold, small, smaller, big, larger, abbr, tooltip, abbrlink, bold, italic, comment,
        vanchor, visible anchor, sc, smallcaps, sup, sub, em, strong, code, mvar, math, var, mono, tt, kbd,
        samp, codett, key, button, underline, overline, strikethrough, bigmath, noitalic, flag, flagcountry,
        flagu, ill, interlanguage link, not a typo, notatypo, proper name, anchor text, center, centre,
        midsize, unicode, iast, pie, citation, nobreak, flag link, birth-date, start-date, death-date,
        end-date, birth year and age, death year and age, nastaliq, nq, hebrew, arabic, greek, polytonic,
        cuneiform, tamil, nihongo foot, ruby-ja, sortdate, no wrap, nowraplinks, 仮リンク, ruby, as written, ens,
        las, frs, grcs, rus, its, ess, ars, jas, pls, nls, pts, czs, hus, sws, fas, hes, trs, refnec,
        référence nécessaire, citation nécessaire, exp, cita requerida, le, 要出典範囲, 要検証範囲, нет аи 2,
        число, num, обл.
        """,
    ),
    **table(
        second, "lang, langue, langx, rtl-lang, script, legend, lang2, wikt-lang, audio, hover title, h:title"
    ),
    **table(second, "native name, native phrase"),
    **table(
        parameter("text", "1"), "citation needed span, cn span, clarify span, fact span, dubious span, chunk"
    ),
    **table(parameter("2", "текст", "1", "надо"), "нп, нп1, нп2, нп3, нп4, нп5, не переведено"),
    **table(
        on_own_lines,
        "columns-list, columns list, col list, collist, colonnes, block indent, poem, term, defn",
    ),
    **table(constant(""), "shy, zwj, zwnj, wbr, wj"),
    **table(last, "transl, transliteration, translit"),
    **table(parameter("2", "1"), "resize, font, font color, color, citation étrangère, hill, sort, wikilink"),
    **table(joined(""), "chem, chem2, linktext, nuclide, simple chem, su"),
    **table(
        joined(" "),
        "date, date-, bibleverse, bibleref, nombre, unité, unidad, xt, sortname, gaps, postnominals",
    ),
    **table(joined(" "), "post-nominals, postnom"),
    **table(joined(", "), "hlist, flatlist, comma separated entries"),
    **table(joined("\n"), "ubl, unbulleted list, plainlist, bulleted list, ublist"),
    **table(joined("+"), "key press, keypress"),
    **table(joined(" § "), "slink, section link"),
    **table(
        quotation, "quote, blockquote, cquote, quotation, centered pull quote, poemquote, verse translation"
    ),
    **table(
        quotation, "citation bloc, cita, zitat, citazione, цитата, citaat, cytat, citace, 引用, 引用文, cuote"
    ),
    **table(in_language(quantity), "convert, cvt, conv, converti, convertir, umrechnung"),
    **table(in_language(uncertain_value), "val, m"),
    **table(
        in_language(lambda values, lang: write_number(values.get("1", ""), lang)),
        "nts, number table sorting, format price",
    ),
    **table(in_language(ordinal), "ordinal"),
    **table(in_language(height), "height, höhe"),
    **table(in_language(currency), "currency"),
    **table(in_language(rupees), "inrconvert, inr convert"),
    **table(in_language(track_gauge), "railgauge, track gauge, rail gauge"),
    **table(_fraction, "frac, sfrac, fraction, fract"),
    **table(
        _date, "birth date, death date, start date, end date, dts, birth date and age, death date and age"
    ),
    **table(_date, "start date and age, bda, dda, date table sorting, film date"),
    **table(age, "age, age in years"),
    **table(_ship_class, "sclass, sclass2, sclass-"),
    **table(_ship, "ship"),
    **table(japanese, "nihongo, nihongo2, nihongo3"),
    **table(_years("c. ", "c. ", " – "), "circa, c., ca., ca, c, circ"),
    **table(_years("r. ", "", "–"), "reign, r."),
    **table(_years("fl. ", "", "–"), "floruit, fl."),
    **table(prefixed("b."), "b."),
    **table(prefixed("d."), "d."),
    **table(prefixed("née"), "née, nee"),
    **table(prefixed("né"), "né"),
    **table(prefixed("√", ""), "sqrt, radic, radical"),
    **table(prefixed("lit."), "lit., lit, literally, literal translation"),
    **table(prefixed("transl."), "translation"),
    **table(wrapped("⟨", "⟩"), "angbr, angle bracket, angbr ipa, grapheme"),
    **table(wrapped("'", "'"), "gloss"),
    **table(wrapped("|", "|"), "abs"),
    **table(_as_written, "sic"),
    **table(_citation_in_text, "harvtxt, harvcoltxt"),
    **table(_old_style_date, "oldstyledate"),
    **table(
        constant(" – "), "spaced ndash, spnd, snd, snds, dash, spaced en dash, spaced en dash space, sndash"
    ),
    **table(constant(" — "), "spaced mdash, spaced em dash, smd, long dash"),
    **table(
        constant(" "),
        "nbsp, thinsp, thin space, spaces, space, hair space, zwsp, sp, figure space, nnbsp, en space, em space, pad",
    ),
    **table(constant(" · "), "·, dot, middot, bullet, •"),
    **table(constant("–"), "ndash, –, en dash, endash"),
    **table(constant("—"), "mdash, mdashb, —, em dash, emdash"),
    **table(constant("-"), "nbhyph, nb hyphen, nbhyphen, non-breaking hyphen, hyphen"),
    **table(constant("−"), "minus, −"),
    **table(constant("×"), "times"),
    **table(constant("|"), "!, pipe"),
    **table(constant("†"), "extinct, dagger, †"),
    **table(constant("‡"), "double-dagger, ddagger, double dagger, ‡"),
    **table(constant("..."), "..., ellipsis"),
    **table(constant(" / "), "\\, slash"),
    **{
        sign: constant(sign)
        for sign in ("'", "'s", "' \"", "'\"", "\"'", "\" '", "=", "*", "1er", "e.g.", "i.e.", "viz.", "cf.")
    },
    **{name: constant(sign) for name, sign in _SIGNS.items()},
    **{name: prefixed(name.upper()) for name in _SHIP_PREFIXES.split()},
    **table(prefixed("HSwMS"), "hswms"),
    "as of": _as_of,
    "asof": _as_of,
    "e": lambda values, page: f"×10{superscript(values.get('1', ''))}",
    "us patent": lambda values, page: f"U.S. patent {write_number(values.get('1', ''), page.lang)}",
    "zh": _chinese,
    "music": _music,
    "s": _century,
    "s-": _century,
    '"': wrapped("„", "“"),
    "siglo": LOCAL["es"]["siglo"],
    "lien": LOCAL["fr"]["lien"],
    "tsl": parameter("3", "2"),
    **{key: LOCAL["fr"][key] for key in ("m.", "mme", "mlle", "mgr", "av jc", "av. j.-c.", "av. jc")},
    "読み仮名": _reading,
    "読み仮名 ruby不使用": _reading,
}
