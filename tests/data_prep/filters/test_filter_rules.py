"""Rules for pages, lines and characters at their limits: C4, FineWeb, Gopher, length, boilerplate, Unicode."""

import re
import unicodedata
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from ftfy import fix_encoding
from ftfy.badness import is_bad
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.artefacts.errors import MissingInputError
from data_prep.filters.gopher import GopherRepetitionConfig, letter_runs, number_words
from data_prep.text.word_kernel import ngram_characters
from data_prep.text.words import code_points
from tests.data_prep.filters.bench import Bench

GOOD = "One sentence stands here alone.\nDoes another one stand here?\nA third one makes it enough!"
FIFTY = "the of " + "stone " * 48
"""Fifty words, two of them stop words."""
PROSE = "The mill was built in 1832 and ground corn until the war, when it burnt down."
GERMAN = "Der Hund und die Katze lagen in der Sonne vor dem Haus. " * 6
CHINESE = "他们在河边的小村庄里住了很多年。" * 6


def page(*groups: tuple[str, int]) -> str:
    """Lines, each with its number so that none is a duplicate: `(ending, how many)`."""
    return "\n".join(
        f"line {place}-{number} of a page with enough characters{ending}"
        for place, (ending, count) in enumerate(groups)
        for number in range(count)
    )


def numbered(width: int, count: int) -> list[str]:
    """Lines that are numbers of this width, and a full stop."""
    return [f"{number:0{width}}." for number in range(count)]


C4 = [
    ("One sentence stands here alone. Does another one stand here?", "few_sentences"),
    ("One sentence stands here alone. Does another one stand here? A third.", None),
    ("One sentence stands here alone.\nDoes another one stand here?", "few_sentences"),
    (f"{GOOD}\nfunction() {{", "dropped_phrase"),
    (f"Lorem Ipsum dolor\n{GOOD}", "dropped_phrase"),
]
FINEWEB = [
    (page((".", 13), ("", 87)), None),
    (page((".", 12), ("", 88)), "unpunctuated_lines"),
    (page(("。", 5), ("？", 5), ("!", 5), ("", 60)), None),
    ("", "empty"),
    (" \n\t\n", "empty"),
    ("\n".join(numbered(29, 100)), None),
    ("\n".join([*numbered(30, 33), *numbered(28, 67)]), "short_lines"),
    ("\n".join([*numbered(30, 34), *numbered(28, 66)]), None),
    ("\n".join([*numbered(39, 19), *["x" * 39 + "."] * 2]), None),
    ("\n".join([*numbered(39, 17), *["x" * 39 + "."] * 3]), "duplicate_lines"),
    *((page((mark, 100)), None) for mark in ".!?。！？।؟።"),
    *((page((mark, 100)), "unpunctuated_lines") for mark in ",;:\"')"),
]
GOPHER = [
    (FIFTY, None),
    (FIFTY.replace("stone ", "", 1), "few_words"),
    ("the of " + "stone " * 99_998, None),
    ("the of " + "stone " * 99_999, "many_words"),
    ("the of " + "xy " * 48, "short_words"),
    ("the with " + "bbb " * 48, None),
    ("the of " + "x" * 10 + " " + "abcdefghij " * 48, None),
    ("the of " + "abcdefghijk " * 60, "long_words"),
    (FIFTY + "#" * 5, None),
    (FIFTY + "#" * 6, "many_hashes"),
    (FIFTY + "... " * 2 + "… " * 3 + "stone", None),
    (FIFTY + "... " * 3 + "… " * 3, "many_ellipses"),
    (FIFTY + "word\n" + "- stone\n" * 9, None),
    (FIFTY + "word\n" + "• stone\n" * 10, "bullet_lines"),
    (FIFTY * 2 + "\n" + "stone\n" * 6 + "stone...\n" * 3, None),
    (FIFTY * 2 + "\n" + "stone\n" * 5 + "stone…\n" * 3, "ellipsis_lines"),
    (FIFTY * 2 + "2024 " * 25, None),
    (FIFTY * 2 + "2024 " * 26, "few_words_with_letters"),
    (FIFTY * 2 + "| " * 26, "few_words_with_letters"),
    *((FIFTY.replace("of", other), "few_stop_words") for other in ("off", "ox", "The", "the", "öf")),
    (GERMAN, "few_stop_words"),
    (CHINESE, "short_words"),
]
PAGES = [
    *(("c4", {}, *row) for row in C4),
    *(("fineweb", {}, *row) for row in FINEWEB),
    *(("gopher_quality", {}, *row) for row in GOPHER),
    ("gopher_quality", {"stop_words": ["der", "die", "und"]}, GERMAN, None),
    ("gopher_quality", {"min_mean_word_length": 0, "min_stop_words": 0}, CHINESE, None),
    *(
        ("length", {"min_characters": 3, "max_characters": 5}, "x" * size, reason)
        for size, reason in ((2, "too_short"), (3, None), (5, None), (6, "too_long"))
    ),
    ("length", {"min_words": 2, "max_words": 3}, "one - !", "too_short"),
    ("length", {"min_words": 2, "max_words": 3}, "one two, three.", None),
    ("length", {"min_words": 2, "max_words": 3}, "one two three four", "too_long"),
    ("length", {"min_words": 6, "max_words": 6}, "我喜欢读书。ok", None),
    ("length", {"min_characters": 10, "languages": {"en": {"min_characters": 3}}}, "I am", None),
    ("length", {"min_characters": 10, "languages": {"zh": {"min_characters": 3}}}, "I am", "too_short"),
    ("boilerplate_lines", {}, "Home | News | Contact\n\nLog in", "only_boilerplate"),
]


