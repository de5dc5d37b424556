"""The text of an HTML page, within limits that hostile pages cannot exceed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from data_prep.text import UnreadableError, clean_text

_BLANK = r"\x00-\x20"
_ATTRIBUTE = (
    rf"[{_BLANK}/]*+[^{_BLANK}/=>]++"
    rf"(?:[{_BLANK}]*+=[{_BLANK}]*+(?:\"[^\"]*+\"|'[^']*+'|(?![\"'])[^{_BLANK}>\"']*+))?+"
)
_TAG = re.compile(rf"<[A-Za-z][^{_BLANK}/>]*+(?=((?:{_ATTRIBUTE}){{0,1999}}+)({_ATTRIBUTE})?+)")
"""A tag; its attributes, at most 1999; one more. Parsers compare each with all before it: thousands take minutes."""
_MAX_SCANS = 64
"""A tag may begin inside another one's attributes, as in scripts; a page of such tags would be scanned 2000 times."""
_SAMPLE_CHARACTERS = 1 << 14
_NO_TEXT = bytes([*range(9), *range(14, 27), *range(28, 32)])
"""Control characters, which are no text."""
_MAX_NO_TEXT_SHARE = 0.05
"""Most of them in text; also most characters that could not be decoded."""
_SHORT_PAGE = 1 << 17
"""Characters; what fits into so few is parsed in a second at worst."""
_SOFT_HYPHEN = "\u00ad"
"""Shows only where a browser breaks a line."""
_MAX_GROWTH = 4
"""Text longer than so many times its page is the indentation of lists in lists."""


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a page, and facts about it."""

    title: str
    text: str


def read_page(html: str, *, main_content: bool, max_depth: int) -> Page:
    """Title and text of a page, paragraphs on lines of their own.

    Args:
        main_content: leave out the surroundings of an article: headline, byline, captions, teasers, comments, menus.
            Of a page without an article, such as a list of headlines, the text without navigation and footers.
        max_depth: most elements inside each other. The extraction takes time that grows with the square of it.

    Raises:
        UnreadableError: the page is deeper, has an element with thousands of attributes, or its text is not decoded.
    """
    if not _is_text(html):
        return Page("", "")
    page = _read_article(html, max_depth) if main_content else None
    if page is None and (tree := _parse(html, max_depth)) is not None:
        page = Page(
            " ".join(clean_text(tree.title or "").split()),
            text_of_tree(tree, html, main_content=main_content),
        )
    return page or Page("", "")


def read_tree(html: str, max_depth: int) -> HTMLTree | None:
    """The elements of a page; None if it has no text.

    Raises:
        UnreadableError: see `read_page`.
    """
    return _parse(html, max_depth) if _is_text(html) else None


def text_of_tree(tree: HTMLTree, html: str, *, main_content: bool = False) -> str:
    """The text of the elements of a page.

    Raises:
        UnreadableError: it is not decoded, or many times as long as the page.
    """
    text = extract_plain_text(
        tree,
        preserve_formatting=True,
        main_content=main_content,
        list_bullets=False,
        alt_texts=False,
        links=False,
        form_fields=False,
        noscript=False,
        comments=not main_content,
    )
    if len(text) > _MAX_GROWTH * len(html):
        raise UnreadableError(f"a page of {len(html)} characters shows {len(text)} of them")
    text = clean_text(text.replace(_SOFT_HYPHEN, ""))
    _require_decoded(text)
    return text


def _is_text(html: str) -> bool:
    """Whether a page is text and not a picture, an archive or the like that is called a page."""
    sample = html[:_SAMPLE_CHARACTERS]
    data = sample.encode("utf-8", "replace")
    if len(data) - len(data.translate(None, _NO_TEXT)) > _MAX_NO_TEXT_SHARE * len(sample):
        return False
    _require_decoded(sample)
    if len(html) > _SHORT_PAGE:
        _require_few_attributes(html)
    return True


def _require_few_attributes(html: str) -> None:
    left = _MAX_SCANS * len(html)
    for tag in _TAG.finditer(html):
        left -= len(tag[1])
        if tag[2] is not None or left < 0:
            raise UnreadableError("the page has an element with thousands of attributes")


def _require_decoded(text: str) -> None:
    if text.count("\ufffd") > _MAX_NO_TEXT_SHARE * len(text):
        raise UnreadableError("the page is in an unknown encoding: neither declared, nor one of `lang`")


def _read_article(html: str, max_depth: int) -> Page | None:
    """The page's article; None if there is none, or a small fraction of the page's text."""
    from data_prep.text.article import main_content
    from data_prep.text.page_blocks import read_blocks

    page = read_blocks(html, max_depth)
    text = None if page is None else main_content(page)
    if page is None or text is None:
        return None
    text = clean_text(text.replace(_SOFT_HYPHEN, ""))
    _require_decoded(text)
    return Page(" ".join(clean_text(page.title).split()), text)


def _parse(html: str, max_depth: int) -> HTMLTree | None:
    tree = HTMLTree.parse(html)
    if tree.document is None or tree.body is None:
        return None
    if tree.document.query_selector(" > ".join(["*"] * (max_depth + 1))) is not None:
        raise UnreadableError(f"the page has more than {max_depth} elements inside each other")
    return tree
