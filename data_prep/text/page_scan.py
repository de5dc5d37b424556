"""An HTML page as tokens: its texts, and the tags that change something, with the roles of their elements.

numba recompiles a loop only when its own file changes, so these call nothing of other files.
"""

from __future__ import annotations

import html as html_escapes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]
from numba import njit

from data_prep.text import UnreadableError
from data_prep.text.page_roles import ATTRIBUTES, NAMES, Role, role_of_element, roles_of

# -- what tags do --------------------------------------------------------------------------------------------

TOKEN = np.dtype(
    [(name, np.int32) for name in ("kind", "value", "first", "end", "other", "flags", "role", "key")],
    align=True,
)
"""A token: its kind; what the tag does; the characters of a text, or those of a tag in the page; of a START its END,
flags, role, and a number of tag and classes."""
TEXT, START, END = 0, 1, 2
"""Kinds of tokens."""
BLOCK, TRANSPARENT, REMOVED, UNSEEN, INLINE, LINK, BREAK, CELL = range(8)
"""Effects of a tag on the text: ends a block; nothing; leaves with its content; hides its content; may open a block in
the midst of a line, `<a>` among these; breaks a line; opens a table's cell."""
KINDS = ("", "p", "li", "tr", "pre", "h1", "h2", "h3", "h4", "h5", "h6")
"""Kinds of blocks, by their numbers in the compiled loops."""
INHERITED = 15
"""The kind of blocks in an element that leaves it as it is."""
KIND_BITS, ROLE_BITS = 3, 7
TITLE, SUBSTANCE, HEADER, LANDMARK = 1 << 10, 1 << 11, 1 << 12, 1 << 13
"""Bits of a tag: its effect in the lowest three, the kind of its blocks in four, its role in three, and flags: the
page's title, elements that may hold tables or headings besides what their names mean, headers, and landmarks that hold
what a page is about."""
HAS_ATTRIBUTES, HAS_NAMES, HAS_PROSE = 1, 2, 4
"""Flags of a token: attributes at all, those that may name a role, a run of prose within."""
_EFFECTS = {tag: globals()[effect] for effect, tags in NAMES["effects"].items() for tag in tags.split()}
_KIND_OF_TAG = {"dt": "li", "dd": "li", "blockquote": "p"} | dict.fromkeys(("table", "ul", "ol", "dl"), "")
_KIND_OF_TAG |= {kind: kind for kind in KINDS[1:]}
_BITS = {
    TITLE: {"title"},
    SUBSTANCE: {"figure", "header"},
    HEADER: {"header"},
    LANDMARK: {"article", "main"},
}
_TAG_ROLES = roles_of("tags")
_OTHER_TAG = BLOCK | INHERITED << KIND_BITS


def _value_of(tag: str) -> int:
    """The bits of a tag."""
    kind = _KIND_OF_TAG.get(tag)
    return (
        _EFFECTS.get(tag, BLOCK)
        | (INHERITED if kind is None else KINDS.index(kind)) << KIND_BITS
        | _TAG_ROLES.get(tag, Role.NONE) << ROLE_BITS
        | sum(bit for bit, tags in _BITS.items() if tag in tags)
    )


# -- the compiled loop ---------------------------------------------------------------------------------------

