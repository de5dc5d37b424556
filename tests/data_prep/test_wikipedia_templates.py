"""Templates and magic words: what a reader sees in their places, in the language of the wiki."""

from collections import Counter
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.wiki_numbers import MONEY
from data_prep.text.wiki_page import ENGLISH_LINKS, Page
from data_prep.text.wiki_templates import _tables
from data_prep.text.wikitext import plain_text
from data_prep.text.wikitext_source import HEADING, PLACE, SHOWN

SAVED = datetime(2020, 3, 2, 14, 5)
DANTE = (
    "{{Bio\n|Nome = Dante\n|Cognome = Alighieri<ref>x</ref>\n|Sesso = M\n|LuogoNascita = Firenze\n"
    "|GiornoMeseNascita = \n|AnnoNascita = 1265\n|LuogoMorte = Ravenna\n|GiornoMeseMorte = 14 settembre\n"
    "|AnnoMorte = 1321\n|Attività = poeta\n|Attività2 = scrittore\n|AttivitàAltre = e [[politico]]\n"
    "|Nazionalità = italiano\n}}\nScrisse la ''Commedia''."
)


def render(wikitext: str, lang: str, dropped: Counter[str] | None = None) -> str:
    return plain_text(wikitext, ENGLISH_LINKS, page=Page("Roma", lang, SAVED), dropped=dropped)


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("{{height|m=1.85}} or {{height|ft=6|in=1}} tall", "1.85 m or 6 ft 1 in tall"),
        (
            "{{USD|100 million}}, {{US$|5|2010}}, {{GBP|12345}}, {{INRConvert|5|c}}",
            "US$100 million, US$5, £12,345, ₹5 crore",
        ),
        ("{{ordinal|1}} {{ordinal|22}} {{ordinal|113}}, {{nts|12345.6}}", "1st 22nd 113th, 12,345.6"),
        ("{{mono|f(x)}} {{key press|Ctrl|C}} {{gaps|1|234}}", "f(x) Ctrl+C 1 234"),
        (
            "{{formatnum:1234567.89}} {{formatnum:1,234|R}} {{formatnum:12345|NOSEP}}",
            "1,234,567.89 1234 12345",
        ),
        (
            "{{circa|1850|1860}}, {{circa|1850}}, {{reign|1850|1860}}",
            "c. 1850 – c. 1860, c. 1850, r. 1850–1860",
        ),
        ("{{convert|12000|to|13000|km2|sqmi}}, {{convert|5|ft|3|in|m}}", "12,000 to 13,000 km², 5 ft 3 in"),
        (
            "{{convert|2413|ft|0}}, {{convert|22|e6acre}}, {{convert|9|acre|adj=on}}",
            "2,413 ft, 22 million acres, 9-acre",
        ),
        ("{{convert|20|by|30|m}}, {{ft to m|6}}, {{RailGauge|1435mm}}", "20 by 30 m, 6 ft, 1,435 mm"),
        (
            "5.98{{e|24}} kg, {{val|1.2|0.1|e=-3|u=m}}",
            "5.98×10²⁴ kg, 1.2 ± 0.1×10⁻³ m",
        ),
        (
            "{{PAGENAME}} in {{CURRENTMONTHNAME}} {{CURRENTYEAR}} {{!}} {{SITENAME}}",
            "Roma in March 2020 | Wikipedia",
        ),
        (
            "{{sic|hostige}} {{angbr|a}} {{transl|ar|DIN|salām}} {{lang|de|Wort}}",
            "hostige [sic] ⟨a⟩ salām Wort",
        ),
        ("{{Harvtxt|Boolos|Jeffrey|1974|p=3}} say", "Boolos & Jeffrey (1974, p. 3) say"),
        (
            "{{sclass|Nimitz|aircraft carrier}}, {{USNS|Comfort}}, {{age|1969|7|20}} years",
            "Nimitz-class aircraft carrier, USNS Comfort, 50 years",
        ),
        (
            "{{OldStyleDate|2 February|1905|20 January}} ({{zh|t=中|p=Zhōng}})",
            "2 February [O.S. 20 January] 1905 (traditional Chinese: 中; pinyin: Zhōng)",
        ),
    ],
)
def test_english_templates_read_as_on_the_page(wikitext, text):
    assert render(wikitext, "en") == text


