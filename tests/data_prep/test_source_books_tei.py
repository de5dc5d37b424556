"""TEI books: header, chapters, what shows and what does not, and XML that is broken or hostile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.text.books import CHAPTER_BREAK
from tests.data_prep import reading

BOOK = """<?xml version="1.0" encoding="UTF-8"?>
<TEI xmlns="http://www.tei-c.org/ns/1.0" xml:lang="de-AT">
 <teiHeader><fileDesc><titleStmt>
   <title>Der Müller : ELTeC ausgabe</title><title type="short">Müller</title>
   <author ref="x">Stifter, Adalbert (1805-1868)</author>
 </titleStmt></fileDesc></teiHeader>
 <text>
  <front><div type="titlepage"><p>Pesth, 1844</p></div><div type="liminal"><p>An den Leser.</p></div></front>
  <body>
   <div type="group"><head>Erster Theil</head>
    <div type="chapter"><head>Erstes <hi rend="b">Kapitel</hi></head>
     <p>Der Mül<pb n="3"/>ler<ref target="#n1"/>
        ging<lb/>fort.<note>Nicht weit.</note> <choice><sic>Ehr</sic><corr>Er</corr></choice> sang:</p>
     <lg><l>Es klappert</l><l>die Mühle</l></lg>
     <div type="section"><p>Später.</p></div>
    </div>
    <div type="chapter"><head>2.</head><p>&amp;c. <foreign xml:lang="fr">bien&#160;sûr</foreign></p></div>
   </div>
  </body>
  <back><div type="notes"><note xml:id="n1">Eine Note.</note></div></back>
 </text>