Table = tuple[np.ndarray, np.ndarray]
"""An open table of a power of two: uint64 FNV-1a hashes of names, and int32 values with one more bit, which is set."""
SPACE, WIDE = np.uint32(1 << 31), np.uint32(1 << 30)
"""Bits of a character beside its code point: it is white space; it writes a syllable or a word."""
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Constants of FNV-1a."""
_REPLACED = 0xFFFD


def hash_table(values: Mapping[str, int]) -> Table:
    """The values of names in letters of ASCII."""
    size = 1 << (4 * len(values)).bit_length()
    hashes, numbers = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.int32)
    for name, value in values.items():
        hashed = int(_OFFSET)
        for byte in name.encode():
            hashed = (hashed ^ byte) * int(_PRIME) % (1 << 64)
        place = hashed % size
        while numbers[place]:
            place = (place + 1) % size
        hashes[place], numbers[place] = hashed, value << 1 | 1
    return hashes, numbers


@njit(cache=True, nogil=True)
def _look_up(table: Table, points: np.ndarray, first: int, end: int) -> int:
    """The value of a name in the page; -1 for others."""
    names, values = table
    name = _OFFSET
    for place in range(first, end):
        name = (name ^ np.uint64(points[place])) * _PRIME
    place = np.int64(name) & (len(names) - 1)
    while values[place]:
        if names[place] == name:
            return int(np.int64(values[place]) >> 1)
        place = (place + 1) & (len(names) - 1)
    return -1


@njit(cache=True, nogil=True)
def _point(points: np.ndarray, place: int) -> int:
    return int(np.int64(points[place]))


@njit(cache=True, nogil=True)
def _referred(points: np.ndarray, place: int) -> tuple[int, int]:
    """The code point of a reference at `place`, and the place after it; 0 for a character that XML lacks."""
    first = place + 1
    while points[place] != 59:  # ;
        place += 1
    initial = _point(points, first)
    if initial != 35:  # lt, gt, quot, amp, apos
        if initial == 97:
            return (38 if _point(points, first + 1) == 109 else 39), place + 1
        return (60 if initial == 108 else 62 if initial == 103 else 34), place + 1
    code, is_hexadecimal = 0, _point(points, first + 1) == 120
    for each in range(first + 1 + is_hexadecimal, place):
        point = _point(points, each)
        digit = point - 48 if point < 58 else (point & 95) - 55
        code = code * (16 if is_hexadecimal else 10) + digit
    return (0 if code == _REPLACED else code), place + 1


@njit(cache=True, nogil=True)
def _read_text(
    points: np.ndarray, place: int, kinds: np.ndarray, texts: np.ndarray, count: int
) -> tuple[int, int]:
    """Write the characters of a text up to the next tag; returns the place after it and the number of characters."""
    while points[place] != 60:  # <
        if points[place] == 38:  # &
            code, place = _referred(points, place)
        else:
            code, place = _point(points, place), place + 1
        if code:
            texts[count] = np.uint32(code) | kinds[code]
            count += 1
    return place, count


@njit(cache=True, nogil=True)
def _is_prose(texts: np.ndarray, first: int, end: int, least: int) -> bool:
    """Whether a text has so many characters, wide ones counted twice, without white space around it."""
    size = 0
    for place in range(first, end):
        is_space = texts[place] >= SPACE
        if size or not is_space:
            size += 2 if texts[place] & WIDE else 1
        if size >= least and not is_space:
            return True
    return False


@njit(cache=True, nogil=True)
def _scan(
    points: np.ndarray,
    tags: Table,
    attributes: Table,
    kinds: np.ndarray,
    least_prose: int,
    tokens: np.ndarray,
    opened: np.ndarray,
    texts: np.ndarray,
) -> tuple[int, int, int]:
    """Cut a page into tokens, without those that change nothing; returns (tokens, characters of texts, first character
    of the title, or less than 0 where it has none).

    Args:
        points: uint32 code points of one well-formed element without comments.
        tags, attributes: what tags do; attributes that may name a role.
        kinds: [code points] uint32, the bits of each character.
        least_prose: characters of a run of prose.
        tokens: TOKEN, filled in; all zero. The role of a START is that of its tag.
        opened: [depth] int32, room for the open elements; -1 is returned for tokens where it does not suffice.
        texts: uint32 characters of all texts, with the bits of each; as many as there are code points suffice.
    """
    place, count, size, depth, unseen, title = 0, 0, 0, 0, 0, -1
    values_of_open = np.empty(len(opened), np.int64)
    while place < len(points):
        if points[place] != 60:  # a text, which ends at the next <
            if unseen:
                while points[place] != 60:
                    place += 1
                continue
            first = size
            place, size = _read_text(points, place, kinds, texts, first)
            if size > first:
                token = tokens[count]
                token.kind, token.first, token.end = TEXT, first, size
                count += 1
                if size - first >= least_prose // 2 and _is_prose(texts, first, size, least_prose):
                    level = depth - 1
                    while level >= 0:
                        if opened[level] >= 0:
                            around = tokens[int(opened[level])]
                            if around.flags & HAS_PROSE:
                                break
                            around.flags |= HAS_PROSE
                        level -= 1
            continue
        is_end = points[place + 1] == 47
        if is_end:
            while points[place] != 62:
                place += 1
            place += 1
        else:
            first = place + 1
            place = first
            while points[place] != 62 and points[place] != 32 and points[place] != 47:
                place += 1
            value = _look_up(tags, points, first, place)
            value = value if value >= 0 else _OTHER_TAG
            flags = 0
            while points[place] == 32:
                flags |= HAS_ATTRIBUTES
                start = place + 1
                place += 2  # a name may begin with =
                while points[place] != 61:
                    place += 1
                if _look_up(attributes, points, start, place) >= 0:
                    flags |= HAS_NAMES
                place += 2
                while points[place] != 34:
                    place += 1
                place += 1
            if value & TITLE and title == -1:
                title = place + 1 if points[place] == 62 else -2
            if depth == len(opened):
                return -1, 0, title
            what = value & 7
            values_of_open[depth] = value
            opened[depth] = -1
            if what != TRANSPARENT and what != REMOVED and unseen == 0:
                opened[depth] = count
                token = tokens[count]
                token.kind, token.value, token.flags, token.first, token.end = (
                    START,
                    value,
                    flags,
                    first,
                    place,
                )
                token.role = value >> ROLE_BITS & 7
                count += 1
            unseen += what in (REMOVED, UNSEEN)
            depth += 1
            is_end = points[place] == 47  # closed at once
            place += 1 + is_end
        if is_end:
            depth -= 1
            value = values_of_open[depth]
            what = value & 7
            unseen -= what in (REMOVED, UNSEEN)
            if opened[depth] >= 0:
                tokens[count].kind, tokens[count].value = END, value
                tokens[int(opened[depth])].other = count
                count += 1
    return count, size, title


# -- a page --------------------------------------------------------------------------------------------------

MAX_DEPTH = 2000
"""libxml2 cuts a tree at 2,048 elements inside each other, and says nothing."""
_MAX_OPEN = 1 << 12
PROSE = 60
"""Least characters of plain text in a block of prose."""
_PARSER = etree.HTMLParser(
    encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True
)
_REFERENCE = re.compile("&[^;]*;")
_ATTRIBUTE = re.compile('(=?[^=]*)="([^"]*)" ?')
_CONTROL = bytes.maketrans(b"\x0b\x0c\x1c\x1d\x1e\x1f", b"\n\n    ")
_DROPPED = bytes([*range(1, 9), *range(14, 28)])
"""XML has no control characters; those that are white space become other white space."""
_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts that write a syllable or a word with a character."""
_TAGS = hash_table(
    {tag: _value_of(tag) for tag in (*_EFFECTS, *_KIND_OF_TAG, *_TAG_ROLES, "title", "article", "main")}
)
_ATTRIBUTES = hash_table(dict.fromkeys(ATTRIBUTES, 0))


