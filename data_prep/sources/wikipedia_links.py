"""Which links of a wiki show in running text, and as what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import unquote

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
"""Namespaces have aliases that dumps do not tell (`Bild:`, `Изображение:`); a file's ending does."""

_NOT_IN_TITLES = re.compile(r"[\[\]{}|<>\ufffd]|%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class LinkRules:
    """Which links of a wiki show nothing in running text."""

    hidden_namespaces: frozenset[str] = frozenset(
        {"file", "image", "category", "分类", "分類", "カテゴリ", "к", "категория"}
    )
    """Lower-case names of the file and category namespaces. The English ones work in every wiki; the others are
    aliases that are common in their wikis (MediaWiki's `languages/messages`), and that dumps do not tell."""
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
        """Whether `[[target]]`, or `[[target|text]]` with `has_text`, shows nothing where it stands."""
        return self.hide(target) or (not has_text and _INTERLANGUAGE.match(target) is not None)


ENGLISH_LINKS = LinkRules()


def title_text(target: str) -> str:
    """What `[[target]]` shows. A space at its end stays: it separates what follows."""
    shown = target.lstrip().removeprefix(":")
    if "%" not in shown:
        return shown
    decoded = unquote(shown)
    return decoded if decoded.isprintable() and not _NOT_IN_TITLES.search(decoded) else shown


def _key(name: str) -> str:
    return name.replace("_", " ").strip().lower()