@pytest.mark.parametrize(("kind", "settings", "text", "reason"), PAGES)
def test_pages_are_dropped_beyond_a_limit_and_kept_at_it(kind, settings, text, reason):
    assert Bench(kind, **settings).reason(text) == reason


REMOVED = [
    *("a line without an end mark", "a line that trails off...", "only four words here.", ""),
    "Please enable JavaScript in your own browser.",
    "Read our Privacy Policy before you go on.",
    "this word is " + "x" * 1001 + " much too long.",
]
KEPT = [
    "exactly five words are here.",
    *(f"he said quite enough of it{mark}" for mark in '"”’»“」'),
    "x" * 1000 + " is a long word.",
]
CITED = (
    "The town has two old mills.[1] [2]\nIt was founded in 1200 [citation needed] by monks.\n"
    "Its name[edit] is very old indeed."
)
C4_OFF = {
    "end_marks": [],
    "removed_phrases": [],
    "dropped_phrases": [],
    "min_words_per_line": 0,
    "min_sentences": 0,
    "remove_citations": False,
}
BRACKETS = {
    "a[1]b[]c": "abc",
    "[[1]2]": "",
    "[ci[3]tation needed]": "",
    "[a[b]c]": "[a[b]c]",
    "a[b[1]c": "a[bc",
    "]1[": "]1[",
    "[x[12]": "[x",
    "[x][12]": "[x]",
    "a] [edit]": "a]",
}
ANYTHING = "menu\njavascript { [1]\nlorem ipsum"
LONG_COMMAND = (
    "Read more books, said the teacher to her class, and you will never be alone in this wide world."
)
LONG_NOTICE = (
    "The commission found that the company, whose website says that it uses cookies, had kept the names of visitors"
    " for eleven years without asking any of them, and fined it more than it had earned by that."
)
BAR = "If x > 3 then the | operator of the language is applied to both values, and its result is printed > once."
BOILERPLATE_OFF = {"commands": [], "notices": [], "copyright": False, "min_separators": 0}
MENU = "Log in\nuses cookies\n© 2020\nA | B | C"
LINES = [
    *(("c4", {}, f"{line}\n{GOOD}", GOOD) for line in REMOVED),
    *(("c4", {}, f"  {line} \n{GOOD}", f"{line}\n{GOOD}") for line in KEPT),
    (
        *("c4", {}, CITED),
        "The town has two old mills.\nIt was founded in 1200  by monks.\nIts name is very old indeed.",
    ),
    ("c4", C4_OFF, ANYTHING, ANYTHING),
    (
        "c4",
        C4_OFF | {"remove_citations": True},
        "\n".join(BRACKETS),
        "\n".join(filter(None, BRACKETS.values())),
    ),
    *(
        ("boilerplate_lines", {}, f"{line}\n{PROSE}", f"{line}\n{PROSE}")
        for line in (PROSE, "", LONG_COMMAND, LONG_NOTICE, "Copyright law protects the author.", BAR)
    ),
    ("boilerplate_lines", BOILERPLATE_OFF, MENU, MENU),
    (
        *("boilerplate_lines", {"commands": ["Weiterlesen"], "notices": ["verwendet Cookies"]}),
        *(f"Weiterlesen …\nDiese Seite verwendet Cookies.\nLog in\n{PROSE}", f"Log in\n{PROSE}"),
    ),
]


@pytest.mark.parametrize(("kind", "settings", "text", "left"), LINES)
def test_lines_that_are_no_prose_are_removed_and_others_stay(kind, settings, text, left):
    assert Bench(kind, **settings).text(text) == left


