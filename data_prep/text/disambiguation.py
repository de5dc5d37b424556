"""Disambiguation pages: lists of the things that share a name.

MediaWiki marks such a page with `__DISAMBIG__`, which nearly always comes out of a template. A dump does not hold
what templates contain, so the templates are known by name. The names are those that the wikis list on their page
`MediaWiki:Disambiguationspage`; templates on other pages that point to a disambiguation (such as
`{{disambiguation needed}}`, `{{Voir homonymes}}`, `{{Nota disambigua}}`) are not among them.
"""

from __future__ import annotations

import re

from data_prep.text import table
from data_prep.text.wiki_templates import template_key
from data_prep.text.wikitext_source import take_extensions

_MARK = re.compile(r"__DISAMBIG__")
_TEMPLATE = re.compile(r"\{\{([^{}|<>\[\]#]{1,80})[|}]")
_ENGLISH = re.compile(
    r"(?:[\w-]+ )*?(?:disambig(?:uation)?|disamb|dab)(?: ?page| ?cleanup|-cleanup)?|\w{2,8}disambig"
)
"""`{{Disambiguation}}`, `{{school disambiguation}}`, `{{disambig-cleanup}}`, `{{TLAdisambig}}`; most wikis know
`{{disambig}}` too."""
_NO_MARK = re.compile(r"(?:r (?:to|from) |nota |ver |voir |see |need|link |unlinked |other |use ).*")
_NAMES = frozenset(name.strip() for names in table("disambiguations").values() for name in names.split(","))


def is_disambiguation(wikitext: str) -> bool:
    """Whether a page says that it is a disambiguation page; comments, references and the like say nothing."""
    source, _ = take_extensions(wikitext)
    return bool(_MARK.search(source)) or any(map(_is_marking, _TEMPLATE.findall(source)))


def _is_marking(name: str) -> bool:
    key = template_key(name)
    return key in _NAMES or bool(_ENGLISH.fullmatch(key) and not _NO_MARK.fullmatch(key))
