"""Which text of a page is its article, on pages written for each kind of thing that stands around articles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text import page_blocks, page_scan
from data_prep.text.html import read_page
from data_prep.text.page_roles import Role, role_of_names
from tests.data_prep import reading

PARAGRAPHS = [
    "The river rose through the night, and by morning the lower streets of the town were under water.",
    'Firemen carried the old and the sick to the school on the hill. "Nobody expected it," said the mayor.',
    "The bridge, which was built in 1911 and had withstood five floods, was closed to all traffic at noon.",
    "Engineers of the province will examine its piers as soon as the water has gone; this may take a week.",
]
TEASER = (
    "Farmers in the valley have waited for rain since the spring, and some have sold their cattle by now."
)
COMMENT = "I have lived there for thirty years, and nobody ever cleaned the drains. What did they think would happen?"


def text_of(html: str) -> str:
    return read_page(html, main_content=True, max_depth=512).text


def p(texts: list[str]) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)


def test_an_article_stands_alone_with_its_headings_lists_and_tables():
    assert text_of(reading.stored("news.html")) == reading.stored("news.txt")


OLD = [f"{text} {text.upper()}" for text in PARAGRAPHS]


LINKS = "<a href=1>News</a><br><a href=2>Sports</a>"
LAYOUTS = {
    "layout table": f"<table><tr><td>{LINKS}</td><td>{'<br><br>'.join(OLD)}</td></tr></table>",
    "divs": f"<div><div>{LINKS}</div><div>{'<div></div>'.join(OLD)}</div>",
    "unclosed": "<ul><li><a href=1>News</a><li><a href=2>Sports</a></ul>" + "".join(f"<p>{t}" for t in OLD),
    "form around the page": f"<form id=aspnet><div class=menu>{LINKS}</div>{p(OLD)}</form>",
    "misleading name": f"<div class='post-comments-box'>{p(OLD)}</div>",
    "misleading name around the text": f"<div class=related-wrap><div class=article-body>{p(OLD)}</div></div>"
    f"<aside>{p([TEASER] * 4)}</aside>",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_article_is_found_without_or_against_names(layout):
    assert text_of(f"<html><body>{LAYOUTS[layout]}</body></html>").split("\n\n") == OLD


def test_posts_of_a_forum_are_its_content_and_comments_on_an_article_are_not():
    posts = [f"Post {number}: {COMMENT}" for number in range(5)]
    threads = "".join(f"<div class='comment odd-{n}'><p>{post}</p></div>" for n, post in enumerate(posts))
    assert text_of(f"<body>{threads}</body>").split("\n\n") == posts
    assert text_of(f"<body><div>{p(OLD)}</div>{threads}</body>").split("\n\n") == OLD


def test_a_page_of_summaries_a_notice_and_scattered_text_keep_what_they_have():
    summaries = [f"Summary {n}: {TEASER}" for n in range(10)]
    items = "".join(
        f"<li><a href=/{n}>Headline {n}</a><p>{line}</p></li>" for n, line in enumerate(summaries)
    )
    listed = text_of(f"<body><nav><a href=/>Home</a></nav><main><ul class=teasers>{items}</ul></main></body>")
    assert [line for line in summaries if line not in listed] == []
    notice = text_of("<body><nav><a href=/>Home</a></nav><main><p>This page has moved.</p></main></body>")
    assert notice == "This page has moved."
    columns = "".join(
        f"<div><h3>Part {n}</h3><a href=1>More of part {n} and of others</a><p>{text}</p></div>"
        for n, text in enumerate(OLD)
    )
    scattered = text_of(f"<body><div>{columns}</div></body>")
    assert [text for text in OLD if text not in scattered] == []


def test_scripts_that_write_words_without_spaces_count_as_text():
    chinese = "昨天夜里河水上涨，到早晨城里低处的街道都被淹没了。消防队员把老人和病人送到了学校，镇长说谁也没有料到。"
    menu = "<div class=menu><a href=1>新闻</a></div>"
    related = f"<div class=related>{p([chinese[:20]] * 2)}</div>"
    html = f"<body>{menu}<div>{p([chinese] * 4)}</div>{related}</body>"
    assert text_of(html).split("\n\n") == [chinese] * 4


ROLES = {
    Role.BODY: "article-body articleBody",
    Role.OTHERS: "article-body__related-links RelatedStories visitors_comment_block",
    Role.DETAIL: "wp-caption-text entryMeta",
    Role.ASIDE: "newsletter-sign-up",
    Role.HIDDEN: "sr-only",
    Role.NONE: "has-sidebar tag-comments broad md:hidden css-1dv1kvn",
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role in ROLES for name in ROLES[role].split()])
def test_names_say_what_an_element_is(role, name):
    assert role_of_names(name) is role
    assert role_of_names(f"x1 {name}") is role


TAGS = (
    "<p>~</p>~<div class=comments>~<div id=article-body>~</div>~<td>~<table>~<br>~<ul><li>~<a href=1>~</a>~<pre>~<h2>"
    "~<span class=byline>~<aside hidden>~&nbsp;~\x01"
)
MARKUP = st.lists(st.sampled_from([*TAGS.split("~"), *PARAGRAPHS]), max_size=40)


@given(MARKUP)
def test_any_page_gives_words_of_its_own_in_their_order(parts):
    own = iter(" ".join(part for part in parts if part in PARAGRAPHS).split())
    assert all(word in own for word in text_of(" ".join(parts)).split())


@given(st.text(alphabet="<>/abdivpul= \"'&;!-\n", max_size=300))
def test_any_markup_is_read(html):
    read_page(html, main_content=False, max_depth=512)


LINE = "Text that is long enough to count as prose, and that comes to its end here. "
LARGE = {
    "siblings": f"<p>{LINE}</p>" * 25_000,
    "unclosed": f"<p>{LINE}<b><i>" * 25_000,
    "tails": f"<p>{LINE}</p>" + "<i>x</i>" * 200_000,
    "breaks": "x<br>" * 250_000,
    "cells": "<table><tr>" + "<td>x" * 150_000,
    "bodies in bodies": ("<div class=article-body>" * 400 + LINE * 3 + "</div>" * 400) * 200,
    "comments in comments": ("<div class=comment>" * 400 + LINE * 3 + "</div>" * 400) * 200,
    "comments": f"<div class=comment>{LINE}</div>" * 40_000,
    "headings": "<title>" + "x" * 300_000 + "</title>" + "<h2>y</h2>" * 25_000 + f"<p>{LINE * 9}",
    "new names": "".join(f"<div class='{'aB' * 150}{n}'>x</div>" for n in range(5_000)),
    "long names": f"<div class='{'ad ' * 1_000_000}'>{LINE * 9}</div>",
    "points": "<p>loading" + "." * 4_000_000,
    "names in names": f"<p>{LINE}</p>" + "<a" * 1_000_000,
    "brackets": f"<p>{LINE}</p>" + "<" * 2_000_000,
    "one word": "<p>" + "a" * 4_000_000,
    "controls": "\x00\x01" * 500_000,
    "open tags": "<b>x" * 400,
    "ampersands": "&" * 1_000_000,
    "styles": f"<p style='{'display ' * 400_000}'>{LINE * 9}</p>",
}


@pytest.mark.parametrize("name", LARGE)
def test_pages_that_are_large_in_any_way_are_read_in_seconds(name):
    text = text_of(LARGE[name])
    assert text or name == "controls"
    assert "\x00" not in text


def test_an_attribute_whose_name_begins_with_an_equals_sign_closes_no_element():
    aside = '<div =x="/" class=related><div ="=/">Read more</div></div>'
    assert text_of(f"<body>{aside * 500}{p(OLD)}{aside * 500}</body>").split("\n\n") == OLD


def test_compiled_loops_over_a_page_give_the_same_numbers_the_same_names():
    shared = {name for name in vars(page_blocks) if name.isupper()} & set(vars(page_scan))
    assert {"TEXT", "BLOCK", "HAS_PROSE", "SPACE"} <= shared
    assert all(getattr(page_blocks, name) == getattr(page_scan, name) for name in shared)


def test_control_characters_references_hyphens_and_declarations_of_xhtml_change_no_text():
    body = "".join(f"<p>{text}\x0c&amp; &#60;b&#62; &eacute;\x01 Donau&shy;dampf</p>" for text in PARAGRAPHS)
    xhtml = (
        '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" '
        '"http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd">'
    )
    page = f"{xhtml}<html xmlns='http://www.w3.org/1999/xhtml'><body><div name=comments>{body}</div></body></html>"
    assert text_of(page).split("\n\n") == [f"{text} & <b> é Donaudampf" for text in PARAGRAPHS]