@pytest.mark.parametrize(
    ("lang", "wikitext", "text"),
    [
        (
            "fr",
            "{{s-|XIX|e}}, {{sp|V|e|au|VI|e|s}}, {{-s|III|e}}",
            "XIXe siècle, Ve au VIe siècles, IIIe siècle av. J.-C.",
        ),
        ("fr", "{{unité|12345|km|2}}, {{formatnum:1234567.8}}, {{euro|5}}", "12 345 km², 1 234 567,8, 5 €"),
        (
            "fr",
            "le {{date|1|janvier|1789|en politique}}, {{XVIIe}}, {{12e}}",
            "le 1er janvier 1789, XVIIe, 12e",
        ),
        ("fr", "XX{{e}}, {{n°|5}}, {{citation|Oui}}, {{heure|15|30}}", "XXe, no 5, « Oui », 15 h 30"),
        (
            "de",
            '{{Höhe|1234|DE-NN}}, {{formatnum:12345.6}}, {{"|Ja}}, {{§|433|bgb|juris}}',
            "1.234 m ü. NN, 12.345,6, „Ja“, § 433 BGB",
        ),
        (
            "it",
            DANTE,
            "Dante Alighieri (Firenze, 1265 – Ravenna, 14 settembre 1321) è stato un poeta, scrittore e politico "
            "italiano.\nScrisse la Commedia.",
        ),
        (
            "it",
            "{{Bio|Nome=Anna|Cognome=Rossi|Sesso=F|LuogoNascita=Roma|AnnoNascita=1980"
            "|Attività=attrice|Attività2=regista|Nazionalità=italiana}}",
            "Anna Rossi (Roma, 1980) è un'attrice e regista italiana.",
        ),
        ("it", "{{M|12345|ul=km}}, {{M|5||m}}, {{formatnum:1234}}, {{TA|a b}}", "12 345 km, 5 m, 1 234, a b"),
        (
            "es",
            "{{unidad|12345|km}}, {{formatnum:1234}}, {{siglo|V|a}}, {{fecha|3|5|1980}}",
            "12 345 km, 1234, siglo V a. C., 3 de mayo de 1980",
        ),
        (
            "fr",
            "{{XVIIIe et XIXe siècles}}, {{Ier siècle}}, le {{1er mai}}",
            "XVIIIe et XIXe siècles, Ier siècle, le 1er mai",
        ),
        ("de", "Er sagte:\n{{Zitat|Text=Ja|Autor=X}}", "Er sagte:\n\nJa"),
        ("it", "Detto{{Cita|Rossi 1999|p. 5}} da lui.", "Detto da lui."),
        (
            "pt",
            "{{fmtn|12345|km}}, {{séc|XIX}}, {{dtlink|3|5|1980}}",
            "12 345 km, século XIX, 3 de maio de 1980",
        ),
        ("ca", "{{segle|XIX}}, {{romanes|V}} {{aC}}", "segle XIX, V aC"),
        (
            "ru",
            "{{СС3|26.5.1799}}, {{СС3|3.12.1895}}, {{нп5|A|б|en|C}}",
            "26 мая (6 июня) 1799, 3 (15) декабря 1895, б",
        ),
        (
            "zh",
            "''愛因斯坦''{{bd|1879年|3月14日|1955年|4月18日}}",
            "愛因斯坦（1879年3月14日－1955年4月18日）",
        ),
        ("ko", "지미({{llang|en|Jimmy}})", "지미(Jimmy)"),
        ("bg", "{{formatnum:12345}}, {{CURRENTMONTHNAME}}", "12 345, март"),
    ],
)
def test_templates_of_other_wikis_read_as_on_the_page(lang, wikitext, text):
    assert render(wikitext, lang) == text


def test_templates_that_show_nothing_are_counted_where_they_leave_a_sentence():
    dropped: Counter[str] = Counter()
    wikitext = (
        "{{Infobox x\n|a={{unknown|1}}\n}}\nA {{Unknown|b}} c{{sfn|D}}, {{unknown|[[e]]}} f.\n\n{{reflist}}\n"
    )
    assert render(wikitext, "en", dropped) == "A c, f."
    assert dropped == {"unknown": 2, "sfn": 1}


NAMES = [
    *sorted({*MONEY, *(name for own in _tables().values() for name in own)}),
    "formatnum:",
    "formatnombre:",
]
VALUES = [
    "",
    "1",
    "12345.6",
    "-5",
    "nan",
    "1e400",
    "x",
    "''y''",
    "[[a|b]]",
    "{{nowrap|z}}",
    "3=q",
    "e=3",
    "x=",
    "km",
]
VALUES += [
    "to",
    "\n",
    "<br>",
    "31.2.1799",
    "9" * 20,
    "Nome=A",
    "Attività=b",
    "AnnoMorte=?",
    "<nowiki>|}}</nowiki>",
]


@given(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(VALUES), max_size=6),
    st.sampled_from([*_tables(), "en", "bg"]),
)
def test_any_parameters_of_any_template_give_text(name, values, lang):
    text = render(f"a {{{{{'|'.join([name, *values])}}}}} b", lang)
    assert text.startswith("a")
    assert text.endswith("b")
    assert not any(mark in text for mark in (HEADING, PLACE, *SHOWN))
