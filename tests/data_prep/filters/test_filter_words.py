"""How texts are cut into words and lines."""

from __future__ import annotations

import regex

from data_prep.filters.words import _MAY_BE_UNSPACED, _UNSPACED, lines, words


def test_marks_belong_to_their_letters():
    assert words("हिन्दी भाषा") == ("हिन्दी", "भाषा")


def test_scripts_without_spaces_give_a_word_for_each_character_with_its_marks():
    assert words("日本語のtext 1984") == ("日", "本", "語", "の", "text", "1984")
    assert words("ที่นี่") == ("ที่", "นี่")
    assert words("한국어 문장") == ("한국어", "문장")


def test_cheap_check_finds_every_script_without_spaces():
    script = regex.compile(f"[{_UNSPACED}]")
    code_points = (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    missed = [c for c in map(chr, code_points) if script.match(c) and not _MAY_BE_UNSPACED.match(c)]
    assert missed == []


def test_lines_have_no_white_space_around_them_and_are_never_empty():
    assert lines(" one \n\n \t\ntwo\r\n") == ("one", "two")
