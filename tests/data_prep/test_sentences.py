"""Where sentences begin: against a slow definition, in ten languages, and for texts of any shape."""

import re
import unicodedata
from itertools import accumulate, pairwise
from string import ascii_uppercase

import blingfire
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import sentences
from data_prep.sentences import (
    ENGLISH_TITLES,
    NOT_FOR_BLINGFIRE,
    NUMBERED,
    SPEAKER,
    TITLES,
    WHITE_SPACE,
    cut_sentences,
)

WORDS = "A|é|they|'s|12|3.|Mr. |U.S. |J. |I|Capt. |No. |asked |中文|。|「あ」|ア|👍🏽|𐐀"
ENDS = '. |! |? |.|…|“|”|?"|!» |- |— |  | |\n|\n\n|\t|\r\n|\x0b|\x1c|\x1f|\x85'
WIDE = [*"\xa0\u1680\u2003\u2028\u2029\u202f\u3000\u200b\ufeff\u180e\u0301"]
RULES = (
    "ad loc.~loc.~E. g.~i. e.~U.S.~A.B. Jr.~Nov.~p.~pp.~x-div.~3.14~a.b.c.~[1]~[ 12 ]~"
    "[citation needed]~[ need citation ]~:12~: 162 - 164~(iv)~iv.~a )~12.~The~However~Don't~Word~"
    'word~É~ж.~가~日本。~¡~¿~·~…~—~,~"~)~]~?!~！~？~ǃ~۔~؟~\u2060~\ufeff~\u3000~½~$5'
)
"""What BlingFire's rules tell apart, and long words."""
LONG = ["x" * 80, "word " * 12, "12 " * 9]
PIECES = st.sampled_from([*WORDS.split("|"), *ENDS.split("|"), *WIDE, *RULES.split("~"), *LONG])
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join)


def cut_in(texts, lang="en", method="blingfire"):
    return cut_sentences(pa.array(texts, pa.string()), pa.array([lang] * len(texts), pa.string()), method)


def sentences_of(text, lang="en", method="blingfire"):
    (cuts,) = cut_in([text], lang, method)
    encoded = text.encode()
    return [encoded[start:end].decode() for start, end in pairwise([0, *cuts.tolist(), len(encoded)])]


def slow_cuts(text, lang="en"):
    """The definition: BlingFire by its own Python functions, and one character after the other."""
    _, bounds = blingfire.text_to_sentences_and_offsets(text) if text.strip() else ("", [])
    begins = [start for start, _ in bounds[1:]]
    starts = {
        start
        for start, before in zip(begins, [0, *begins], strict=False)
        if not is_within_sentence(text, start, before, lang)
    }
    starts |= {place + 1 for place, character in enumerate(text) if character in "\n\r\u2028\u2029"}
    cuts = set()
    for start in starts:
        ink = start
        while ink < len(text) and text[ink].isspace():
            ink += 1
        if ink < len(text) and text[:ink].strip():
            cuts.add(ink - 1 if text[ink - 1].isspace() else ink)
    return [len(text[:cut].encode()) for cut in sorted(cuts)]


QUOTE = "[\"'”’»“«›]"


def is_within_sentence(text, start, before, lang):
    """What BlingFire takes for the start of a sentence, and the one before it."""
    origin = max(0, start - 80)
    head, tail = re.sub("[ \t]{1,3}$", "", text[origin:start]), text[start : start + 80]
    if not head:
        return False
    first = re.sub("^[-–—][ \t]?", "", tail)[:1]
    if re.search(f"{QUOTE}$", head) and first.islower() and first < "\u0800":
        return True
    if lang == "en" and re.search(f"[?!]{QUOTE}$", head) and SPEAKER.match(tail[:64].encode()):
        return True
    words = NUMBERED if re.match("[0-9]", tail) else TITLES
    words += " " + ENGLISH_TITLES if lang == "en" and not re.match("[0-9]", tail) else ""
    is_capital = tail[0].isupper() and tail[0] < "\u0800"
    if not is_capital and not re.match("[0-9]", tail):
        return False
    if re.search(rf"(?:^|[^A-Za-z0-9])(?:{words.replace(' ', '|')})\.$", head):
        return True
    initial = re.search(r"(?:^|[^A-Za-z0-9])([A-Z])\.$", head)
    alone = initial and (
        re.fullmatch(rf"(?:{QUOTE})?[A-Z]\.", head[max(0, before - origin) :]) or head[-3:-2] == "\n"
    )
    return bool(is_capital and initial and (alone or (tail[1:2] == "." and initial[1] != "I")))


