"""The running text of a Wikipedia article's HTML, as Parsoid and the older parser of MediaWiki write it.

The same is left out as from wikitext: tables and infoboxes, navigation boxes, references and their
marks, pictures with their captions, notes above the text that point elsewhere. What templates show in sentences stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from resiliparse.parse.html import HTMLTree

from data_prep.text import clean_text, names
from data_prep.text.html import read_tree, text_of_tree
from data_prep.text.wikitext import drop_empty_sections

_TAGS = names("table figure figcaption audio video style script noscript nav input label map link meta img")
_CLASSES = names(
    # references and their marks
    "reference mw-ref references mw-references-wrap reflist refbegin citation mw-cite-backlink Inline-Template"
    # boxes for navigation and facts
    " infobox navbox vertical-navbox navbar navbox-container sidebar succession-box infobox_v2 infobox_v3 taxobox_v3"
    " sinottico ficha BoxenVerschmelzen NavFrame portal portalbox portal-bar authority-control mw-authority-control"
    " catlinks toc sistersitebox side-box bandeau-portail"
    # notes to readers and editors
    " metadata ambox dmbox mbox-small hatnote dablink rellink homonymie hauptartikel nota_disambigua avviso vedi-anche"
    " bandeau-container boilerplate shortdescription noprint mw-editsection mw-indicators mw-jump-link printfooter"
    # pictures, maps, and what style sheets hide
    " thumb gallery thumbcaption mw-kartographer-container geo-nondefault geo-multi-punct mw-empty-elt"
)
"""Classes of the English, German, French, Italian and Spanish Wikipedias, which many others share."""
_IDS = frozenset({"toc", "coordinates", "catlinks"})
_ROLES = frozenset({"navigation", "presentation"})
_TYPES = ("mw:Extension/ref", "mw:File", "mw:Image", "mw:Video", "mw:Audio", "mw:Extension/gallery")
_HIDDEN = re.compile(r"display:\s*none")
_MATH = "mwe-math-element"
_HEADINGS = frozenset({"h2", "h3", "h4", "h5", "h6"})
_HEADING = "\ufdd0"
"""Begins the line of a heading until empty sections are dropped. Unicode keeps it for such uses (section 23.7)."""
_DISAMBIGUATION = (
    "meta[property='mw:PageProp/disambiguation'], #disambigbox, .dmbox-disambig, #disambig, #homonymie"
)


def article_text(html: str, *, keep_formulas: bool, max_depth: int) -> str:
    """The running text of an article; empty when there is none.

    Args:
        keep_formulas: show formulas as their TeX source between dollar signs, or leave them out.
        max_depth: most elements inside each other.

    Raises:
        UnreadableError: see `read_page`.
    """
    html = html.replace(_HEADING, "")
    tree = read_tree(html, max_depth)
    if tree is None:
        return ""
    _keep_article(tree.body, keep_formulas=keep_formulas)
    text = text_of_tree(tree, html).replace("\u00a0", " ")
    return clean_text(drop_empty_sections(text, _HEADING))


def is_disambiguation_page(html: str) -> bool:
    """Whether a page says that it is a disambiguation page."""
    if "disambig" not in html and "homonymie" not in html:
        return False
    document = HTMLTree.parse(html).document
    return document is not None and document.query_selector(_DISAMBIGUATION) is not None


def _keep_article(body: Any, *, keep_formulas: bool) -> None:
    """Take the furniture out of a page, write formulas as TeX, and mark headings."""
    for element in list(_outermost(body)):
        if element.tag in _HEADINGS:
            title = " ".join((element.text or "").split())
            element.text = f"{_HEADING}{element.tag[1]}{title}"
        elif keep_formulas and _MATH in element.class_list and (source := _tex(element)):
            element.text = f"${source}$"
        else:
            element.decompose()


def _outermost(body: Any) -> Iterator[Any]:
    """The headings, formulas and furniture of a page that are in no other.

    A walk: queries of resiliparse take time that grows with the square of what they find.
    """
    stack = [body.first_element_child]
    while stack:
        element = stack.pop()
        if element is None:
            continue
        stack.append(element.next_element)
        if element.tag in _HEADINGS:
            # The older parser puts the link to edit a section into its heading.
            child = element.first_element_child
            while child is not None:
                if _is_furniture(child):
                    yield child
                child = child.next_element
            yield element
        elif _is_furniture(element):
            yield element
        else:
            stack.append(element.first_element_child)


def _is_furniture(element: Any) -> bool:
    """Whether an element is furniture, or a formula."""
    if element.tag in _TAGS:
        return True
    attributes = element.attrs
    if not attributes:
        return False
    classes = element.class_list if "class" in attributes else ()
    return (
        any(name in _CLASSES or name == _MATH for name in classes)
        or ("id" in attributes and element.id in _IDS)
        or ("role" in attributes and element.getattr("role") in _ROLES)
        or ("style" in attributes and _HIDDEN.search(element.getattr("style")) is not None)
        or ("typeof" in attributes and any(kind in element.getattr("typeof") for kind in _TYPES))
    )


def _tex(formula: Any) -> str:
    """The TeX source of a formula, from its annotation or the description of its picture."""
    annotation = formula.query_selector("annotation")
    source = annotation.text if annotation is not None else ""
    for name, attribute in (("math", "alttext"), ("img", "alt")):
        element = None if source else formula.query_selector(name)
        if element is not None:
            source = element.getattr(attribute) or ""
    source = " ".join(source.split())
    inner = source.removeprefix("{\\displaystyle").removesuffix("}")
    return (inner if source.startswith("{\\displaystyle") else source).strip()
