"""The role of a page's elements by their tags and names: article, comment, byline, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from data_prep.text import names
from data_prep.text import page_roles_kernel as kernel


class Role(IntEnum):
    """The role of an element's text, as far as tag and names tell."""

    NONE = 0
    BODY = 1
    """An article's text, without what stands around it."""
    DETAIL = 2
    """Belongs to an article, but not to its text: byline, date, caption, tags, buttons."""
    ASIDE = 3
    """Belongs to the site or to other articles: navigation, teasers, advertisements, forms."""
    OTHERS = 4
    """By other people or of other articles, often longer than the article: comments, related articles."""
    HIDDEN = 5
    """Not shown."""


_ATTRIBUTE_NAMES = ("class", "id", "itemprop", "property", "hidden", "aria-hidden", "style", "role")
"""Attributes that may tell a role, in the order of the kernel."""
TAGS = {
    "address": Role.DETAIL,
    "aside": Role.ASIDE,
    "dialog": Role.ASIDE,
    "figcaption": Role.DETAIL,
    "figure": Role.DETAIL,
    "footer": Role.ASIDE,
    "form": Role.ASIDE,
    "header": Role.DETAIL,
    "nav": Role.ASIDE,
    "time": Role.DETAIL,
}
_LANDMARKS = names("body html main article")
"""Their names tell of the page as a whole, such as `article has-comments`."""
_ARIA_ROLES = names(
    "alert alertdialog banner complementary contentinfo dialog menu navigation search toolbar"
)
_PROPERTIES = {
    "articleBody": Role.BODY,
    "author": Role.DETAIL,
    "caption": Role.DETAIL,
    "datePublished": Role.DETAIL,
    "dateModified": Role.DETAIL,
    "comment": Role.OTHERS,
}
"""schema.org, as microdata or RDFa."""

# Words that follow each other in a name, without what separates them; a plural's last letter may be left out.
_HIDDEN = "sronly screenreader screenreadertext visuallyhidden mweditsection noprint printonly"
_OTHERS = """
    commentlist comentario kommentar kommentare commentaire commenti reactie reaction disqus livefyre
    respond reply replies outbrain taboola zergnet revcontent plista yarpp mgid nrelate youmaylike
    youmayalsolike youmightlike youmightalsolike upnext nextup nextarticle nextpost readnext readalso
    alsoread alsolike mostread mostviewed mostpopular mostshared latestnews latestpost latestarticle
    lateststories recentnews recentpost recentarticle recentstories othernews otherpost otherarticle
    otherstories similarnews similarpost similararticle similarstories morenews morepost morearticle
    morestories terkait bacajuga
"""
_ASIDE = """
    trending popular readmore morefrom moreon topnews topstories topheadline promo promobox promoted teaser
    cardlist cardgrid crosslink newsletter signup membership cta optin mailinglist mailchimp mcembed nav
    navigation navbar navi menu submenu breadcrumb pagination pager sitemap skiplink ad adv ads adsense
    adslot adunit adwrapper adcontainer adbox dfp commercial rail rightbar rightcol rightcolumn rightrail
    secondary footer siteheader sitefooter masthead topbar cookie consent gdpr onetrust popup modal overlay
    lightbox toast tooltip dropdown poll quiz login register registration toolbar disclaimer legal copyright
    widgetarea widgettitle infobox toc tableofcontents linkbox linklist navbox catlinks printfooter
    authorbio authorbox authorinfo authorcard authorprofile authordescription authordetail authorabout
    abouttheauthor aboutauthor
"""
_DETAIL = """
    author writer dateline date datetime datepublished timestamp pubdate publish published publishdate
    publishedon updated posted postedon postedby postedat readingtime readtime kicker eyebrow meta metadata
    postmetadata category categories tag taglist tagcloud topic keyword hashtag caption image img photo
    picture foto thumb thumbnail legende leyenda bildunterschrift legend didascalia piedefoto credit
    imagecaption imagecredit photocredit gallerycaption gallerytext slideshow carousel slider sharing
    addtoany a2a social like follow followus button btn rating vote print email bookmark pullquote
    videoplayer videowrapper videocontainer player jwplayer embed audio videotext videodesc videodescription
    videotitle videoinfo mediacaption mediacredit postmeta postinfo postdate postauthor postdetail
    postheader postfooter posttag posttool postaction postcategory postcategories entrymeta entryinfo
    entrydate entryauthor entrydetail entryheader entryfooter entrytag entrytool entryaction entrycategory
    articlemeta articleinfo articledate articleauthor articledetail articleheader articlefooter articletag
    articletool articleaction articlecategory storymeta storyinfo storydate storyauthor storydetail
    storyheader storyfooter storytag storytool storyaction contentmeta contentinfo contentheader
    contentfooter pageheader pagefooter pagetool pageaction
"""
_BODY = """
    articlebody articlecontent articletext articlecopy articletxt storybody storycontent storytext storycopy
    entrybody entrycontent entrytext postbody postcontent posttext blogbody blogcontent blogtext newsbody
    newscontent newstext contentbody contenttext contentcopy maincontent maintext pagebody pagecontent
    pagetext bodycopy bodytext bodycontent fullcopy fulltext fullcontent singlecontent singletext
    fieldnamebody fieldbody mwparseroutput econtent wysiwyg richtext
"""
_BEGINNINGS = {
    Role.OTHERS: ("related", "recirc", "recommend", "comment"),
    Role.ASIDE: ("promotion", "subscri", "donat", "advert", "sponsor", "sidebar"),
    Role.DETAIL: ("byline", "share", "addthis", "social", "pullquote"),
}
_LISTS = {
    Role.BODY: _BODY,
    Role.DETAIL: _DETAIL,
    Role.ASIDE: _ASIDE,
    Role.OTHERS: _OTHERS,
    Role.HIDDEN: _HIDDEN,
}
_STATES = names("has no with without js is category tag wp-image align size type status format overflow")
"""Beginnings, ahead of a hyphen, of names that tell a state or a subject, such as `has-sidebar`."""


