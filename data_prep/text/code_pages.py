"""Guess the single-byte encoding of a text: the one that makes its words words of some language.

Nearly any bytes can be read by any code page; the wrong one gives letters that no language has
together, symbols within words, and capitals after small letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_prep.text import table

SAMPLE_BYTES = 1 << 14
"""Bytes of a text that are looked at, at most."""
LEAST_SHARE = 0.95
"""Least share of the characters beyond ASCII that must be where the language has them."""
_TYPOS = 1e-4
"""Share of all bytes of a text that may be wrong, whatever the others are."""
_SURE_SHARE = 0.98
"""So many must, before another group of languages is taken for the languages of a text."""
_USUAL = ("cp1252", "iso8859-15")
_LEAST_BETTER = 0.01
_FEW, _FEW_LETTERS = 4, 0.02
"""So many letters beyond ASCII, or of all letters, come from foreign words; texts of other languages than English
have more."""


@dataclass(frozen=True, slots=True)
class Group:
    """Languages that were written with the same code pages."""

    encodings: tuple[str, ...]
    """The Windows code page first."""
    alphabets: dict[str, str]
    """By ISO 639-1 code, the small letters beyond ASCII."""

    @property
    def is_latin(self) -> bool:
        """Whether the languages are written with the letters of ASCII and some more."""
        return all(unicodedata.name(letters[0]).startswith("LATIN") for letters in self.alphabets.values())


def _letters(alphabet: str) -> str:
    """The letters of an alphabet with ranges such as `а-я`."""
    return re.sub("(.)-(.)", lambda ends: "".join(map(chr, range(ord(ends[1]), ord(ends[2]) + 1))), alphabet)


_GROUPS = tuple(
    Group(
        tuple(group["encodings"].split()),
        {lang: _letters(alphabet) for lang, alphabet in group["alphabets"].items()},
    )
    for group in table("code_pages")
)
WESTERN = _GROUPS[0]
_UNKNOWN_TO_PYTHON = {"vi": "TCVN-5712, VISCII or VNI"}
"""Encodings of a language that Python does not know."""
_QUOTES = frozenset("“”„‚‘«»‹›…¡¿•")
_WITHIN_WORDS = frozenset("’‘–—―·´\xa0\xad׳״־\u200c\u200d")
_SYMBOLS = frozenset("§°©®™€£¥¢¤½¼¾²³¹ªº×÷±µ¶†‡№‰¦¬¨¸¯ˆ˜\u0384΄\u0385΅;")
_TRAILING = frozenset("½¼¾²³¹±¦¬¨¸¯")
"""Symbols that begin no word."""
_MARKS = _QUOTES | _WITHIN_WORDS | _SYMBOLS
"""Characters beside or within words of any language."""
_ODD = re.compile(
    r"(?<=[aAbBc])[qs](?=[aAbBc])|(?<=[bBcst])[st]|s(?=[bBc])|t(?=[aAbBc])|[ab]B|bA|B[AB](?=[ab])",
)
"""A quotation mark or symbol within a word, symbols beside one another or beside rare letters, and capitals where none
belong, in a text of the classes of `_classes`."""
_MIXED = re.compile("[aA][bBc]|[bBc][aA]")
"""Letters of two scripts within a word."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes read by an encoding as a language."""

    encoding: str
    lang: str
    share: float
    """Share of the characters beyond ASCII that are where the language has them."""
    is_probable: bool
    """Whether nearly all characters beyond ASCII are where the language has them."""


def group_of(lang: str) -> Group:
    """The group of a language; the Western one for those that are not listed."""
    return next((group for group in _GROUPS if lang in group.alphabets), WESTERN)