def has_invisible_controls(text):
    """BlingFire's Python function reports other offsets than its library for some control characters."""
    return any(unicodedata.category(c) in ("Cc", "Cf", "Cn") and not c.isspace() for c in text)


@given(
    texts=st.lists(TEXTS.filter(lambda text: not has_invisible_controls(text)), max_size=4),
    lang=st.sampled_from(["en", "de"]),
)
def test_cuts_are_those_of_the_slow_definition(texts, lang):
    assert [cuts.tolist() for cuts in cut_in(texts, lang)] == [slow_cuts(text, lang) for text in texts]


@pytest.mark.parametrize("lang", ["en", "fr"])
def test_cuts_after_every_abbreviation_and_quotation_mark_are_those_of_the_slow_definition(lang):
    words = [*f"{TITLES} {ENGLISH_TITLES} {NUMBERED}".split(), *ascii_uppercase]
    texts = [f"{word}. Smith met ({word}. Smith. It is on {word}. 12 there." for word in words]
    # BlingFire knows most of them, and cuts after them where such a word follows.
    texts += [f"{word}. A man met {word}. The end." for word in words]
    texts += [f"{word}. 1. A\n. {word}. 1. A" for word in words]
    texts += [f"“Why?{mark} said he. “No!{mark} Smith cried. “So.{mark} he said." for mark in "\"'”’»“«›"]
    assert [cuts.tolist() for cuts in cut_in(texts, lang)] == [slow_cuts(text, lang) for text in texts]


@given(texts=st.lists(TEXTS, max_size=4), lang=st.sampled_from(["en", "ja", "hi", ""]))
def test_no_sentence_is_blank_and_all_are_whole_characters_of_their_text(texts, lang):
    assert len(cut_in(texts, lang)) == len(texts)
    for text in texts:
        pieces = sentences_of(text, lang)
        assert "".join(pieces) == text
        assert all(piece.strip() for piece in pieces) or (pieces == [text] and not text.strip())


def test_a_document_is_cut_the_same_alone_in_a_batch_and_in_a_slice_of_one():
    texts = ["One. Two.", "", " \n", "Three.\n\nFour. Five", "好。” Six. Seven.", "\xa0 Eight. Nine"]
    langs = ["en", "zh", "en", "en", "zh", "fr"]
    batch = cut_sentences(
        pa.array(["x. Y.", *texts]).slice(1), pa.array(["en", *langs]).slice(1), "blingfire"
    )
    for row, (text, lang) in enumerate(zip(texts, langs, strict=True)):
        assert batch[row].tolist() == cut_in([text], lang)[0].tolist()


def test_white_space_is_what_python_calls_space():
    assert list(WHITE_SPACE) == [code for code in range(0x110000) if chr(code).isspace()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two spaces.  Next one.", ["Two spaces. ", " Next one."]),
        ("No-break.\xa0Next one.", ["No-break.", "\xa0Next one."]),
        ("History\r\nIn 1066 he came.", ["History\r", "\nIn 1066 he came."]),
        ("One\n\n\nTwo", ["One\n\n", "\nTwo"]),
        ("• First point\n• Second point\n2) Fourth", ["• First point", "\n• Second point", "\n2) Fourth"]),
        ("\n\n Leading space", ["\n\n Leading space"]),
        ("Trailing space. \n", ["Trailing space. \n"]),
        ("", [""]),
    ],
)
def test_a_cut_lies_right_before_the_last_white_space_ahead(text, expected):
    assert sentences_of(text) == expected