def hash_table(values: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """An open table of the hashes (FNV-1a, uint64) of names, and their values with one more bit (int32), both of a
    power of two."""
    size = 1 << (4 * len(values)).bit_length()
    hashes, numbers = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.int32)
    for name, value in values.items():
        hashed = 0xCBF29CE484222325
        for byte in name.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 % (1 << 64)
        place = hashed % size
        while numbers[place]:
            place = (place + 1) % size
        hashes[place], numbers[place] = hashed, value << 1 | 1
    return hashes, numbers


def _words() -> dict[str, int]:
    """What words tell, as the kernel reads it."""
    values: dict[str, int] = defaultdict(int)
    for role, words in _LISTS.items():
        for word in words.split():
            values[word], values[word + "s"] = role, role
    for role, starts in _BEGINNINGS.items():
        for start in starts:
            values[start] |= role << kernel.START_BIT
    for end in ("comment", "comments"):
        values[end] |= kernel.END_BIT
    return values


ATTRIBUTES = hash_table({name: number for number, name in enumerate(_ATTRIBUTE_NAMES)})
_PAGES = hash_table(dict.fromkeys(_LANDMARKS, 0))
_MARKS = hash_table(_PROPERTIES | dict.fromkeys(_ARIA_ROLES, kernel.ARIA) | {"true": kernel.TRUE})
_NAMES = (*hash_table(_words()), *hash_table(dict.fromkeys(_STATES, 0)))


def find_roles(
    data: np.ndarray,
    elements: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    is_inline: np.ndarray,
    roles: np.ndarray,
) -> np.ndarray:
    """Replace the roles of elements by their tags with those by their names and marks; returns hashes of their tags
    and classes, [tokens] int32.

    Args:
        data: uint8, a serialized page.
        elements: [elements] int64 numbers of the tokens that may have a role.
        firsts, ends: [tokens] int32 bytes of the contents of a tag.
        is_inline: [tokens] bool, whether classes alone tell its role.
        roles: [tokens] int8.
    """
    keys = np.zeros(len(roles), dtype=np.int32)
    kernel.find_roles(
        data, elements, firsts, ends, is_inline, *_PAGES, *ATTRIBUTES, *_MARKS, *_NAMES, roles, keys
    )
    return keys


def role_of_names(classes: str) -> Role:
    """The role by an element's classes; of several, the last in the order of `Role`."""
    data = np.frombuffer(classes.encode("utf-8"), dtype=np.uint8)
    room = np.empty((len(data) + 1, 2), dtype=np.int64)
    return Role(kernel.role_of_names(data, 0, len(data), False, *_NAMES, room))
