"""The passes over a page of wikitext before it is parsed, and over its text afterwards.

Control characters mark the places of parts that are rendered later. None of
these characters can come out of an XML file, and what a page spells as an entity is never turned into one.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from html.entities import html5, name2codepoint

from data_prep.text import names

HEADING = "\x02"
"""Starts a heading's line, before its level, until empty sections are dropped."""
PLACE = "\x03"
"""Stands around the number of a protected piece of the page."""
LESS_THAN = "\x04"
"""An escaped `<` until stray tags are removed: it begins none."""
APOSTROPHE = "\x05"
"""An apostrophe that is a character, whatever is beside it, until bold and italic quotes are taken out."""
EDGE = "\x06"
"""Nothing; holds apart what a tag, a link or a template holds apart, until then."""
LINE_BREAK = "\x07"
"""A `<br>`, until then: it ends a line that is shown, and not a line of the source."""
SPACE = "\x08"
"""A space that is written as an entity, until then."""
BLOCK = "\x0e"
"""A border of a block such as `<div>` or a term's definition, until list marks are removed: it ends a line that
shows something before it."""
COLON = "\x0f"
"""A colon in the text of a link, until then: it ends no term."""
ESCAPED = "\x10"
"""Before a character that is no markup, until the end: spelled as an entity, or the first of a link's text."""
SHOWN = {
    LESS_THAN: "<",
    APOSTROPHE: "'",
    EDGE: "",
    LINE_BREAK: "\n",
    SPACE: " ",
    BLOCK: "\n",
    COLON: ":",
    ESCAPED: "",
}
"""The text that each mark becomes in the end."""


def literal(text: str) -> str:
    """The text with every apostrophe in it a character, and no mark of a list or table at its beginning."""
    return (ESCAPED if text.startswith(("*", "#", ":", ";", "|", "!")) else "") + text.replace(
        "'", APOSTROPHE
    )


# -- extension tags: references, formulas, code, galleries ---------------------------------------------------

FORMULAS = frozenset({"math", "chem", "ce"})
DROPPED_EXTENSIONS = names(
    "ref references score hiero graph timeline gallery imagemap mapframe maplink inputbox categorytree charinsert"
    " indicator section templatedata templatestyles includeonly"
)
_PLACES = re.compile(f"{PLACE}(\\d+){PLACE}")
_INNER_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>", re.IGNORECASE | re.DOTALL)
_INLINE = re.compile(r"\sinline\b|\senclose\s*=\s*[\"']?none", re.IGNORECASE)


def take_extensions(wikitext: str, *, keep_formulas: bool = True) -> tuple[str, list[str]]:
    """Remove comments and extension tags; replace tags that render text by marks, and return that text.

    Linear in the length of the text, however many tags are left open: the end of a tag that is never closed is
    searched once, and the text after it is ordinary markup.

    Args:
        keep_formulas: show formulas as their TeX source between dollar signs, or leave them out.
    """
    kept: list[str] = []
    protected: list[str] = []
    position = 0
    unclosed: set[str] = set()
    while opener := _OPENERS.search(wikitext, position):
        name = (opener.group(1) or "--").lower()
        inner_end, end = _extension_end(wikitext, opener, name, unclosed)
        kept.append(wikitext[position : opener.start()])
        show = _SHOWN.get(name) if keep_formulas or name not in FORMULAS else None
        if show is not None and inner_end > opener.end():
            text, is_block = show(wikitext[opener.end() : inner_end], opener.group())
            kept.append(_place(len(protected), is_block))
            protected.append(text)
        elif name == "nowiki" and (brackets := _split_brackets(kept[-1], wikitext, end)):
            kept[-1] = kept[-1][: -len(brackets[0])]
            kept.append(_place(len(protected), False))
            protected.append("".join(brackets))
            end += len(brackets[1])
        elif name in _SHOWN or (name != "--" and wikitext.startswith("'", end)):
            kept.append(EDGE)
        position = end
    kept.append(wikitext[position:])
    return "".join(kept), protected


def put_protected(text: str, protected: list[str]) -> str:
    """Fill the places that `take_extensions` left."""
    return _PLACES.sub(lambda place: protected[int(place.group(1))], text) if PLACE in text else text


def _split_brackets(before: str, wikitext: str, end: int) -> tuple[str, str] | None:
    """The brackets on both sides of a `<nowiki/>` that keeps them from being markup: `[<nowiki/>[`, `{{<nowiki/>`."""
    sign = before[-1:]
    if sign not in ("[", "{"):
        return None
    if wikitext.startswith(sign, end):
        return sign, sign
    return (2 * sign, "") if before.endswith(2 * sign) else None


def _place(number: int, is_block: bool) -> str:
    mark = f"{PLACE}{number}{PLACE}"
    return f"{LINE_BREAK}{mark}{LINE_BREAK}" if is_block else mark


