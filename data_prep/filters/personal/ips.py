"""IP addresses of both versions, told from version, section and figure numbers by what stands before them.

Four numbers with full stops may be both. They are an address when a part is 32 or more (one address in 4,000 has only
smaller ones) and the second is not 0, as versions have it (91.0.44.124); when all parts are the same (8.8.8.8); or when
a port, a prefix length, a URL or the talk of addresses goes with them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import regex

MAX_CUE_DISTANCE = 40
"""Characters before a number in which words about addresses are looked for."""
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
    r"(?:\b(?:v|ver|version|vers|release|rel|rev|revision|build|update|patch|firmware|driver|kernel|bios|php|java"
    r"|section|sect|sec|subsection|figure|fig|figs|table|tab|chapter|chap|ch|clause|article|art|annex|appendix|app"
    r"|item|para|paragraph|theorem|lemma|definition|proposition|corollary|remark|equation|eq|exercise|example|ex"
    r"|problem|step|part|rule|note|ec|oid|abb|abbildung|abschnitt|kapitel|tabelle|ziffer|absatz|satz|versión|versão"
    r"|versione|wersja|verze|sección|seção|sezione|figura|tabla|tabela|tabella|capítulo|capitolo|rozdział"
    r"|rysunek|rys|раздел|рис|рисунок|глава|таблица|табл|пункт|п|версия|верс)"
    r"s?[.:]?|§+|第)\s?(?:[0-9.]+\s?(?:,|and|to|und|et|y|и|[-\u2013])\s?)*[(\"']?\Z",
    regex.IGNORECASE,
)
_PRODUCT = regex.compile(r"[A-Za-z]/\Z")
"""`Chrome/91.0.44.7`, and not `//8.8.8.8`."""
_ADDRESS_CUE = regex.compile(
    r"(?i)\b(?:ip|ips|ipv4|addr\w*|adress\w*|adres\w*|direcci\w+|indirizz\w+|адрес\w*|servers?|serveurs?|hosts?|dns"
    r"|nameservers?|resolvers?|ping|connect\w*|ports?|via|nodes?|routers?|gateways?|prox(?:y|ies)|clients?|users?"
    r"|logins?|logged|ssh|http|https|ftp|subnets?|networks?|blocked|banned|requests?|traffic|visitors?|attack\w*"
    r"|сервер\w*)\b|地址|伺服器|服务器|://"
)
_ADDRESS_TAIL = regex.compile(r":\d{2,5}\b|/\d{1,2}\b(?!/)|/[a-z]")

Spans = Iterator[tuple[int, int]]


def find_ips(text: str, public_only: bool) -> Spans:
    """Addresses; with `public_only` those that are routed on the internet."""
    found = []
    for pattern, middle, back in ((_V4, _V4_MIDDLE, 3), (_V6, _V6_MIDDLE, 4)):
        end = 0
        for hint in middle.finditer(text, overlapped=True):
            if hint.start() >= end and (match := _from_hint(pattern, text, hint.start(), back)):
                end = match.end()
                if _is_ip(match.group(), public_only) and (pattern is _V6 or _is_meant(text, match.span())):
                    found.append(match.span())
    end = 0
    for start, stop in sorted(found):
        if start >= end:
            yield start, stop
            end = stop


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
    before = text[max(span[0] - MAX_CUE_DISTANCE, 0) : span[0]]
    if _PRODUCT.search(before) or _NUMBERED.search(before):
        return False
    parts = text[slice(*span)].split(".")
    if len(set(parts)) == 1 or (max(map(int, parts)) >= SMALL_PART and parts[1] != "0"):
        return True
    return bool(_ADDRESS_TAIL.match(text, span[1]) or _ADDRESS_CUE.search(before))
