"""A page of a wiki: its magic words, which of its links show, and whether it is a disambiguation page.

See https://www.mediawiki.org/wiki/Help:Magic_words. What depends on the time of reading is shown for the time when
the page was saved, which the dump holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import unquote

from data_prep.text import names, table
from data_prep.text.wikitext_source import take_extensions


@dataclass(frozen=True, slots=True)
class Page:
    """Facts about a page that templates and magic words may show."""

    title: str = ""
    lang: str = "en"
    """ISO 639-1 code of its wiki."""
    saved: datetime | None = None
    """When its revision was saved (UTC)."""


class Values(dict[str, str]):
    """Parameters of a template as rendered text, by name; unnamed ones are "1", "2" and so on, and those that are not
    there are empty."""

    def __missing__(self, name: str) -> str:
        return ""


Show = Callable[[Values, Page], str]
"""The text of a template from its parameters, on a page."""


_TITLES = names("PAGENAME FULLPAGENAME BASEPAGENAME ROOTPAGENAME SUBPAGENAME ARTICLEPAGENAME SUBJECTPAGENAME")
_TIME = re.compile("(?:CURRENT|LOCAL|REVISION)([A-Z]+[12]?)")
_TIMES = {
    "YEAR": "{:%Y}",
    "MONTH": "{:%m}",
    "MONTH1": "{0.month}",
    "DAY": "{0.day}",
    "DAY2": "{:%d}",
    "TIME": "{:%H:%M}",
    "HOUR": "{:%H}",
}
_MONTHS: Mapping[str, str] = table("wiki_words")["months"]


def magic_word(name: str, page: Page) -> str | None:
    """The text that `{{NAME}}` shows on a page; None where it is no magic word, or nothing is known to show."""
    if name in _TITLES:
        return page.title
    if name in ("CONTENTLANGUAGE", "CONTENTLANG"):
        return page.lang
    if name == "SITENAME":
        return "Wikipedia"
    time = _TIME.fullmatch(name)
    if time is None or page.saved is None:
        return None
    if time[1] in ("MONTHNAME", "MONTHNAMEGEN"):
        return month_name(page.saved.month, page.lang)
    return _TIMES[time[1]].format(page.saved) if time[1] in _TIMES else None


def month_name(month: int, lang: str) -> str:
    """The name of a month (1 to 12), in English where no other is known."""
    return _MONTHS.get(lang, _MONTHS["en"]).split()[month - 1]


# -- links ---------------------------------------------------------------------------------------------------

HIDDEN_NAMESPACES = frozenset({6, 14})
"""Numbers of the file and category namespaces, in every wiki."""
MEDIA_NAMESPACE = -2
"""Number of the namespace of links to files that show text as others do."""
_INTERLANGUAGE = re.compile(
    r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|be-[a-z-]+|roa-[a-z-]+|[a-z]{3}-[a-z]{3,4})[ _]*:[ _]*\S"
)
_MEDIA_FILE = re.compile(
    r"^[^:|\]]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gav]|opus|flac|mp3|wav|midi?|web[mp]|pdf|djvu)\s*$",
    re.IGNORECASE,
)
"""Namespaces have aliases that dumps do not list (`Bild:`, `Изображение:`); a file's ending does."""

_NOT_IN_TITLES = re.compile(r"[\[\]{}|<>\ufffd]|%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class LinkRules:
    """Links of a wiki that show nothing in running text."""

    hidden_namespaces: frozenset[str] = frozenset(
        {"file", "image", "category", "分类", "分類", "カテゴリ", "к", "категория"}
    )
    """Lower-case names of the file and category namespaces. The English ones work in every wiki; the others are
    aliases that are common in their wikis (MediaWiki's `languages/messages`), and that dumps do not list."""
    media_namespaces: frozenset[str] = frozenset({"media"})
    """Lower-case names of the media namespace."""

    def extended(self, hidden: Iterable[str], media: Iterable[str] = ()) -> LinkRules:
        return replace(
            self,
            hidden_namespaces=self.hidden_namespaces | {_key(name) for name in hidden},
            media_namespaces=self.media_namespaces | {_key(name) for name in media},
        )

    def hide(self, target: str) -> bool:
        """Whether a link to `target` is a picture, a category or the like."""
        namespace, colon, _ = target.partition(":")
        if not colon or not namespace or _key(namespace) in self.media_namespaces:
            return False
        return _key(namespace) in self.hidden_namespaces or _MEDIA_FILE.match(target) is not None

    def is_furniture(self, target: str, has_text: bool) -> bool:
        """Whether `[[target]]`, or `[[target|text]]` with `has_text`, shows nothing in its place."""
        return self.hide(target) or (not has_text and _INTERLANGUAGE.match(target) is not None)


ENGLISH_LINKS = LinkRules()


def title_text(target: str) -> str:
    """The text that `[[target]]` shows. A space at its end stays: it separates what follows."""
    shown = target.lstrip().removeprefix(":")
    if "%" not in shown:
        return shown
    decoded = unquote(shown)
    return decoded if decoded.isprintable() and not _NOT_IN_TITLES.search(decoded) else shown


def _key(name: str) -> str:
    return name.replace("_", " ").strip().lower()


# -- disambiguation pages ------------------------------------------------------------------------------------

# MediaWiki marks such a page, a list of the things that share a name, with `__DISAMBIG__`, which nearly always comes
# out of a template. A dump does not hold what templates contain, so `disambiguations.yaml` names the templates, as the
# wikis do on their page `MediaWiki:Disambiguationspage`. Templates on other pages that point to a disambiguation (such
# as `{{disambiguation needed}}`, `{{Voir homonymes}}`, `{{Nota disambigua}}`) are not among them.

_NAMESPACE = re.compile(r"^(?:template|vorlage|modèle|plantilla|predefinição|шаблон|sjabloon|szablon) ?: ?")
_TEMPLATE = re.compile(r"\{\{([^{}|<>\[\]#]{1,80})[|}]")
_ENGLISH_MARK = re.compile(
    r"(?:[\w-]+ )*?(?:disambig(?:uation)?|disamb|dab)(?: ?page| ?cleanup|-cleanup)?|\w{2,8}disambig"
)
"""`{{Disambiguation}}`, `{{school disambiguation}}`, `{{disambig-cleanup}}`, `{{TLAdisambig}}`; most wikis know
`{{disambig}}` too."""
_NO_MARK = re.compile(r"(?:r (?:to|from) |nota |ver |voir |see |need|link |unlinked |other |use ).*")
_MARKS = frozenset(name.strip() for names in table("disambiguations").values() for name in names.split(","))


def template_key(name: str) -> str:
    """A template's name as MediaWiki compares it: without case of its first letter, underscores for spaces."""
    return _NAMESPACE.sub("", " ".join(name.replace("_", " ").split()).lower())


def is_disambiguation(wikitext: str) -> bool:
    """Whether a page says that it is a disambiguation page; comments, references and the like say nothing."""
    source, _ = take_extensions(wikitext)
    return "__DISAMBIG__" in source or any(
        key in _MARKS or (_ENGLISH_MARK.fullmatch(key) and not _NO_MARK.fullmatch(key))
        for key in map(template_key, _TEMPLATE.findall(source))
    )