def best_reading(data: bytes, lang: str) -> Reading | None:
    """The likeliest encoding of a text that is said to be in a language, or in one of its group.

    Args:
        data: text in an encoding of one byte per character, not UTF-8.

    Returns:
        None where no encoding of the group makes it probable.
    """
    group = group_of(lang)
    own = {lang: group.alphabets[lang]} if lang in group.alphabets else {}
    best = max(_readings(data, group, own | group.alphabets), key=_likelihood)
    if group is not WESTERN or (best.lang == lang != "en" and best.is_probable):
        return best if best.is_probable else None
    # English has words of several languages; so every letter may be there, if no language of another group has just
    # these letters.
    loose = max(_readings(data, group, {"": "".join(group.alphabets.values())}), key=_likelihood)
    if not loose.is_probable:
        return None
    letters = [each for each in _sample(data).decode(loose.encoding, "replace") if each.isalpha()]
    if sum(not letter.isascii() for letter in letters) <= max(_FEW, _FEW_LETTERS * len(letters)):
        return best if best.is_probable else loose
    others = max(
        (each.share for each in readings_by_group(data, but=group) if each.share >= LEAST_SHARE), default=0.0
    )
    if best.lang != "en" and best.is_probable:
        # Encodings of DOS and the Macintosh are seldom, so that they need better evidence.
        return best if best.share >= others + (best.encoding not in _USUAL) * _LEAST_BETTER else None
    return loose if others < _SURE_SHARE else None


def readings_by_group(data: bytes, *, but: Group | None = None) -> list[Reading]:
    """The likeliest reading of every group of languages, but perhaps of one; best first."""
    best = [
        max(_readings(data, group, group.alphabets), key=_likelihood) for group in _GROUPS if group is not but
    ]
    return sorted(best, key=_likelihood, reverse=True)


def advice(data: bytes, lang: str) -> str:
    """The next step in the message when no reading is probable."""
    others = [each for each in readings_by_group(data, but=group_of(lang)) if each.share >= LEAST_SHARE]
    names = [f"{each.encoding} (`lang: {each.lang}`)" for each in others[:3]]
    if unknown := _UNKNOWN_TO_PYTHON.get(lang):
        names.append(f"{unknown}, which `iconv -t UTF-8` converts")
    likely = f"; it may be {', or '.join(names)}" if names else ""
    return f"neither UTF-8 nor text in an encoding of `lang: {lang}`{likely}; name it in `encoding`"


def _likelihood(reading: Reading) -> float:
    return round(reading.share, 3)


def _sample(data: bytes) -> bytes:
    """The lines with bytes beyond ASCII, up to a limit."""
    lines, size = [], 0
    for line in data[: 16 * SAMPLE_BYTES].splitlines():
        if not line.isascii():
            lines.append(line[: SAMPLE_BYTES - size])
            size += len(lines[-1])
            if size >= SAMPLE_BYTES:
                break
    return b"\n".join(lines)


def _readings(data: bytes, group: Group, alphabets: dict[str, str]) -> Iterator[Reading]:
    sample, typos = _sample(data), _TYPOS * min(len(data), 16 * SAMPLE_BYTES)
    for encoding in group.encodings:
        text = sample.decode(encoding, "replace")
        counts = Counter(text)
        total = sum(count for character, count in counts.items() if ord(character) > 127)
        classes = _classes(text, counts)
        odd = sum(1 for _ in _ODD.finditer(classes))
        if not group.is_latin:
            odd += sum(1 for _ in _MIXED.finditer(classes))
        for lang, letters in alphabets.items():
            known = {*letters, *letters.upper(), *_MARKS} | ({"İ"} if "ı" in letters else set())
            strange = sum(
                count
                for character, count in counts.items()
                if ord(character) > 127 and character not in known
            )
            wrong = min(total, strange + odd)
            yield Reading(
                encoding, lang, 1 - wrong / max(1, total), wrong <= max((1 - LEAST_SHARE) * total, typos)
            )


def _classes(text: str, characters: Iterable[str]) -> str:
    """`a` and `A` for letters of ASCII, `b` and `B` for others, `c` for those without case, `q` and `s` for quotation
    marks and symbols, `t` for symbols that begin no word."""
    return text.translate({ord(character): _class_of(character) for character in characters})


def _class_of(character: str) -> str:
    if character.isascii():
        return "A" if character.isupper() else "a" if character.islower() else " "
    if character in _WITHIN_WORDS:
        return " "
    if character in _QUOTES:
        return "q"
    if character in _TRAILING:
        return "t"
    if character.isupper() or character.islower():
        return "B" if character.isupper() else "b"
    return "c" if character.isalpha() or unicodedata.category(character).startswith("M") else "s"
