"""Starts of sentences: found by a library, moved to the white space ahead of them.

A sentence begins where a segmenter says so, and after every line break. The cut lies right before the last
white-space character ahead of it, so that the space goes with the word that it precedes, as byte-level tokenizers
have it; where no space is, as in Chinese, the cut lies right at the sentence.

All work is done on the UTF-8 bytes of a whole batch, end to end as Arrow holds them, without copying them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from data_prep.ragged import Ragged, offsets_of

NOT_FOR_BLINGFIRE = frozenset(
    [
        # It cuts between a full stop and the quotation mark that closes after it.
        *("zh", "yue", "wuu", "lzh", "ja"),
        *("hi", "mr", "ne", "sa", "mai", "bho", "new", "awa", "mag"),  # danda
        *("bn", "as", "bpy", "mni", "pa", "or"),  # danda
        *("my", "shn", "mnw", "am", "ti", "gez", "hy", "hyw", "sat"),  # full stops of their own
        "el",  # question mark
    ]
)
"""ISO 639 codes of languages some of whose sentence ends BlingFire does not know and sentencex does."""

_ENGLISH = frozenset({"en", "eng", ""})
WHITE_SPACE = (
    *(*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)),
    *(0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
)
"""Code points of white space, as `str.isspace` has them."""
_ENCODED = [chr(code).encode() for code in WHITE_SPACE]
_WIDE = {size: np.array([int.from_bytes(c) for c in _ENCODED if len(c) == size]) for size in (2, 3)}
"""White space of two and of three bytes, as big-endian numbers."""
_WHITE_RUN = re.compile(
    b"(?:[%b]++|%b)*+"  # possessive, or a run of megabytes would be remembered character by character
    % (
        b"".join(re.escape(c) for c in _ENCODED if len(c) == 1),
        b"|".join(re.escape(c) for c in _ENCODED if len(c) > 1),
    )
)
_MAYBE_WHITE = np.isin(np.arange(256), [c[0] for c in _ENCODED])
"""[256] bool: whether white space may begin with a byte."""
_WINDOW_BYTES = 1 << 20


def cut_sentences(texts: pa.Array, langs: pa.Array, method: str) -> Ragged:
    """Starts of the sentences of texts.

    Args:
        texts: [documents] string.
        langs: [documents] string, ISO 639 codes of their languages.
        method: `blingfire`, which leaves languages that BlingFire is wrong for to sentencex; `sentencex` for all
            languages; `none` for no cuts at all.

    Returns:
        Per document the ascending UTF-8 byte offsets (int64) of its sentences but the first, each at the start of
        a character. No sentence is white space only, unless its whole document is.
    """
    text = Ragged.of_strings(texts)
    data, offsets = text.values, text.offsets
    if method == "none" or not len(data):
        return Ragged(np.empty(0, dtype=np.int64), np.zeros(len(texts) + 1, dtype=np.int64))
    starts: list[int] = []
    for row, lang in enumerate(langs.to_pylist()):
        start, end = int(offsets[row]), int(offsets[row + 1])
        if method == "sentencex" or lang in NOT_FOR_BLINGFIRE:
            starts += starts_by_sentencex(data, start, end, lang)
        else:
            starts += starts_by_blingfire(data, start, end, lang in _ENGLISH)
    return cuts_ahead_of(np.array(starts, dtype=np.int64), data, offsets)


def cuts_ahead_of(starts: np.ndarray, data: np.ndarray, offsets: np.ndarray) -> Ragged:
    """Cuts of texts, so that sentences start as given and after every line break.

    Args:
        starts: [sentences] int64 offsets in `data`, in any order.
        data: [bytes] uint8, the UTF-8 bytes of all texts end to end; not empty.
        offsets: [texts + 1] int64 where in `data` each text begins, and the last one ends.

    Returns:
        Per text the ascending byte offsets (int64) of its cuts; each has text before and after it.
    """
    # Stable, because it is fast for what consists of a few ascending runs.
    ink = np.sort(_first_ink(data, np.concatenate([starts, _line_starts(data)])), kind="stable")
    ink = ink[(ink < len(data)) & (np.diff(ink, prepend=-1) > 0)]
    rows = np.searchsorted(offsets, ink, side="right") - 1
    own = ink > _first_ink(data, offsets[:-1])[rows]
    ink, rows = ink[own], rows[own]
    counts = np.bincount(rows, minlength=len(offsets) - 1)
    return Ragged(_before_space(data, ink) - offsets[rows], offsets_of(counts))


def _line_starts(data: np.ndarray) -> np.ndarray:
    """[lines] int64: right after every line break, or after the last of several in a row."""
    found = [np.empty(0, dtype=np.int64)]
    for first in range(0, len(data), _WINDOW_BYTES):
        window = data[first : first + _WINDOW_BYTES]
        narrow = np.flatnonzero((window == 0x0A) | (window == 0x0D)) + first + 1
        found.append(narrow[np.diff(narrow, append=-1) != 1])
        wide = np.flatnonzero(window == 0xE2) + first
        # U+2028 and U+2029 are E2 80 A8 and E2 80 A9.
        found.append(wide[(data[wide + 1] == 0x80) & (data[wide + 2] & 0xFE == 0xA8)] + 3)
    return np.concatenate(found)


def _first_ink(data: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """For each position the first byte at or after it that is no white space; the length of `data` if none is."""
    found = positions.copy()
    unsure = np.flatnonzero(_MAYBE_WHITE[data.take(positions, mode="clip")])
    unsure = unsure[np.argsort(positions[unsure])]
    ascending = positions[unsure]
    done = 0
    while done < len(ascending):
        match = _WHITE_RUN.match(data, ascending[done])  # pyright: ignore[reportArgumentType, reportCallIssue]
        # All positions inside this run of white space end where it ends.
        same = max(done + 1, int(np.searchsorted(ascending, match.end())))
        found[unsure[done:same]] = match.end()
        done = same
    return found


def _before_space(data: np.ndarray, ink: np.ndarray) -> np.ndarray:
    """The start of the character ahead of each position where it is white space, elsewhere the position."""
    before = data[ink - 1]
    found = ink - (_MAYBE_WHITE[before] & (before < 0x80))
    unsure = np.flatnonzero(before >= 0x80)
    at = ink[unsure]
    last_two = data[at - 2].astype(np.int64) << 8 | data[at - 1]
    last_three = data[np.maximum(at - 3, 0)].astype(np.int64) << 16 | last_two
    found[unsure] -= 2 * np.isin(last_two, _WIDE[2]) + 3 * np.isin(last_three, _WIDE[3])
    return found


BLINGFIRE_PIECE_BYTES = 1 << 20
"""Approximate bytes per call of BlingFire, which needs some twenty times as much memory."""
SENTENCEX_PIECE_BYTES = 1 << 12
"""Approximate bytes per call of sentencex: its time grows with the square of the length of a line."""


def starts_by_blingfire(data: np.ndarray, start: int, end: int, is_english: bool) -> list[int]:
    """Starts of the sentences of a text but its first, without those within a sentence that BlingFire cuts in two.

    BlingFire returns sentences, each on a line of its own and a line break within as a space; they are found again
    in the text in order. Its variant with offsets costs several times the segmentation.

    Args:
        data: [bytes] uint8 UTF-8; the text is `data[start:end]`.

    Returns:
        Ascending offsets in `data`.
    """
    import blingfire

    starts: list[int] = []
    for first, stop in pieces_of(data, start, end, BLINGFIRE_PIECE_BYTES):
        text = data[first:stop].tobytes()
        flat = text.replace(b"\0", b" ")  # a NUL would end the text for the library
        sentences = blingfire.text_to_sentences(flat.decode()).encode().split(b"\n")
        flat = flat.replace(b"\n", b" ")
        ahead, before, place = sentences[0], 0, flat.find(sentences[0]) + len(sentences[0])
        for sentence in sentences[1:]:
            begin = flat.index(sentence, place)
            # The rules take several times as long as this, and most sentences end otherwise.
            is_open = ahead[-3:] in _ENDS_OF_ABBREVIATIONS or ahead[-1:] in _ENDS_OF_QUOTES
            if not (is_open and continues_sentence(text, before, place, begin, is_english)):
                starts.append(first + begin)
            ahead, before, place = sentence, begin, begin + len(sentence)
    return starts


def starts_by_sentencex(data: np.ndarray, start: int, end: int, lang: str) -> list[int]:
    """Starts of the sentences of a text but its first, as `starts_by_blingfire` has them.

    Args:
        lang: ISO 639 code; what sentencex does not know, it reads as English.
    """
    from sentencex import get_sentence_boundaries  # pyright: ignore[reportAttributeAccessIssue]

    starts: list[int] = []
    for first, stop in pieces_of(data, start, end, SENTENCEX_PIECE_BYTES):
        boundaries = get_sentence_boundaries(lang, data[first:stop].tobytes().decode())
        if len(boundaries) > 1:
            character_starts = np.flatnonzero((data[first:stop] & 0xC0) != 0x80) + first
            starts += character_starts[[each["start_index"] for each in boundaries[1:]]].tolist()
    return starts


def pieces_of(data: np.ndarray, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces that make up `data[start:end]`, each of at most twice `size` bytes.

    A piece ends at the first line break beyond `size`, where a sentence ends anyway; without one, at the last
    space; without that, between any two characters. No sentence begins at the latter two as far as we know.

    Args:
        data: [bytes] uint8 UTF-8 text.
    """
    while end - start > 2 * size:
        tail = data[start + size : start + 2 * size].tobytes()
        length = tail.find(b"\n") + 1 or tail.rfind(b" ") + 1
        if not length:
            length = len(tail) - 1
            while tail[length] & 0xC0 == 0x80:
                length -= 1
        yield start, start + size + length
        start += size + length
    yield start, end


