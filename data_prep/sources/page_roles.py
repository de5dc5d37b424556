"""The role of a page's elements by their tags and names: article, comment, byline, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

from data_prep.sources.markup import names

_MAX_NAME_CHARACTERS = 400
"""Of an element's classes and id together; longer ones are generated, and say nothing."""


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


_NONE, _BODY_ROLE = Role.NONE, Role.BODY
_TAGS = {
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
_ROLES = {name + s: role for role, words in _LISTS.items() for name in words.split() for s in ("", "s")}
_STARTS = {start: role for role, starts in _BEGINNINGS.items() for start in starts}
_ANY_START = tuple(_STARTS)
_LONGEST_NAME = 4
"""Words."""
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_STATES = re.compile(
    r"(?:has|no|with|without|js|is|category|tag|wp-image|align|size|type|status|format|overflow)[-_]"
)
"""Names that tell a state or a subject, such as `has-sidebar` and `category-advertising`."""
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none", re.IGNORECASE)


def role_of(tag: str, attributes: Mapping[str, str]) -> Role:
    """The role of an element. Its names count more than its tag, and machine-readable marks more than both."""
    if not attributes:
        return _TAGS.get(tag, _NONE)
    get = attributes.get
    classes, identifier = get("class", ""), get("id", "")
    role = _NONE if tag in _LANDMARKS else role_of_names(classes, identifier)
    if len(attributes) > (classes != "") + (identifier != ""):
        if (stated := _PROPERTIES.get(get("itemprop") or get("property") or "")) is not None:
            return stated
        if role is not _BODY_ROLE and _is_hidden(attributes):
            return Role.HIDDEN
        if get("role") in _ARIA_ROLES and tag not in _LANDMARKS:
            return Role.ASIDE
    return _TAGS.get(tag, role) if role <= _BODY_ROLE else role


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    """Whether an element says that it does not show; what scripts show later, and articles behind a notice, do too."""
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    style = attributes.get("style")
    return style is not None and _HIDDEN_STYLE.search(style) is not None


def role_of_names(classes: str, identifier: str = "") -> Role:
    """The role by an element's classes and id; of several, the last in the order of `Role`."""
    if len(classes) + len(identifier) > _MAX_NAME_CHARACTERS:
        return Role.NONE
    return _role_of_names(classes, identifier)


@lru_cache(maxsize=1 << 14)
def _role_of_names(classes: str, identifier: str) -> Role:
    return max(map(_role_of_name, (*classes.split(), identifier)), default=Role.NONE)


@lru_cache(maxsize=1 << 14)
def _role_of_name(name: str) -> Role:
    if ":" in name or _STATES.match(name):
        return Role.NONE
    words = [word.lower() for word in _WORDS.findall(name)]
    role = Role.NONE
    for first, word in enumerate(words):
        if word.startswith(_ANY_START):
            role = max(role, *(found for start, found in _STARTS.items() if word.startswith(start)))
        elif word.endswith(("comment", "comments")):
            role = max(role, Role.OTHERS)
        glued = ""
        for following in words[first : first + _LONGEST_NAME]:
            glued += following
            if glued in _ROLES:
                role = max(role, _ROLES[glued])
    return role