@cache
def _bits_of_characters() -> np.ndarray:
    """[code points] uint32."""
    bits = np.zeros(0x110000, dtype=np.uint32)
    every = "".join(map(chr, range(0x10000)))
    for pattern, bit in ((r"\s", SPACE), (f"[{_SCRIPTS}]", WIDE)):
        bits[[match.start() for match in re.finditer(pattern, every)]] = bit
    return bits


@dataclass(frozen=True, slots=True)
class Tokens:
    """A page in tokens."""

    title: str
    texts: np.ndarray
    """[characters] uint32: code points of all texts, with the bits of each."""
    tokens: np.ndarray
    """[tokens] TOKEN."""


def read_tokens(html: str) -> Tokens | None:
    """The tokens of a page, as a parser of HTML has repaired it; None for a page without any element.

    Raises:
        UnreadableError: more elements are inside each other than anybody writes.
    """
    root = etree.fromstring(html.encode("utf-8", "replace").translate(_CONTROL, _DROPPED), _PARSER)
    if root is None:
        return None
    root.getroottree().docinfo.clear()  # a page that says it is XHTML is written otherwise
    markup = etree.tostring(root, encoding="unicode", with_tail=False)
    points = np.frombuffer(markup.encode("utf-32-le"), dtype="<u4")
    texts, tokens = np.empty(len(points), dtype=np.uint32), np.zeros(3 * markup.count("<"), dtype=TOKEN)
    opened = np.empty(_MAX_OPEN, dtype=np.int32)
    count, size, title = _scan(
        points, _TAGS, _ATTRIBUTES, _bits_of_characters(), PROSE, tokens, opened, texts
    )
    if count < 0:
        raise UnreadableError(f"the page has more than {MAX_DEPTH} elements inside each other")
    tokens = tokens[:count]
    _set_roles(tokens, markup)
    found = markup[title : markup.index("<", title)] if title >= 0 else ""
    title_text = html_escapes.unescape(found.replace("&#xFFFD;", ""))  # a character that XML lacks
    return Tokens(title_text, texts[:size], tokens)


def _set_roles(tokens: np.ndarray, markup: str) -> None:
    """Fill in the roles of elements with names, and numbers of tag and classes for all with a role."""
    chosen = np.flatnonzero((tokens["flags"] & HAS_NAMES > 0) | (tokens["role"] >= Role.DETAIL))
    firsts, ends, values = (tokens[name][chosen].tolist() for name in ("first", "end", "value"))
    sources = [markup[first:end] for first, end in zip(firsts, ends, strict=True)]
    keys: dict[tuple[str, str], int] = {}
    roles = {}
    for source, value in dict(zip(sources, values, strict=True)).items():
        tag, _, listed = source.partition(" ")
        attributes = dict(_ATTRIBUTE.findall(_REFERENCE.sub(" ", listed) if "&" in listed else listed))
        role = role_of_element(tag, value >> ROLE_BITS & 7, value & 7 in (INLINE, LINK), attributes)
        roles[source] = role, keys.setdefault((tag, attributes.get("class", "")), len(keys))
    if sources:
        tokens["role"][chosen], tokens["key"][chosen] = zip(*map(roles.__getitem__, sources), strict=True)
