"""E-mail addresses: plain, quoted, in any script, and spelled out against harvesters.

An address is found from its `@` outwards. Where no spaces stand between words (Chinese, Japanese, Thai) an address in
Latin letters ends where they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import regex

MAX_LOCAL_CHARACTERS = 128
"""Looked at before an `@`. RFC 5321 allows 64; return paths that hold another address are longer."""
MAX_CUE_DISTANCE = 60
"""Characters before `NAME at HOST dot TLD` in which a word such as "mail" makes it an address."""

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

Spans = Iterator[tuple[int, int]]


def find_emails(text: str) -> Spans:
    """Addresses with `@`, encoded ones such as `john&#64;x.org` and `john%40x.org`, and those that were spelled out:
    `john [at] x.org`, `JOHN AT X DOT ORG`."""
    found = []
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
    end = 0
    for start, stop in sorted(found):
        if start >= end:
            yield start, stop
            end = stop


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
    """Where all is in words, capitals or the talk of mail must say that no place is meant ("at a site dot com")."""
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