def _extension_end(wikitext: str, opener: re.Match[str], name: str, unclosed: set[str]) -> tuple[int, int]:
    """Ends of the content of a tag and of its closing tag."""
    if opener.group().endswith("/>") or name in unclosed:
        return opener.end(), opener.end()
    pattern = re.compile("-->" if name == "--" else rf"</{name}\s{{0,10}}>", re.IGNORECASE)
    closer = pattern.search(wikitext, opener.end())
    if closer is None and name == "--":
        return len(wikitext), len(wikitext)
    if closer is None:
        unclosed.add(name)
        return opener.end(), opener.end()
    return closer.start(), closer.end()


# -- what tags show, and whether on lines of their own ---------------------------------------------------------------


def _code(inner: str, opener: str) -> tuple[str, bool]:
    is_inline = _INLINE.search(opener) is not None
    return (inner.strip() if is_inline else inner.strip("\n")), not is_inline


_ENTITY = re.compile(r"&(?:#\d{1,8}|#[xX][0-9A-Fa-f]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});")
"""Without the semicolon, as in `?a=1&copy=2`, it is none."""


def _unescaped(text: str) -> str:
    if "&" not in text:
        return text
    text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    return text.replace("\u00a0", " ").replace("\u00ad", "")


_SHOWN: Mapping[str, Callable[[str, str], tuple[str, bool]]] = {
    **dict.fromkeys(FORMULAS, lambda inner, opener: (f"${' '.join(inner.split())}$", False)),
    # Markup is text here, entities are still entities.
    "nowiki": lambda inner, opener: (_unescaped(inner), False),
    "pre": lambda inner, opener: (_unescaped(_INNER_NOWIKI.sub(r"\1", inner)).strip("\n"), True),
    "syntaxhighlight": _code,
    "source": _code,
}
"""By name of a tag, (text, whether it has lines of its own) from what it holds and its opening tag."""
_OPENERS = re.compile(
    r"<!--|<(" + "|".join(sorted({*_SHOWN, *DROPPED_EXTENSIONS})) + r")(?:\s[^<>]*|/)?>", re.IGNORECASE
)


# -- language conversion -------------------------------------------------------------------------------------

_MOST_PASSES = 10
"""Conversions that are nested deeper stay as they are."""
_CODE = r"(?:zh|sr|sh|kk|ku|iu|gan|shi|tg|uz|crh|ban|wuu|tly|zgh|mni)(?:-[A-Za-z]{1,10}){0,3}"
_CONVERSION = re.compile(
    # A hyphen before a template is a hyphen. Templates without other templates in them may be inside.
    r"-\{(?!\{(?!\{))((?:[^{}]++|\{\{[^{}]*\}\}|(?<!-)\{[^{}]*\}(?!-))*+)\}-"
)
_FLAGS = re.compile(r"[\w;\s-]*")
_HIDING = frozenset({"T", "H", "-", "N"})
"""Flags of the page's title, of rules that hold from here on, and of the names of variants."""
_RULE = re.compile(rf"\s*(?:[^;]*?=>\s*)?{_CODE}\s*:", re.IGNORECASE)
_RULES_END = re.compile(rf";(?={_RULE.pattern}|\s*\Z)", re.IGNORECASE)


def show_first_variants(text: str) -> str:
    """The text with every conversion replaced by what it shows, from the inside out."""
    for _ in range(_MOST_PASSES):
        before = text
        if "}-" not in text or (text := _CONVERSION.sub(_first_variant, text)) == before:
            break
    return text


def _first_variant(conversion: re.Match[str]) -> str:
    flags, bar, shown = conversion.group(1).partition("|")
    if not bar or not _FLAGS.fullmatch(flags):
        flags, shown = "", conversion.group(1)
    names = {flag.strip() for flag in flags.split(";")}
    if not names.isdisjoint(_HIDING):
        return ""
    if "R" in names or any(re.fullmatch(_CODE, name, re.IGNORECASE) for name in names):
        return shown
    first = _RULES_END.split(shown, maxsplit=1)[0]
    rule = _RULE.match(first)
    if rule is None:
        return shown
    # D lists the rules for readers.
    return "" if "D" in names else first[rule.end() :].strip()


# -- the form that the parser needs --------------------------------------------------------------------------

_SWITCH = re.compile(r"__([^\W\d_]{3,40})__")
"""Behaviour switches such as `__NOTOC__` in any language."""
_SWITCHES = names(
    "notoc forcetoc toc noeditsection notitleconvert notc nocontentconvert nocc nogallery index noindex hiddencat"
    " expectunusedcategory staticredirect newsectionlink disambig nonewsectionlink archivedtalk notalk noglobal"
)
"""Those that work in small letters; others in small letters are words, such as Python's `__init__`."""
_TRANSCLUSION = re.compile(r"</?(?:noinclude|onlyinclude)\s{0,10}/?>", re.IGNORECASE)
_NAMED_ENTITY = re.compile(r"&(\w{2,32});")
_ALIASES = {"רלמ": "\u200f", "رلم": "\u200f"}
_PROTOCOL = r"(?:(?:https?|ftps?|news|ircs?|gopher|mailto|sftp|tel):|//)"
_SPACE_IN_LINK = re.compile(
    rf"(\[{_PROTOCOL}[^\s\[\]<>\"]*)[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]", re.IGNORECASE
)
_DOUBLE_BRACKET = re.compile(r"\[\[(?=(?:https?:|ftp:)?//)", re.IGNORECASE)
_BRACKETS_IN_HOST = re.compile(r"(\[(?:(?:https?|ftp):)?//)\[[0-9A-F:.]{2,45}\]", re.IGNORECASE)


