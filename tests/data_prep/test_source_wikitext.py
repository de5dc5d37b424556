"""Wikitext: the words that a reader sees stay, markup and furniture go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.disambiguation import is_disambiguation
from data_prep.text.wiki_page import ENGLISH_LINKS
from data_prep.text.wikitext import plain_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Bold''' and ''italic''.", "Bold and italic."),
        ("A<ref>B</ref> C<ref name=x/> D<ref name='y'>{{cite|a=[[b]]}}</ref>.", "A C D."),
        ("A<!-- hidden <ref> --> B<math>x^2</math>.", "A B."),
        ("Before\n{| class='wikitable'\n! a\n|-\n| b || c\n|}\nAfter", "Before\n\nAfter"),
        ("<gallery>\nFile:A.jpg|thumb\n</gallery>Text", "Text"),
        ("[[File:A.jpg|thumb|left|A [[link]] here]]Text", "Text"),
        ("[[:Category:Birds]] and [[:File:A.jpg|a file]]", "Category:Birds and a file"),
        ("{{convert|5|km|mi}} from {{lang|fr|Paris}}{{citation needed}}", "5 km from Paris"),
        ("[http://a.org A site], [http://b.org]", "A site,"),
        ("* one\n** two\n# three", "one\ntwo\nthree"),
        ("__NOTOC__Text&nbsp;here&mdash;yes", "Text here—yes"),
        ("<nowiki>[[not a link]]</nowiki>", "[[not a link]]"),
        ("Text[[de:Wort]][[simple:Word]]", "Text"),
        ("Rome (; {{IPA|x}}, born 1900) (  ) is", "Rome (born 1900) is"),
        ("Intro\n== Life ==\nText\n== References ==\n{{reflist}}", "Intro\n\nLife\nText"),
        ("Intro\n== A ==\n=== B ===\nText\n=== C ===\n== D ==", "Intro\n\nA\nB\nText"),
        ("[[File:A.jpg|thumb|never closed\nNext {{ line", "Next line"),
        ("{| never closed\n| a\n| b\n\nNext", "Next"),
        ("[[a]]s [[b|c]] [[d (e)|d]]", "as c d"),
    ],
)
def test_markup_is_gone_and_the_words_stay(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("<pre>if x: y = {{z}}</pre>", "if x: y = {{z}}"),
        (
            "Say <NoWiki >{{a|'''b'''}} [[c]] ~~~~ <b></NOWIKI > twice",
            "Say {{a|'''b'''}} [[c]] ~~~~ <b> twice",
        ),
        ("A<nowiki/>B<nowiki />C <nowiki>&lt;&amp;amp;</nowiki>", "ABC <&amp;"),
        ("unclosed <nowiki>[[a]] <pre class=x>''b''", "unclosed a b"),
        ("<!-- <nowiki> -->[[a]]<nowiki><!-- b --></nowiki>", "a<!-- b -->"),
        (
            "Do<PRE style='x'>\n  * ''a'' {|\n| <nowiki>[[b]]</nowiki>\n__TOC__  &lt;c&gt;\n</pre>then",
            "Do\n  * ''a'' {|\n| [[b]]\n__TOC__  <c>\nthen",
        ),
        (
            'See <syntaxhighlight lang="c" inline>a[[0]] = &b;</syntaxhighlight>:\n'
            "<source lang=\"tex\">\n\\frac{{a}}{{b}}\n\n\t% '''</source>\nEnd",
            "See a[[0]] = &b;:\n\n\\frac{{a}}{{b}}\n\n\t% '''\n\nEnd",
        ),
        ("{{nowrap|<code><nowiki>|=[[]]{{}}</nowiki></code>}} {{x|<nowiki>}}</nowiki>}}.", "|=[[]]{{}}."),
        ("[<nowiki/>[a]] {{<nowiki/>b}} {<nowiki />{c}} [[<nowiki/>d]]", "[[a]] {{b}} {{c}} [[d]]"),
        ("<nowiki>{{</nowiki>a|b}} and <nowiki>[[</nowiki>c<nowiki>]]</nowiki> ]]", "{{a|b}} and [[c]]"),
        ("<ref><nowiki></ref></nowiki>A == <nowiki>==</nowiki> B", "A == == B"),
        ("== <nowiki>[x]</nowiki> ==\nA <nowiki>\\3</nowiki>0", "[x]\nA \\30"),
    ],
)
def test_what_nowiki_and_code_hold_is_shown_as_it_is(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="&"), min_size=1)
)
def test_nowiki_protects_any_characters(inner):
    inner = inner.replace("</", "")
    assert plain_text(f"a<nowiki>{inner}</nowiki>b", ENGLISH_LINKS) == f"a{inner}b"
    assert plain_text(f"a<pre>{inner}</pre>b", ENGLISH_LINKS) == (f"a\n{inner}\nb" if inner else "ab")


def test_thousands_of_unclosed_tags_take_linear_time():
    assert plain_text("<ref>x" * 20_000 + "<!--" * 20_000, ENGLISH_LINKS) == "x" * 20_000


@given(
    st.lists(st.sampled_from(["[[", "]]", "{{", "}}", "|", "a", "\n", "{|", "|}", "<ref>", "File:", "=="]))
)
def test_any_mess_of_markup_gives_text_without_brackets(tokens):
    text = plain_text("".join(tokens), ENGLISH_LINKS)
    assert not any(mark in text for mark in ("[[", "]]", "{{", "}}", "<ref"))


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("{{as of|2009|06|lc=y}} it held, {{As of|2015}}.", "as of June 2009 it held, As of 2015."),
        ("A cup of {{frac|1|2}}, {{frac|3|1|16}}, {{sfrac|7}} litre", "A cup of ½, 3 1⁄16, 1⁄7 litre"),
        ("{{convert|3|to|5|km|mi}}, {{val|1.2|0.1|u=m}}", "3 to 5 km, 1.2 ± 0.1 m"),
        ("{{nihongo|Aikido|合気道|aikidō}} is", "Aikido (合気道, aikidō) is"),
        ("{{chem|H|2|O}} and {{lang-la|aqua}}, {{langx|de|Wasser}}", "H2O and aqua, Wasser"),
        ("He said:\n{{quote|text=To [[be]]|author=H}}\nThen", "He said:\n\nTo be\n\nThen"),
        ("{{USS|Hornet|CV-8}} in {{Circa|1940}}{{sfn|Me|1999}}", "USS Hornet in c. 1940"),
        ("Au {{s|XIX|e}}, le {{date|14|juillet|1789}}", "Au XIXe siècle, le 14 juillet 1789"),
        ("東京（{{lang|en|Tokyo}}）は{{仮リンク|町|en|Town}}", "東京（Tokyo）は町"),
        ("-{zh-hans:软件; zh-hant:軟體}--{T|zh:标题}-是-{字}-", "软件是字"),
        ("{{formatnum:12345}} people {{unknown|of {{nested|kind}}}}", "12,345 people"),
        ("{{nowrap|a {{citation needed}}{{small|b}} [[c|d]]}}", "a b d"),
    ],
)
def test_templates_that_stand_for_words_are_shown_in_any_language(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("by <math>x</math>, <math>y</math>, and <math>z</math> .", "by, and."),
        ("{| class=a\n|\n{| \n| inner\n|}\n|}\nAfter {{{1|default}}}", "After default"),
        ("one\n,\n* {{flagicon|X}}\ntwo", "one\n\ntwo"),
        ("[[File:A.jpg|thumb|100px|With [[File:B.png]] and [[a|b]]]]Text", "Text"),
        ("[[Изображение:A.jpg|мини|текст]]Text", "Text"),
    ],
)
def test_what_vanishes_leaves_no_hole(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@pytest.mark.parametrize(
    ("left", "right"), [("{{a|", "}}"), ("[[a|", "]]"), ("{|\n", "\n|}"), ("{{nowrap|", "}}")]
)
def test_deep_nesting_takes_linear_time(left, right):
    assert "{" not in plain_text(left * 3000 + "x" + right * 3000, ENGLISH_LINKS)


@pytest.mark.parametrize(
    "wikitext",
    [
        "{{Disambiguation}}",
        "{{disambig|geo}}",
        "{{Hndis|Smith}}",
        "{{School_disambiguation}}",
        "{{TLAdisambig}}",
        "{{Begriffsklärung}}",
        "{{homonymie}}",
        "{{Desambiguación}}",
        "{{неоднозначность|тип=город}}",
        "__DISAMBIG__",
        "{{Aimai}}",
        "{{동음이의}}",
        "{{消歧義}}",
        "{{dp}}",
        "{{Template:Disambig-cleanup}}",
    ],
)
def test_disambiguation_pages_are_told_in_many_languages(wikitext):
    assert is_disambiguation(f"A may be:\n* [[B]]\n{wikitext}\n")


@pytest.mark.parametrize(
    "wikitext",
    [
        "{{disambiguation_needed|date=2010}}",
        "{{Voir_homonymes|A}}",
        "{{Nota_disambigua|b}}",
        "{{other_uses}}",
        "{{DisambigR|x}}",
        "{{About|a|b|A_(disambiguation)}}",
        "{{Begriffsklärungshinweis}}",
        "[[Disambiguation]]",
        "{{lang|en|disambiguation}}",
        "{{Redirect|A|b|A_(disambiguation)}}",
        "{{ver_desambiguação}}",
        "{{surname}}",
        "{{R_from_disambiguation}}",
    ],
)
def test_articles_that_point_to_a_disambiguation_are_none(wikitext):
    assert not is_disambiguation(f"{wikitext}\n'''A''' is a thing.")


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("vit au {{XIXe siècle}} et au {{Ier siècle}}", "vit au XIXe siècle et au Ier siècle"),
        ("{{M.|Dupont}}, {{Lien|trad=Foo|fr=Le foo}}, {{refnec|peut-être}}", "M. Dupont, Le foo, peut-être"),
        ("der Fluss ({{enS|river}}, {{laS|flumen}})", "der Fluss (river, flumen)"),
        ("en el {{siglo|V|a}} y el {{siglo|XX||s}}", "en el siglo V a. C. y el siglo XX"),
        ("{{link-en|福|Foo}}、{{tsl|en|Bar|巴}}", "福、巴"),
        ("北京（{{zy|x}}，，{{x}}）是，{{x}}。", "北京是。"),
        ("東京（とうきょう、{{x}}）は", "東京（とうきょう）は"),
        ("[[分类:北京]][[分類:X]]甲", "甲"),
        ("call foo() and a[] of &lt;b&gt; co&shy;op ({{x}})", "call foo() and a[] of <b> coop"),
    ],
)
def test_words_of_other_languages_and_of_code_stay(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (";Term:What it means\n; Other : more\n:: even more", "Term\nWhat it means\nOther\nmore\neven more"),
        (";[[A:B]]:c [[d|e:f]]\n;[http://a.org G]:h\n;<i>i:j</i>", "A:B\nc e:f\nG\nh\ni:j"),
        (";-{zh-cn:甲;zh-tw:乙}-:丙", "甲\n丙"),
        ("<p>one</p><p>two<p>three", "one\n\ntwo\n\nthree"),
        ("<ul><li>a</li><li>b<li>c</ul>d", "a\nb\nc\nd"),
        ("a<div>b</div>c<blockquote>d</blockquote>e<dl><dt>f<dd>g</dl>", "a\nb\nc\nd\ne\nf\ng"),
        ("* <div>a</div>\n* b", "a\nb"),
        ("a<br/ >b</br>c", "a\nb\nc"),
        ("<h2>Head</h2>text<h3>Empty</h3>", "Head\ntext"),
        ("<noinclude></noinclude>== Head ==\ntext<includeonly>no</includeonly>", "Head\ntext"),
        ("a<!-- never closed [[b]]", "a"),
    ],
)
def test_blocks_end_lines_and_terms_end_before_their_definitions(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("Jack&apos;s &lsqb;&lsqb;x&rsqb;&rsqb;, 1&colon;2, &amp;apos;", "Jack's [[x]], 1:2, &apos;"),
        ("&#42; no item\n&vert; no row", "* no item\n| no row"),
        ("http://a.org/?b&equals;c&amp;d [http://a.org/?b&#61;c e]", "http://a.org/?b=c&d e"),
        ("<nowiki>?a=1&copy=2 &copy; &apos;</nowiki>", "?a=1&copy=2 © '"),
        ("[http://a.org\u3000甲] [//b.org\u00a0c] [http://[::1]/ d] [[http://a.org e]]", "甲 c d [e]"),
        ("[[Berlin ]]<nowiki/>is, [[7%25 Solution]]", "Berlin is, 7% Solution"),
        ("[[Media:A.ogg|heard]] [[Media:B.ogg]]", "heard Media:B.ogg"),
        ("[[a|* b]]\n[[a||c]]", "* b\n|c"),
        ("a [[ de :Wort]] __init__ __notoc__", "a __init__"),
        ("before[[after", "before after"),
    ],
)
def test_entities_addresses_and_links_show_what_a_browser_does(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("-{zh-hans:A -{zh-cn:B;zh-sg:C;}-;zh-hant:D -{zh-tw:E}-}-!", "A B!"),
        ("-{R|a:b}-, -{zh;zh-tw|c; d}-, -{e; f}-, -{|zh:g}-", "a:b, c; d, e; f, g"),
        ("x-{H|zh:a;zh-tw:b}--{T|t}--{-|zh:c}--{D|zh:d}--{N|zh}-y-{A|zh-cn:m;zh-tw:n}-", "xym"),
        ("-{o=>zh:A;o=>zh-tw:B}- -{zh-Hant-TW:C;zh:D}-", "A C"),
        ("-{zh:[[a|b]];zh-tw:[[c]]}- {{nowrap|-{zh:d;zh-tw:e}-}} f-{{x}}-g", "b d f--g"),
    ],
)
def test_language_conversion_shows_its_first_variant(wikitext, text):
    assert plain_text(wikitext, ENGLISH_LINKS) == text
