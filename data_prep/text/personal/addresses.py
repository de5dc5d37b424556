"""E-mail addresses (plain, quoted, in any script, spelled out against harvesters) and IP addresses of both versions.

An e-mail address is found from its `@` outwards. In scripts without spaces between words (Chinese, Japanese, Thai) an
address in Latin letters ends where they end.

Four numbers with full stops may be a version, a section, a figure, or an IP address. They are an address when a part is
32 or more (one address in 4,000 has only smaller ones) and the second is not 0, as versions have it (91.0.44.124); when
all parts are the same (8.8.8.8); or when a port, a prefix length, a URL or the talk of addresses goes with them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

import regex

from data_prep.text.personal import Spans, words

MAX_LOCAL_CHARACTERS = 128
"""Looked at before an `@`. RFC 5321 allows 64; return paths that hold another address are longer."""
MAX_CUE_DISTANCE = 60
"""A word such as "mail" so many characters before `NAME at HOST dot TLD` makes it an address."""

_AT_SIGNS = "@\uff20\ufe6b"
_AT = regex.compile(f"[{_AT_SIGNS}]")
_LATIN = r"A-Za-z0-9\u00aa-\u024f\u1e00-\u1eff"
_LOCALS = tuple(
    map(
        regex.compile,
        (
            rf"[{_LATIN}_.%+'\p{{M}}-]+\Z",
            r"(?<![A-Za-z0-9_])\"[^\"\r\n]+\"\Z",
            r"[\p{L}\p{N}\p{M}_.%+'-]+\Z",
        ),
    )
)
_NOT_FIRST = ".'%-"
_LATIN_LABEL = rf"[{_LATIN}](?:[{_LATIN}_-]{{0,61}}[{_LATIN}])?+"
_LABEL = rf"(?:{_LATIN_LABEL}|\p{{L}}(?:[\p{{L}}\p{{N}}\p{{M}}-]{{0,61}}[\p{{L}}\p{{N}}\p{{M}}])?+)"
_TLD = r"(?:xn--[A-Za-z0-9-]{2,59}+|[A-Za-z]{2,63}+|(?![A-Za-z])\p{L}[\p{L}\p{M}]{1,62}+)"
_END = r"(?![A-Za-z0-9_@])"
_DOMAIN = regex.compile(
    rf"(?!\dx\.(?:png|jpe?g|gif|svg|webp)\b)(?:{_LABEL}[.\u3002\uff0e\uff61])+{_TLD}{_END}"
    r"|\[(?:\d{1,3}(?:\.\d{1,3}){3}|IPv6:[0-9A-Fa-f:.]+)\]"
)
_ENCODED_AT = re.compile(r"&(?:#0{0,5}64|#[xX]0{0,4}40|commat);|%(?:25)?40")
"""An `@` as an HTML entity or as in an address of the web."""
_ENCODED_DOT = r"(?:\.|&(?:#0{0,5}46|#[xX]0{0,4}2[eE]|period);|%(?:25)?2[eE])"
_ENCODED_LOCAL = regex.compile(rf"(?:[{_LATIN}_.+'\p{{M}}-]|{_ENCODED_DOT})+\Z")
_ENCODED_DOMAIN = regex.compile(rf"(?!\dx\.)(?:{_LABEL}{_ENCODED_DOT})+{_TLD}{_END}")

_AT_WORDS = (
    "at|ät|@|arroba|arobase|chiocciola|klammeraffe|małpa|zavináč|kukac|snabel-?a|apestaartje|собака|эт"
)
_DOT_WORDS = r"dot|\.|punkt|punto|point|ponto|punt|tečka|kropka|pont|точка"
_EITHER_CASE = "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in _AT_WORDS)
# re finds a set of first characters several times as fast as regex does, without (?i).
_BRACKETED_AT = re.compile(rf"[\[({{<]\s{{0,2}}(?:{_EITHER_CASE})\s{{0,2}}[\])}}>]")
_SPELLED_AT = regex.compile(r"(?<=\w) +(?:at|AT) +(?=\w)")
_SPELLED_DOMAIN = regex.compile(r"(?:[A-Za-z0-9-]++ +(?:dot|DOT) +)+(?:[a-z]{2,24}+|[A-Z]{2,24}+)(?!\w)")
_LOCAL_DOT = rf"(?:\.|\s{{0,2}}[\[({{<]\s?(?:{_DOT_WORDS})\s?[\])}}>]\s{{0,2}}|\s(?:dot|DOT)\s)"
_HIDDEN_LOCAL = regex.compile(rf"(?i)(?<![\w.%+-])[\w%+-]+(?:{_LOCAL_DOT}[\w%+-]+)*\s{{0,3}}\Z")
_HIDDEN_DOMAIN = regex.compile(
    rf"(?i)\s{{0,3}}(?:{_LABEL}{_LOCAL_DOT})+(?-i:[a-z]{{2,24}}+|[A-Z]{{2,24}}+){_END}"
)
_CUE = regex.compile(r"(?i)mail|contact|write|reach|kontakt|correo|почт|courriel|posta")

_SPACED_AT = regex.compile(r"(?<=\w)(?: @ ?|@ )(?=\w)|(?<=[a-z0-9]) AT (?=[a-z0-9])")
_SPACED_DOMAIN = regex.compile(rf"(?:{_LATIN_LABEL}\.)+[a-z]{{2,24}}+{_END}")
_PERSON = regex.compile(r"[\w+-]+[._+]\w+\Z")


def find_emails(text: str) -> Spans:
    """Addresses with `@`, encoded ones such as `john&#64;x.org` and `john%40x.org`, and those that were spelled out:
    `john [at] x.org`, `JOHN AT X DOT ORG`."""
    found: list[tuple[int, int]] = []
    if any(sign in text for sign in _AT_SIGNS):
        found += [span for at in _AT.finditer(text) if (span := _around(text, at.span(), _LOCALS, _DOMAIN))]
    if "%" in text or "&" in text:
        for at in _ENCODED_AT.finditer(text):
            if span := _around(text, at.span(), (_ENCODED_LOCAL,), _ENCODED_DOMAIN):
                found.append(span)
    # A search for a word with spaces around it stops at every space.
    if "@" in text or ("AT" in text and " AT " in text):
        found += _spaced_out(text)
    for at in _bracketed(text):
        if span := _around(text, at.span(), (_HIDDEN_LOCAL,), _HIDDEN_DOMAIN):
            found.append(span)
    if any(word in text and f" {word} " in text for word in ("dot", "DOT")):
        found += _spelled_out(text)
    return found


def _bracketed(text: str) -> Iterator[re.Match[str]]:
    """`[at]` and the like. Brackets are rare, and a search for one character takes a tenth of any other's time."""
    for bracket in "[({<":
        place = text.find(bracket)
        while place >= 0:
            if match := _BRACKETED_AT.match(text, place):
                yield match
            place = text.find(bracket, place + 1)