def prepare_markup(wikitext: str) -> str:
    """The page without switches, marks of transclusion and language conversion; with entities and addresses that the
    parser knows."""
    if "__" in wikitext:
        wikitext = _SWITCH.sub(lambda found: "" if _is_switch(found.group(1)) else found.group(), wikitext)
    if "include" in wikitext.lower():
        wikitext = _TRANSCLUSION.sub("", wikitext)
    if "&" in wikitext:
        wikitext = _NAMED_ENTITY.sub(_entity, wikitext)
    # The address of a link in brackets is not shown, if it has a text.
    wikitext = _BRACKETS_IN_HOST.sub(r"\1host", wikitext)
    wikitext = _SPACE_IN_LINK.sub(r"\1 ", wikitext)
    wikitext = _DOUBLE_BRACKET.sub("&#91;[", wikitext)
    return show_first_variants(wikitext)


def _is_switch(name: str) -> bool:
    return not (name.isascii() and name.islower()) or name in _SWITCHES


def _entity(found: re.Match[str]) -> str:
    """The reference by number, where only HTML 5 knows the name."""
    name = found.group(1)
    characters = _ALIASES.get(name) or html5.get(f"{name};")
    if name in name2codepoint or characters is None:
        return found.group()
    return "".join(f"&#{ord(character)};" for character in characters)


# -- bold and italic quotes ----------------------------------------------------------------------------------

_RUN = re.compile("('{2,})")
_ITALIC, _BOLD, _BOTH = 2, 3, 5


def drop_quotes(text: str) -> str:
    """The text without the quotes that are markup; a line without any is returned as it is."""
    if "''" not in text:
        return text
    return "\n".join([drop_quotes_of_line(line) if "''" in line else line for line in text.split("\n")])


def drop_quotes_of_line(line: str) -> str:
    """Like `drop_quotes`, for what MediaWiki takes for one line, such as the text of a link."""
    pieces = _RUN.split(line)
    texts, lengths = pieces[0::2], [len(run) for run in pieces[1::2]]
    for number, length in enumerate(lengths):
        # The last apostrophes of a run are markup; those before them are text.
        lengths[number] = _BOLD if length == _BOLD + 1 else min(length, _BOTH)
        texts[number] += "'" * (length - lengths[number])
    num_bold = sum(length in (_BOLD, _BOTH) for length in lengths)
    num_italic = sum(length in (_ITALIC, _BOTH) for length in lengths)
    if num_bold % 2 and num_italic % 2:
        bold = [number for number, length in enumerate(lengths) if length == _BOLD]
        if bold:
            texts[min(bold, key=lambda number: _rank(texts[number]))] += "'"
    return "".join(texts)


def _rank(before: str) -> int:
    """How unlikely it is that bold quotes are an apostrophe and italic ones, by the text before them: likeliest after
    a word of one letter, then after a longer one, least after a space. MediaWiki looks at bytes, so that a letter
    is one of ASCII, and the beginning of a line ends no word."""
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] == " " and before[-1].isascii() else 1


# -- punctuation that dropped markup leaves hollow -----------------------------------------------------------


_REPAIRS = [
    (signs.split("|"), re.compile(pattern), replacement)
    for signs, pattern, replacement in (
        # Empty brackets; of full width; punctuation after and before these, and repeated.
        ("(|[", r"(?<![\w\]])\([ \t,;:]*\)|\([ \t,;:]+\)|(?<![\w\]])\[[ \t]*\]", ""),
        ("（", r"（[\s、，；：,;:]*）", ""),
        ("（", r"（[\s、，；：]+", "（"),
        ("）", r"[\s、，；：]+）", "）"),
        ("，，|、、|，、|、，", r"([、，])[、，]+", r"\1"),
        ("，。|、。", r"[、，]+。", "。"),
        ("  |\t|\u00a0", r"[ \t\u00a0]{2,}", " "),
        # Punctuation before a closing bracket and after an opening one, spaces before it, and repeated commas.
        (" )|,)|;)", r"[ ,;]{1,8}\)", ")"),
        ("( |(,|(;", r"\((?: ?[,;])+ ?", "("),
        (" ,| ;", r"(?<=\S) (?=[,;]\s)", ""),
        (",,|, ,", r",(?: ?,)+", ","),
        (" .", rf"(?<=[\w{PLACE}]) \.(?=\s|$)", "."),
    )
]
"""Rules in their order. The text must hold one of the signs; searching them costs a tenth of searching the pattern."""


def repair_punctuation(text: str) -> str:
    """Apply all rules."""
    for signs, pattern, replacement in _REPAIRS:
        if any(sign in text for sign in signs):
            text = pattern.sub(replacement, text)
    return text