# -- sentences that BlingFire cuts in two --------------------------------------------------------------------
#
# Quotations are cut from what says who spoke, and titles and initials from names.

TITLES = "Mr Mrs Ms Dr St Mme Mlle Mons Messrs Prof"
ENGLISH_TITLES = "Capt Col Gen Lieut Lt Maj Sgt Rev Hon Gov Sen Rep viz"
"""Abbreviations before a name or an example; in other languages, some of these are words that end sentences."""
NUMBERED = (
    "No Nos Nr Vol vol Vols vols Fig fig Figs figs Ch ch Chap chap Art art pp p Jan Feb Aug Sept Oct Nov Dec"
)
"""Abbreviations before a number."""
_BEFORE_NUMBERS, _BEFORE_NAMES, _BEFORE_ENGLISH_NAMES = (
    frozenset(words.encode().split()) for words in (NUMBERED, TITLES, f"{TITLES} {ENGLISH_TITLES}")
)
_LONGEST = 7
"""Letters: more than any of them has."""
_ABBREVIATIONS = {
    *_BEFORE_NUMBERS,
    *_BEFORE_ENGLISH_NAMES,
    *(bytes([code]) for code in range(ord("A"), ord("Z") + 1)),
}
_ENDS_OF_ABBREVIATIONS = frozenset(
    (ahead + word)[-2:] + b"."
    for word in _ABBREVIATIONS
    for ahead in (b"", *(bytes([code]) for code in range(256) if len(word) == 1))
)
"""The last three bytes of all sentences that may go on after a full stop."""
_SPEECH = (
    "said|asked|cried|replied|answered|exclaimed|inquired|enquired|demanded|observed|remarked|whispered|murmured"
    "|muttered|shouted|echoed|repeated|ejaculated|retorted|rejoined|screamed|gasped|interposed|suggested|queried"
)
SPEAKER = re.compile(
    rb"(?:I|(?!(?:He|She|It|We|You|They|The|This|That|Nobody|One|Everybody|Somebody)\b)"
    rb"(?:(?:Mrs?|Miss|Dr|Lady|Lord|Sir|Captain|Aunt|Uncle)\.? )?[A-Z][a-z]+(?: [A-Z][a-z]+)?)"
    rb" (?:[a-z]+ly )?(?:" + _SPEECH.encode() + rb")\b(?! (?:nothing|no more)\b)"
)
"""`I asked`, `Mr. Pumblechook cried`: begins with a capital and continues a sentence after a quotation that ends
with a question or exclamation. A pronoun would begin with a small letter if it did so."""
_SPEAKER_BYTES = 64
_MAX_SPACES = 3
"""Spaces and tabs between the parts of a sentence."""
_QUOTES = tuple(quote.encode() for quote in "\"'”’»“«›")
"""Closing quotation marks."""
_ENDS_OF_QUOTES = frozenset(quote[-1:] for quote in _QUOTES)
"""The last byte of all sentences that may go on after a quotation."""
_EXCLAMATIONS = tuple(mark + quote for mark in (b"?", b"!") for quote in _QUOTES)
_DASH = re.compile("(?:(?:-|–|—)[ \t]?)?".encode())
_NO_LETTER = re.compile(rb"[^A-Za-z0-9]")
_LONE_INITIAL = re.compile(rb"(?:%b)?[A-Z]\." % b"|".join(_QUOTES))