def _around(
    text: str, at: tuple[int, int], locals_: Sequence[regex.Pattern[str]], domain: regex.Pattern[str]
) -> tuple[int, int] | None:
    host = domain.match(text, at[1])
    if not host:
        return None
    before = text[max(at[0] - MAX_LOCAL_CHARACTERS, 0) : at[0]]
    name = next(filter(None, (local.search(before) for local in locals_)), None)
    kept = name.group().lstrip(_NOT_FIRST) if name else ""
    return (at[0] - len(kept), host.end()) if kept.strip() else None


def _spelled_out(text: str) -> Spans:
    """Find addresses in words. Capitals or the talk of mail must say that no place is meant ("at a site dot com")."""
    for at in _SPELLED_AT.finditer(text):
        host = _SPELLED_DOMAIN.match(text, at.end())
        span = _around(text, at.span(), (_HIDDEN_LOCAL,), _SPELLED_DOMAIN) if host else None
        if host and span:
            shouted = "AT" in at.group() and " DOT " in host.group()
            if shouted or _CUE.search(text, max(span[0] - MAX_CUE_DISTANCE, 0), span[0]):
                yield span


def _spaced_out(text: str) -> Spans:
    """`john.doe @ x.org`, `john AT x.org`: capitals, the name of a mailbox, or the talk of mail must say that no place
    is meant."""
    for at in _SPACED_AT.finditer(text):
        if span := _around(text, at.span(), (_HIDDEN_LOCAL,), _SPACED_DOMAIN):
            announced = _CUE.search(text, max(span[0] - MAX_CUE_DISTANCE, 0), span[0])
            if announced or "@" not in at.group() or _PERSON.fullmatch(text[span[0] : at.start()]):
                yield span


