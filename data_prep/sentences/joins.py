"""Sentences that BlingFire cuts in two: quotations from what says who spoke, and titles and initials from names.

Looks at the few bytes around every cut, of a whole batch at once.
"""

from __future__ import annotations

import re

import numpy as np

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