def continues_sentence(text: bytes, before: int, end: int, start: int, is_english: bool) -> bool:
    """Whether a place in UTF-8 where BlingFire begins a sentence is in the midst of one.

    Args:
        before, end: where BlingFire begins and ends the sentence ahead of it.
    """
    last = text[max(end - 1, 0) : end]
    word = text[max(end - 1 - _LONGEST, 0) : max(end - 1, 0)]
    if start - end > _MAX_SPACES or text[end:start].strip(b" \t"):
        return False
    if last != b".":
        return _continues_quotation(text, end, start, is_english)
    word, first = _NO_LETTER.split(word)[-1], _letter(text, start)
    if first.isascii() and first.isdigit():
        return word in _BEFORE_NUMBERS
    if not first.isupper():
        return False
    if word in (_BEFORE_ENGLISH_NAMES if is_english else _BEFORE_NAMES):
        return True
    # `J. | R. R. Tolkien`, and any single letter that would be a sentence.
    if len(word) != 1 or not word.isupper():
        return False
    is_alone = text[end - 3 : end - 2] == b"\n" or _LONE_INITIAL.fullmatch(text, before, end) is not None
    return is_alone or (word != b"I" and text[start + 1 : start + 2] == b".")


def _continues_quotation(text: bytes, end: int, start: int, is_english: bool) -> bool:
    """Whether words after a quotation that ends at `end` say who spoke."""
    if not text.endswith(_QUOTES, 0, end):
        return False
    dash = _DASH.match(text, start)
    if dash is not None and dash.end() < len(text) and _letter(text, dash.end()).islower():
        return True
    is_named = is_english and text.endswith(_EXCLAMATIONS, 0, end)
    return is_named and SPEAKER.match(text, start, start + _SPEAKER_BYTES) is not None


def _letter(text: bytes, place: int) -> str:
    """The character of one or two bytes at a place; longer ones are of scripts without small letters, mostly."""
    if text[place] < 0x80:
        return chr(text[place])
    return text[place : place + 2].decode("utf-8", "ignore")[:1]