BOILERPLATE = [
    ("notices", "This site uses cookies to give you the best experience. OK"),
    ("notices", "Please enable JavaScript to view this page."),
    ("commands", "Read more »"),
    ("commands", "Share on Facebook"),
    ("commands", "Skip to main content"),
    ("copyright", "© 2019 Example Ltd."),
    ("copyright", "Copyright (c) 2004-2012 by the editors"),
    ("navigation", "Home | News | Sports | Contact"),
    ("navigation", "Home > Products > Lamps"),
    ("navigation", "Home » News » 2016"),
]


@pytest.mark.parametrize(("kind", "line"), BOILERPLATE)
def test_line_around_the_text_is_removed_and_counted(line, kind):
    clean = Bench("boilerplate_lines")
    assert clean.text(f"{PROSE}\n  {line}\n{PROSE}") == f"{PROSE}\n{PROSE}"
    assert clean.counts(f"{line}\n{PROSE}\n{line}") == {kind: 2}


def test_capitals_of_any_script_make_no_difference_to_phrases():
    clean = Bench("boilerplate_lines", notices=["Όροι χρήσης"], commands=["İleri git"])
    assert (
        clean.text(f"ΔΕΊΤΕ ΤΟΥΣ ΌΡΟΥΣ\nΔΕΊΤΕ: ΌΡΟΙ ΧΡΉΣΗΣ\nİLERI GIT\n{PROSE}")
        == f"ΔΕΊΤΕ ΤΟΥΣ ΌΡΟΥΣ\n{PROSE}"
    )


def test_bad_words_drop_pages_that_hold_them_as_words(tmp_path):
    (tmp_path / "list.txt").write_text("Rotten\nvery bad thing\n坏话\n\n", encoding="utf-8")
    c4 = Bench("c4", bad_words=tmp_path / "list.txt")
    for text, reason in (
        ("", None),
        ("That is ROTTEN to the core.", "bad_word"),
        ("He spoke of a very bad\nthing.", "bad_word"),
        ("Forgotten things are very bad.", None),
        ("他说坏话了.", "bad_word"),
    ):
        assert c4.reason(f"{GOOD} {text}") == reason
    with pytest.raises(MissingInputError, match=r"absent\.txt"):
        Bench("c4", bad_words=tmp_path / "absent.txt")


@given(st.text(st.sampled_from("aZé漢ก١7_.-# \t\n\x1c\x85\xa0\u200b\u0301\U00020000\U000e0100"), max_size=60))
def test_runs_with_a_letter_are_those_that_an_expression_finds(text):
    assert letter_runs(code_points(text)) == (len(text.split()), len(re.findall(r"[^\W\d_]\S*", text)))


NO_LIMITS = {
    **dict.fromkeys(("duplicate_lines", "duplicate_line_characters"), 1),
    **dict.fromkeys(("duplicate_paragraphs", "duplicate_paragraph_characters"), 1),
    "top_ngram_characters": {},
    "duplicate_ngram_characters": {},
}
PASSAGE = "aa bb cc dd ee ff gg"
PARAGRAPHS = "one two\nthree\n\n  \nfour\n\none two\nthree"


@pytest.mark.parametrize(
    ("limit", "text", "share", "reason"),
    [
        ("duplicate_lines", "aa\nb\naa\naa\nccc", 2 / 5, "duplicate_lines"),
        ("duplicate_line_characters", "aa\nb\naa\naa\nccc", 4 / 10, "duplicate_line_characters"),
        ("duplicate_paragraphs", PARAGRAPHS, 1 / 3, "duplicate_paragraphs"),
        ("duplicate_paragraph_characters", PARAGRAPHS, 13 / 28, "duplicate_paragraph_characters"),
        # "red fox" three times, and `Red fox` is another: 18 of 31 characters of words.
        (2, "Red fox, red fox; the red fox! (red fox) runs.", 18 / 31, "top_2_gram"),
        # Overlapping occurrences count once.
        (2, "la la la la la b", 10 / 11, "top_2_gram"),
        # Three 5-grams of the second passage overlap in its 14 characters; 34 are in all words.
        (5, f"{PASSAGE} xx {PASSAGE} yyyy", 14 / 34, "duplicate_5_grams"),
        (7, f"{PASSAGE} xx {PASSAGE} yyyy", 14 / 34, "duplicate_7_grams"),
    ],
)
def test_share_is_counted_as_in_the_paper_and_the_limit_itself_is_allowed(limit, text, share, reason):
    def dropped(most):
        name = "top_ngram_characters" if reason.startswith("top") else "duplicate_ngram_characters"
        wanted = {limit: most} if isinstance(limit, str) else {name: {limit: most}}
        return Bench("gopher_repetition", **NO_LIMITS | wanted).reason(text)

    assert dropped(share) is None
    assert dropped(share - 1e-9) == reason