SENTENCES = """
en: Mr. Smith saw Dr. Jones, e.g. on Monday.| He met J. R. R. Tolkien in the U.S. and left.
en: He said: "I will go."| Then he left...| Did he?| Yes!| It cost 3.50 dollars.
en: See http://a.example/b.html?c=1 for more.| Or www.example.org.
de: Er kam um z. B. 5 Uhr.| „Geh nach Hause.“| Dann ging er.
fr: M. Dupont est arrivé.| Est-ce vrai ?| «Oui.»| Il a dit cela.
ru: Он родился в 1900 г. в Москве.| Его звали А. С. Пушкин.| «Привет!»| Он ушёл.
ko: 나는 학교에 갔다.| 그는 집에 있다!| 정말?| 원주율은 3.14이다.
ar: ذهب الولد إلى المدرسة.| هل عاد؟| نعم!| ثم نام.
hi: यह एक वाक्य है।| क्या यह सही है?| हाँ।
el: Είναι σωστό;| Ναι, είναι.| Τέλος.
am: ይህ ዓረፍተ ነገር ነው።| ይህ ሁለተኛ ነው።
hy: Սա առաջինն է։| Սա երկրորդն է։
my: ဒါက ပထမ စာကြောင်းပါ။| ဒါက ဒုတိယ။
th: จริงหรือ?| ใช่!| เขาไปโรงเรียน วันนี้อากาศดี
zh: 你好吗？|他说：“走吧。”|她走了。|今天A公司上市。|B公司没有！
ja: 今日は天気がいい。|「行きましょう。」|と言った。|本当？|はい！
en: "And Miss Eleanor?" he asked.| “Come!” — she ran.| He went on: ‘Is it you?’ said Tom.
en: “Why?” I cried.| “Where?” Mr. Pumblechook asked.| “Who?”| She left.
en: It was a combat of words.| Mrs. Bretton pressed him.| He fed the farmers.| Mr. Hobnell left.
en: He left the faubourg.| Mlle. Paul claimed it.| Ask Messrs. A and B of St. John.
en: He met J. R. R. Tolkien.| J. R. R. Tolkien left.| He took vitamin C.| They tried.
en: The bearer left.| “G. W. Clay is here.”| Then E. M. Forster wrote.
en: On Feb. 5 he came.| He had vol. 3 of p. 7.| He went away.
de: Er traf Dr. Müller.| Dr. Müller kam.| „Nein?“ fragte sie.| »Ja!« rief er.
fr: Il répondit par un signe.| M. Élie vint.| «Non?» demanda-t-elle.| Oui.
ro: Era noapte.| „Unde?” întrebă el.
ru: «Привет!» сказал он.| Она ушла.
"""
"""Sentences between bars: quotations stay with their tags, titles and initials with their names."""


@pytest.mark.parametrize("line", SENTENCES.strip().split("\n"))
def test_sentences_of_many_languages_end_where_a_reader_ends_them(line):
    lang, _, text = line.partition(": ")
    assert sentences_of(text.replace("|", ""), lang) == text.split("|")


@pytest.mark.corpora
def test_gold_sentences_are_found_at_least_as_well_as_by_blingfire_alone(corpora, monkeypatch):
    lines = (corpora / "ud-english-ewt" / "en_ewt-ud-dev.conllu").read_text(encoding="utf-8").split("\n")
    paragraphs = []
    for line in lines:
        if line.startswith(("# newdoc", "# newpar")):
            paragraphs.append([])
        elif line.startswith("# text = "):
            paragraphs[-1].append(line.removeprefix("# text = "))

    def score():
        right = wrong = missed = 0
        for paragraph, cuts in zip(paragraphs, cut_in([" ".join(each) for each in paragraphs]), strict=True):
            lengths = [len(sentence.encode()) + 1 for sentence in paragraph]
            gold, found = {end - 1 for end in accumulate(lengths[:-1])}, {*cuts.tolist()}
            right += len(gold & found)
            wrong += len(found - gold)
            missed += len(gold - found)
        return 2 * right / (2 * right + wrong + missed)

    here = score()
    monkeypatch.setattr(sentences, "continues_sentence", lambda *_: False)
    assert here > score()