</TEI>
"""
TEXT = (
    "An den Leser.\n\n\nErster Theil\n\nErstes Kapitel\n\nDer Müller ging fort. Er sang:\n\n"
    "Es klappert\ndie Mühle\n\nSpäter.\n\n\n2.\n\n&c. bien sûr"
)


def read(tmp_path, data: str | bytes, **settings) -> reading.Results:
    data = data.encode() if isinstance(data, str) else data
    return reading.read_file(BooksTeiConfig, tmp_path / "book.xml", data, **settings)


def test_a_book_is_its_chapters_without_title_page_notes_and_page_breaks(tmp_path):
    document = read(tmp_path, BOOK).only()
    assert document.text == TEXT
    assert (document.title, document.lang) == ("Der Müller", "de")
    place = {"byte_start": 0, "byte_end": len(BOOK.encode())}
    assert document.meta == place | {"chapters": 3, "author": "Stifter, Adalbert"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "iso-8859-1"])
def test_every_encoding_gives_the_same_text(tmp_path, encoding):
    declared = BOOK.replace("UTF-8", encoding.removesuffix("-sig").removesuffix("-le"))
    assert read(tmp_path, declared.encode(encoding)).only().text == TEXT


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("<p>un<lb/>even and un<lb break='no'/>broken</p>", "un even and unbroken"),
        ("<p>a <!-- hidden --> b <?page 3?>c</p>", "a b c"),
        ("<table><row><cell>1</cell><cell>2</cell></row><row><cell>3</cell></row></table>", "1 2\n\n3"),
        ("<sp><speaker>HAMLET.</speaker><l>To be</l><l>or not</l></sp>", "HAMLET.\n\nTo be\nor not"),
        ("<p>see <ref target='http://x.org'>there</ref><ref>12</ref>.</p>", "see there."),
        ("</div><div1><p>a</p><div2><p>b</p></div2></div1><div1><p>c</p></div1><div>", "a\n\nb\n\n\nc"),
    ],
)
def test_elements_show_as_in_print(tmp_path, body, shown):
    assert read(tmp_path, f"<TEI.2><text><body><div>{body}</div></body></text></TEI.2>").only().text == shown


@pytest.mark.parametrize("root", ["teiCorpus", "TEI"])
def test_every_book_of_a_corpus_is_a_document(tmp_path, root):
    book = "<TEI><teiHeader><fileDesc><titleStmt><title>{0}</title></titleStmt></fileDesc></teiHeader>"
    book += "<text><body><p>Text of {0}.</p></body></text></TEI>"
    data = f'<{root} xmlns="http://www.tei-c.org/ns/1.0"><teiHeader/>{book.format("A")}{book.format("B")}</{root}>'
    found = read(tmp_path, data)
    assert (found.titles, found.texts) == (["A", "B"], ["Text of A.", "Text of B."])
    assert found.ids == ["s:book.xml#1", "s:book.xml#2"]


def test_entities_are_expanded_shown_as_written_or_rejected_and_no_file_is_ever_read(tmp_path):
    (tmp_path / "secret").write_text("secret")
    declarations = (
        '<!ENTITY mdash "&#8212;">'
        '<!ENTITY who "A&#38;#38;B"><!ENTITY name "<hi>&who;&eacute;</hi>&odd;"><!ENTITY no "">'
        f'<!ENTITY file SYSTEM "file://{tmp_path}/secret">'
    )
    doctype = f'<!DOCTYPE TEI PUBLIC "-//TEI" "x[y].dtd" [{declarations}]>'
    text = (
        "<TEI><text><p>a&mdash;b &name; &lt;&no;c&nbsp;&eacute; &unknown; <![CDATA[&who;]]></p></text></TEI>"
    )
    for encoding in ("utf-8", "utf-16"):
        document = read(tmp_path, (doctype + text).encode(encoding)).only()
        assert document.text == "a—b A&Bé&odd; <c é &unknown; &who;"
    outside = read(tmp_path, doctype + text.replace("&unknown;", "&file;")).rejected()
    assert "'file'" in outside.reason


@pytest.mark.parametrize(
    ("entities", "reference", "reason"),
    [
        ("".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12)), "&e11;", "amplification"),
        (f'<!ENTITY e1 "{"&e0;" * 10_000}">', "&e1;" * 500, "amplification"),
        ('<!ENTITY e1 "&e2;"><!ENTITY e2 "&e1;">', "&e1;", "loop"),
    ],
)
def test_an_entity_bomb_is_rejected(tmp_path, entities, reference, reason):
    doctype = f'<!DOCTYPE TEI [<!ENTITY e0 "lollollollol">{entities}]>'
    for body in (f'<text n="{reference}"/>', f"<text><p>{reference}</p></text>"):
        assert reason in read(tmp_path, f"{doctype}<TEI>{body}</TEI>").rejected().reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<TEI><text>" + b"<div>" * 100_000, "depth"),
        (BOOK.encode(), "limit of 1000 bytes"),
        (b"<html><body>x</body></html>", "not a TEI book"),
        (b"<TEI><teiHeader/></TEI>", "not a TEI book"),
        *(
            (data, "malformed XML")
            for data in (b"", b"\0\0\0\0", b"plain text", b"\xff\xfe", b"<TEI>\xff</TEI>")
        ),
    ],
)
def test_what_is_no_book_is_rejected_with_the_reason(tmp_path, data, reason):
    limit = 1000 if b"Stifter" in data else 1 << 20
    assert reason in read(tmp_path, data, max_book_bytes=limit).rejected().reason


def test_a_malformed_place_is_named_by_its_byte(tmp_path):
    broken = BOOK.replace("</lg>", "</lx>").encode()
    assert abs(read(tmp_path, broken).rejected().byte_offset - broken.index(b"</lx>")) < 10


@given(cut=st.integers(0, len(BOOK.encode()) - 10))
def test_a_book_cut_anywhere_is_rejected_near_the_cut(tmp_path_factory, cut):
    assert 0 <= read(tmp_path_factory.getbasetemp(), BOOK.encode()[:cut]).rejected().byte_offset <= cut


@pytest.mark.corpora
@pytest.mark.parametrize("lang", ["de", "fr", "ro"])
def test_real_novels_have_the_words_of_their_paragraphs_and_a_chapter_for_each_division(corpora, lang):
    files = BooksTeiConfig(name="eltec", paths=(f"{corpora}/books/{lang}/*.xml",)).list_files()
    assert len(files) == 12
    for file in files[:4]:
        document = reading.read(BooksTeiConfig(name="eltec", paths=(file.path,))).only()
        assert document.lang == lang
        assert "ELTeC" not in document.title
        assert len(document.meta["author"]) > 4
        body = etree.parse(file.path).find("{*}text/{*}body")
        words = "".join("".join(each.itertext()) for each in body.iter("{*}p", "{*}l", "{*}head")).split()
        assert 0.95 * len(words) < len(document.text.split()) < 1.1 * len(words)
        divisions = [each for each in body.iter("{*}div") if each.get("type") in ("chapter", "letter")]
        typed = [each for each in divisions if any(line.text for line in each.iter("{*}p", "{*}l"))]
        assert len(document.text.split(CHAPTER_BREAK)) == document.meta["chapters"]
        assert len(typed) <= document.meta["chapters"] <= len(typed) + 6