def test_defaults_are_table_a1():
    assert GopherRepetitionConfig() == GopherRepetitionConfig(
        duplicate_lines=0.30,
        duplicate_line_characters=0.20,
        duplicate_paragraphs=0.30,
        duplicate_paragraph_characters=0.20,
        top_ngram_characters={2: 0.20, 3: 0.18, 4: 0.16},
        duplicate_ngram_characters={5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10},
    )


@pytest.mark.parametrize("limits", [{1: 0.5}, {65: 0.5}, {3: 1.5}])
def test_limits_without_sense_are_refused(limits):
    with pytest.raises(ValidationError):
        Bench("gopher_repetition", top_ngram_characters=limits)


@given(st.lists(st.sampled_from(["a", "b", "cc", "漢", "A", "e\u0301"]), max_size=40))
def test_characters_in_repeated_ngrams_are_those_that_brute_force_finds(words):
    numbers, before = number_words(" ".join(words))
    assert len(set(numbers.tolist())) == len({*zip(numbers.tolist(), words, strict=True)}) == len({*words})
    assert before.tolist() == [0, *accumulate(map(len, words))]
    top, repeated = np.zeros((2, 9), np.int64)
    ngram_characters(numbers, before, top, repeated)

    def characters_inside(starts: list[int], n: int) -> int:
        return sum(len(words[i]) for i in {i for start in starts for i in range(start, start + n)})

    for n in range(2, 9):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        counts = Counter(grams)
        later = [i for i, gram in enumerate(grams) if gram in grams[:i]]
        assert repeated[n] == characters_inside(later, n)
        # The most frequent, of those the longest, of those the first.
        best = max(grams, key=lambda gram: (counts[gram], sum(map(len, gram))), default=())
        places = [i for i, gram in enumerate(grams) if gram == best and counts[best] > 1]
        assert top[n] == characters_inside(places, n)


ENCODINGS = ["latin-1", "cp1252", "cp1251", "cp1250", "cp437", "macroman"]
UNICODE_OFF = {"repair": False, "controls": False, "invisible": False, "spaces": False, "normal_form": "none"}
CLEAN = (
    "Das Ä, das Ö und das Ü; naïve façade, Łódź, São Paulo – “quotes”…",
    "Привет, мир. Γειά σου Κόσμε. 日本語の文章。한국어 문장.",
    "€ 5, £ 3, 20 °C, 5 µm, ½, ©, ™, ±, Ångström",
    "नमस्ते दुनिया. می‌خواهم. 👩‍👩‍👧",
)
MESSY = "\ufeffsch\xc3\xb6n\r\nCafe\u0301\xa0\x00"


@pytest.mark.parametrize(
    ("text", "settings", "normalised"),
    [
        ("a\r\nb\rc\x0bd\x0ce\u2028f\u2029g\x00\x08\x7fh\ti", {}, "a\nb\nc\nd\ne\nf\ngh\ti"),
        # Invisible characters vanish, and joiners stay.
        (
            "\ufeffze\u200bro\u00adwidth\u2060 \u202eno\u202c a\u200db\u200cc",
            {},
            "zerowidth no a\u200db\u200cc",
        ),
        ("a\xa0b\u2009c\u3000d\u202fe", {}, "a b c d e"),
        ("sch\xc3\x00\xb6n", {}, "schön"),  # mojibake around a control character needs a second pass
        ("Cafe\u0301 ﬁn", {}, "Café ﬁn"),
        ("Cafe\u0301 ﬁn", {"normal_form": "NFKC"}, "Café fin"),
        (MESSY, UNICODE_OFF, MESSY),
        *((text, {}, text) for text in CLEAN),
    ],
)
def test_characters_are_normalised(text, settings, normalised):
    assert Bench("unicode", **settings).text(text) == normalised


@given(st.text(st.sampled_from("aé–“”’ł€日Пρ ½®\xa0"), max_size=12), st.sampled_from(ENCODINGS))
@example("Die Brücke über den Fluß – très élégant", "latin-1")
def test_mojibake_is_repaired_as_by_ftfy_in_the_lines_in_which_the_detector_finds_it(text, encoding):
    mojibake = text.encode("utf-8").decode(encoding, errors="replace")
    for each in (text, mojibake, mojibake.replace("\xa0", " "), unicodedata.normalize("NFD", mojibake)):
        repaired = each
        while is_bad(repaired) and (fixed := fix_encoding(repaired)) != repaired:
            repaired = fixed
        passed = Bench("unicode", **UNICODE_OFF | {"repair": True}).passed(
            f"São Paulo, Århus.\n{each}\nČeský"
        )
        assert passed.document.text == f"São Paulo, Århus.\n{repaired}\nČeský"
        assert passed.counts == ({"repaired": 1} if repaired != each else {})