@pytest.mark.parametrize("lang", sorted(NOT_FOR_BLINGFIRE))
def test_sentencex_knows_an_end_that_blingfire_gets_wrong_in_each_language_left_to_it(lang):
    quoted, danda, own = "他说：“走吧。”她走了。", "एक वाक्य है। दूसरा वाक्य।", {}
    own |= dict.fromkeys(["zh", "yue", "wuu", "lzh", "ja"], quoted)
    own |= dict.fromkeys(["my", "shn", "mnw"], "ဒါက ပထမ။ ဒါက ဒုတိယ။")
    own |= dict.fromkeys(["hy", "hyw"], "Սա է։ Սա։") | dict.fromkeys(["am", "ti", "gez"], "ይህ ነው። ይህ ሁለተኛ።")
    own |= {"sat": "ᱱᱚᱣᱟ ᱢᱤᱫ᱾ ᱱᱚᱣᱟ ᱵᱟᱨ᱾", "el": "Είναι; Ναι."}
    text = own.get(lang, danda)
    by_sentencex = sentences_of(text, lang)
    assert len(by_sentencex) == 2
    assert by_sentencex[0][-1] in "”।။։።᱾;"
    assert sentences_of(text, "en") != by_sentencex


def test_methods_can_be_chosen_by_name():
    text = "Est-ce que M. Dupont est là ? Oui."
    assert len(sentences_of(text, "fr", "none")) == 1
    assert sentences_of(text, "fr", "blingfire") == ["Est-ce que M. Dupont est là ?", " Oui."]
    assert sentences_of("यह है। वह है।", "hi", "sentencex") == sentences_of("यह है। वह है।", "hi", "blingfire")


def test_long_texts_are_cut_in_pieces_as_they_are_whole(monkeypatch):
    text = "\n".join(f"Line {number} is here. It has two sentences: é." for number in range(300))
    for lang, limit in (("en", "BLINGFIRE_PIECE_BYTES"), ("hi", "SENTENCEX_PIECE_BYTES")):
        monkeypatch.setattr(sentences, limit, 1 << 20)
        whole = cut_in([text], lang)
        monkeypatch.setattr(sentences, limit, 500)
        assert cut_in([text], lang).equals(whole)
        assert len(whole.values) == 599


def test_a_long_line_loses_at_most_the_cuts_where_pieces_meet(monkeypatch):
    text = "A sentence of some words, with é. " * 300
    whole = set(cut_in([text])[0].tolist())
    monkeypatch.setattr(sentences, "BLINGFIRE_PIECE_BYTES", 500)
    in_pieces = set(cut_in([text])[0].tolist())
    assert in_pieces <= whole
    assert len(whole - in_pieces) <= len(text.encode()) / 500


def test_a_long_line_without_any_space_is_not_cut_inside_characters(monkeypatch):
    monkeypatch.setattr(sentences, "SENTENCEX_PIECE_BYTES", 50)
    text = "中文字" * 100 + "。" + "日本語" * 100
    assert [len(piece) for piece in sentences_of(text, "zh")] == [301, 300]


def test_megabytes_of_white_space_take_no_time():
    text = " \n\xa0" * 300_000 + "It rained. He left.\n" + "\n \u3000" * 300_000 + "End."
    assert [piece.strip() for piece in sentences_of(text)] == ["It rained.", "He left.", "End."]
