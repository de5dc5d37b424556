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
    of_blingfire: list[int] = []
    origins: list[int] = []
    english: list[bool] = []
    for row, lang in enumerate(langs.to_pylist()):
        start, end = int(offsets[row]), int(offsets[row + 1])
        if method == "sentencex" or lang in NOT_FOR_BLINGFIRE:
            starts += starts_by_sentencex(data, start, end, lang)
        elif found := starts_by_blingfire(data, start, end):
            of_blingfire += found
            origins += [start] * len(found)
            english += [lang in _ENGLISH] * len(found)
    chosen = np.array(of_blingfire, dtype=np.int64)
    chosen = chosen[
        is_sentence_start(data, chosen, np.array(origins, dtype=np.int64), np.array(english, dtype=bool))
    ]
    return cuts_ahead_of(np.concatenate([np.array(starts, dtype=np.int64), chosen]), data, offsets)


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


def starts_by_blingfire(data: np.ndarray, start: int, end: int) -> list[int]:
    """Starts of the sentences of a text but its first.

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
        text = data[first:stop].tobytes().replace(b"\0", b" ")  # a NUL would end the text for the library
        sentences = blingfire.text_to_sentences(text.decode()).encode().split(b"\n")
        text = text.replace(b"\n", b" ")
        place = text.find(sentences[0]) + len(sentences[0])
        for sentence in sentences[1:]:
            place = text.index(sentence, place)
            starts.append(first + place)
            place += len(sentence)
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
# Quotations are cut from what says who spoke, and titles and initials from names. What tells is in the few bytes around
# every cut, of a whole batch at once.

TITLES = "Mr Mrs Ms Dr St Mme Mlle Mons Messrs Prof"
ENGLISH_TITLES = "Capt Col Gen Lieut Lt Maj Sgt Rev Hon Gov Sen Rep viz"
"""Abbreviations before a name or an example; in other languages, some of these are words that end sentences."""
NUMBERED = (
    "No Nos Nr Vol vol Vols vols Fig fig Figs figs Ch ch Chap chap Art art pp p Jan Feb Aug Sept Oct Nov Dec"
)
"""Abbreviations before a number."""
_LONGEST = 8
"""Bytes of the longest of them, with its full stop and the byte ahead of it."""
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
_SPACE = np.zeros(256, dtype=bool)
_SPACE[list(b" \t")] = True
_ALPHANUMERIC = np.zeros(256, dtype=bool)
_ALPHANUMERIC[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")] = True
_SMALL = np.array([chr(code).islower() for code in range(0x800)])
_CAPITAL = np.array([chr(code).isupper() for code in range(0x800)])
_DIGIT = np.array([chr(code) in "0123456789" for code in range(0x800)])
"""[code points of one or two bytes] bool."""
_STOP, _FIRST_LETTER, _LAST_LETTER, _PRONOUN = b".AZI"
_QUOTES = (b'"', b"'", "”".encode(), "’".encode(), "»".encode(), "“".encode(), "«".encode(), "›".encode())
"""Closing quotation marks."""
_EXCLAMATIONS = tuple(mark + quote for mark in (b"?", b"!") for quote in _QUOTES)
_MAY_QUOTE = np.isin(np.arange(256), [quote[-1] for quote in _QUOTES])
_LONGEST_QUOTE = 3
_LINE_FEED = ord("\n")
_DASHES = (b"-", "–".encode(), "—".encode())


def is_sentence_start(
    data: np.ndarray, starts: np.ndarray, origins: np.ndarray, english: np.ndarray
) -> np.ndarray:
    """Return which of the places where BlingFire begins a sentence begin one.

    Args:
        data: [bytes] uint8 UTF-8 text.
        starts: [sentences] int64, ascending.
        origins: [sentences] int64, where in `data` the document of each begins, ahead of it.
        english: [sentences] bool, whether it is English.

    Returns:
        [sentences] bool.
    """
    if not len(starts):
        return np.ones(0, dtype=bool)
    ends = _skip_back(data, starts - 1, origins)
    last = data[ends]
    is_start = np.ones(len(starts), dtype=bool)
    quoted = np.flatnonzero(_MAY_QUOTE[last])
    tags = quoted[_is_among(_SMALL, data, _skip_dash(data, starts[quoted]))]
    is_start[tags[_ends_with_any(data, ends[tags], _QUOTES)]] = False
    stopped = np.flatnonzero(last == _STOP)
    is_start[stopped[_goes_with_abbreviation(data, starts, ends, origins, english, stopped)]] = False
    quoted = quoted[english[quoted] & is_start[quoted]]
    for number in quoted[_ends_with_any(data, ends[quoted], _EXCLAMATIONS)].tolist():
        is_start[number] = not SPEAKER.match(data[starts[number] : starts[number] + _SPEAKER_BYTES].tobytes())
    return is_start


def _goes_with_abbreviation(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    origins: np.ndarray,
    english: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """[rows] bool: whether the word ahead of a start is a title, an initial, or what a number follows."""
    stop, origin = ends[rows], origins[rows]
    is_capital, is_digit = (_is_among(kind, data, starts[rows]) for kind in (_CAPITAL, _DIGIT))
    token = np.zeros(len(rows), dtype=np.uint64)
    for back in range(_LONGEST - 1, -1, -1):
        token = token << np.uint64(8) | _byte(data, stop - back, origin).astype(np.uint64)
    joined = np.zeros(len(rows), dtype=bool)
    for length in range(2, _LONGEST):
        ahead = ((token >> np.uint64(8 * length)) & np.uint64(0xFF)).astype(np.uint8)
        among = np.flatnonzero(~_ALPHANUMERIC[ahead] & ~joined & (is_capital | is_digit))
        word = token[among] & np.uint64((1 << 8 * length) - 1)
        after_title = np.isin(word, _codes(TITLES, length)) | (
            english[rows[among]] & np.isin(word, _codes(ENGLISH_TITLES, length))
        )
        joined[among] = np.where(is_digit[among], np.isin(word, _codes(NUMBERED, length)), after_title)
    return joined | (is_capital & _follows_initial(data, starts, stop, origin, rows))


def _follows_initial(
    data: np.ndarray, starts: np.ndarray, stop: np.ndarray, origin: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """[rows] bool: `J. | R. R. Tolkien`, and any single letter that would be a sentence."""
    letter, ahead = _byte(data, stop - 1, origin), _byte(data, stop - 2, origin)
    is_initial = (letter >= _FIRST_LETTER) & (letter <= _LAST_LETTER) & ~_ALPHANUMERIC[ahead]
    before = np.maximum(np.where(rows > 0, starts[rows - 1], 0), origin)
    is_quoted = _MAY_QUOTE[ahead] & (before >= stop - 1 - _LONGEST_QUOTE) & (before < stop - 1)
    alone = (before == stop - 1) | is_quoted | (ahead == _LINE_FEED)
    is_followed = data[np.minimum(starts[rows] + 1, len(data) - 1)] == _STOP
    return is_initial & (alone | (is_followed & (letter != _PRONOUN)))


def _byte(data: np.ndarray, places: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """The byte at each place; a space ahead of a document."""
    return np.where(places >= origins, data[np.maximum(places, 0)], ord(" "))


def _codes(words: str, length: int) -> np.ndarray:
    """Words of so many bytes, with their full stop, as big-endian numbers."""
    encoded = [f"{word}.".encode() for word in words.split()]
    return np.array([int.from_bytes(word) for word in encoded if len(word) == length], dtype=np.uint64)


def _skip_back(data: np.ndarray, places: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """The last byte at or ahead of each place that is no space; at most three are skipped."""
    for _ in range(3):
        places = np.maximum(places - _SPACE[data[places]], origins)
    return places


def _skip_dash(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Each place, or the place after a dash and a space there."""
    last = len(data) - 1
    after = places
    for dash in _DASHES:
        ahead = np.minimum(places + len(dash), len(data))
        after = np.where(_ends_with_any(data, ahead - 1, (dash,)), np.minimum(ahead, last), after)
    return np.minimum(after + ((after > places) & _SPACE[data[after]]), last)


def _is_among(kind: np.ndarray, data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Whether a character of a kind, which is a [code points of one or two bytes] bool array, is at each place."""
    first = data[places].astype(np.int64)
    second = data[np.minimum(places + 1, len(data) - 1)].astype(np.int64)
    two = (first & 0x1F) << 6 | second & 0x3F
    return np.where(first < 0x80, kind[first & 0x7F], (first & 0xE0 == 0xC0) & kind[two])


def _ends_with_any(data: np.ndarray, ends: np.ndarray, words: tuple[bytes, ...]) -> np.ndarray:
    """Whether one of the words ends at each place."""
    last = [data[np.maximum(ends - back, 0)] for back in range(max(map(len, words)))]
    found = np.zeros(len(ends), dtype=bool)
    for word in words:
        found |= np.logical_and.reduce([last[back] == byte for back, byte in enumerate(reversed(word))])
    return found
