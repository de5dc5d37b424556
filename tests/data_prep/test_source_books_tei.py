"""TEI books: header, chapters, what shows and what does not, and XML that is broken or hostile."""

import pytest
from lxml import etree

from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.text.books import CHAPTER_BREAK
from tests.data_prep import reading

BOOK, TEXT = reading.stored("mueller.xml"), reading.stored("mueller.txt")


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


def test_a_malformed_place_is_named_by_its_byte(tmp_path):
    broken = BOOK.replace("</lg>", "</lx>").encode()
    assert abs(read(tmp_path, broken).rejected().byte_offset - broken.index(b"</lx>")) < 10


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
