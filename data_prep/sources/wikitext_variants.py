"""Language conversion of wikitext: `-{zh-hans:A; zh-hant:B}-` shows one of its variants, here the first.

After `ConverterRule` of MediaWiki (`includes/language/ConverterRule.php`).
"""

from __future__ import annotations

import re

_MOST_PASSES = 10
"""Conversions that are nested deeper stay as they are."""
_CODE = r"(?:zh|sr|sh|kk|ku|iu|gan|shi|tg|uz|crh|ban|wuu|tly|zgh|mni)(?:-[A-Za-z]{1,10}){0,3}"
_CONVERSION = re.compile(
    # A hyphen before a template is a hyphen. Templates without other templates in them may stand inside.
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
        if "}-" not in text or (text := _CONVERSION.sub(_shown, text)) == before:
            break
    return text


def _shown(conversion: re.Match[str]) -> str:
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