# -- IP addresses --------------------------------------------------------------------------------------------

MAX_IP_CUE_DISTANCE = 40
"""Words about addresses are searched in so many characters before a number."""
SMALL_PART = 32
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses given out so far (RFC 4291, section 2.4; IANA); `a::b` of program text is none."""

# Found by signs that are rare in text, and matched from the beginning.
_V4_MIDDLE = regex.compile(r"\.\d{1,3}\.\d{1,3}\.\d", regex.ASCII)
_V4 = regex.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d|-\d)", regex.ASCII)
_V6_MIDDLE = regex.compile(r":[0-9A-Fa-f]{0,4}:")
_V6 = regex.compile(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{1,4})?(?![\w:]|\.\d)"
)

_NUMBERED = regex.compile(
    rf"(?:\b(?:{words('numbered')})"
    r"s?[.:]?|§+|第)\s?(?:[0-9.]+\s?(?:,|and|to|und|et|y|и|[-\u2013])\s?)*[(\"']?\Z",
    regex.IGNORECASE,
)
_PRODUCT = regex.compile(r"[A-Za-z]/\Z")
"""`Chrome/91.0.44.7`, and not `//8.8.8.8`."""
_ADDRESS_CUE = regex.compile(rf"(?i)\b(?:{words('address')})\b|地址|伺服器|服务器|://")
_ADDRESS_TAIL = regex.compile(r":\d{2,5}\b|/\d{1,2}\b(?!/)|/[a-z]")


def find_ips(text: str, public_only: bool) -> Spans:
    """Addresses; with `public_only` those that are routed on the internet."""
    found: list[tuple[int, int]] = []
    for pattern, middle, back in ((_V4, _V4_MIDDLE, 3), (_V6, _V6_MIDDLE, 4)):
        end = 0
        for hint in middle.finditer(text, overlapped=True):
            if hint.start() >= end and (match := _from_hint(pattern, text, hint.start(), back)):
                end = match.end()
                if _is_ip(match.group(), public_only) and (pattern is _V6 or _is_meant(text, match.span())):
                    found.append(match.span())
    return found


def _from_hint(pattern: regex.Pattern[str], text: str, hint: int, back: int) -> regex.Match[str] | None:
    """The match whose first separator is at `hint`, with at most `back` digits before it."""
    start = hint
    while start > max(hint - back, 0) and text[start - 1] in "0123456789abcdefABCDEF":
        start -= 1
    return pattern.match(text, start)


def _is_ip(candidate: str, public_only: bool) -> bool:
    try:
        address = ipaddress.ip_address(candidate)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return not public_only or address.ipv4_mapped.is_global
        return not public_only or (address.is_global and address in _GLOBAL_UNICAST)
    return not public_only or address.is_global


def _is_meant(text: str, span: tuple[int, int]) -> bool:
    """Whether four numbers with full stops are an address and not the number of a version or a section."""
    before = text[max(span[0] - MAX_IP_CUE_DISTANCE, 0) : span[0]]
    if _PRODUCT.search(before) or _NUMBERED.search(before):
        return False
    parts = text[slice(*span)].split(".")
    if len(set(parts)) == 1 or (max(map(int, parts)) >= SMALL_PART and parts[1] != "0"):
        return True
    return bool(_ADDRESS_TAIL.match(text, span[1]) or _ADDRESS_CUE.search(before))
