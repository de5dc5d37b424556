"""Mask e-mail addresses, telephone numbers, IP addresses and bank account numbers (IBAN).

What looks like one and is not stays: IBANs must have their country's form and check digits, telephone numbers must be
possible in their country's numbering plan, IP addresses must be public. A version or section number such as 1.2.3.4
is also a public IP address, and nothing in it tells the two apart; switch `ips` off for text about software.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

from data_prep.document import Document
from data_prep.filters.base import Apply, FilterConfig, Passed

# All patterns start where no character of their own kind precedes, so that a run is tried once and not from each of
# its characters.
_EMAIL = re.compile(
    r"(?<![\w.%+'-])[\w%+'-][\w.%+'-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_]{2,63}(?![\w@])"
)
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}", re.ASCII)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4})?(?![\w:]|\.\d)", re.ASCII)
_NUMBER_RUN = re.compile(r"[+(]{0,2}\d[\d \t\xa0().\-\u2010-\u2015/]{5,}", re.ASCII)
MIN_PHONE_DIGITS = 7
MAX_TRIES = 1000
"""Telephone numbers tried in one run of digits and separators; a longer run is a table."""
CONTEXT_CHARACTERS = 2
"""Seen by the matcher around a run, because it refuses numbers that continue a word."""
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses given out so far (RFC 4291, section 2.4; IANA); `a::b` of program text is none."""

Spans = Iterator[tuple[int, int]]


class Placeholders(BaseModel):
    """What stands for what was masked. Without digits and `@`, so that it is never masked itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    emails: str = "<EMAIL>"
    ibans: str = "<IBAN>"
    ips: str = "<IP>"
    phones: str = "<PHONE>"

    @field_validator("*")
    @classmethod
    def _inert(cls, placeholder: str) -> str:
        if re.search(r"[\d@]", placeholder):
            raise ValueError("a placeholder holds neither digits nor @, or it would be masked itself")
        return placeholder


class PiiConfig(FilterConfig):
    """What is masked, and by what."""

    kind: Literal["pii"] = "pii"
    emails: bool = True
    ibans: bool = True
    """International bank account numbers with correct check digits, with or without spaces."""
    ips: bool = True
    """IP addresses, versions 4 and 6."""
    public_ips_only: bool = True
    """Leave private, local, documentation and other reserved addresses alone: they lead to nobody."""
    phones: bool = True
    """Telephone numbers that are possible in their country."""
    phone_regions: tuple[str, ...] = ("US", "GB")
    """ISO 3166 codes of the countries whose numbers are recognised as written inside the country; others are
    recognised with `+` and country code."""
    placeholders: Placeholders = Placeholders()

    @field_validator("phone_regions")
    @classmethod
    def _known(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        from phonenumbers import SUPPORTED_REGIONS

        unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(f"{unknown[0]} is no ISO 3166 code of a country with a known numbering plan")
        return regions


def build(config: PiiConfig) -> Apply:
    """A filter that changes text and drops nothing; counts `emails`, `ibans`, `ips` and `phones`."""
    finders = [
        (name, find, getattr(config.placeholders, name))
        for name, find in FINDERS.items()
        if getattr(config, name)
    ]

    def apply(document: Document) -> Passed:
        counts: Counter[str] = Counter()
        before, text = None, document.text
        # A mask can free what stood beside it. Every mask takes digits or an @ and brings none: this ends.
        while text != before:
            before = text
            for name, find, placeholder in finders:
                text, count = _mask(text, find(text, config), placeholder)
                counts[name] += count
        return Passed.with_text(document, text, **+counts)

    return apply


def _mask(text: str, spans: Spans, placeholder: str) -> tuple[str, int]:
    pieces, end, count = [], 0, 0
    for start, stop in spans:
        pieces += [text[end:start], placeholder]
        end = stop
        count += 1
    return ("".join([*pieces, text[end:]]), count) if count else (text, 0)


def _emails(text: str, config: PiiConfig) -> Spans:
    return (match.span() for match in _EMAIL.finditer(text)) if "@" in text else iter(())


def _ibans(text: str, config: PiiConfig) -> Spans:
    for match in _IBAN.finditer(text):
        # The pattern may run on into the next words; groups are given back until the check digits fit.
        for stop in range(match.end(), match.start() + 14, -1):
            complete = not text[stop : stop + 1].isalnum() and text[stop - 1].isalnum()
            if complete and _is_iban(text[match.start() : stop]):
                yield match.start(), stop
                break


def _is_iban(number: str) -> bool:
    from stdnum import iban

    return iban.is_valid(number)


def _ips(text: str, config: PiiConfig) -> Spans:
    found = list(_IPV4.finditer(text))
    if ":" in text:
        found += _IPV6.finditer(text)
    spans = sorted(match.span() for match in found if _is_ip(match.group(), config.public_ips_only))
    end = 0
    for start, stop in spans:
        if start >= end:
            yield start, stop
            end = stop


def _is_ip(candidate: str, public_only: bool) -> bool:
    try:
        address = ipaddress.ip_address(candidate)
    except ValueError:
        return False
    if not public_only:
        return True
    return address.is_global and (address.version == 4 or address in _GLOBAL_UNICAST)


def _phones(text: str, config: PiiConfig) -> Spans:
    for run in _NUMBER_RUN.finditer(text):
        if sum(map(str.isdigit, run.group())) >= MIN_PHONE_DIGITS:
            yield from _phones_in(text, run.span(), config.phone_regions)


def _phones_in(text: str, run: tuple[int, int], regions: tuple[str, ...]) -> Spans:
    from phonenumbers import PhoneNumberMatcher

    start = max(run[0] - CONTEXT_CHARACTERS, 0)
    window = text[start : run[1] + CONTEXT_CHARACTERS]
    international: tuple[str | None, ...] = (None,) if "+" in window else ()
    found = {
        (start + match.start, start + match.end)
        for region in regions or international
        for match in PhoneNumberMatcher(window, region, max_tries=MAX_TRIES)
    }
    end = run[0]
    for first, last in sorted(found):
        if end <= first and last <= run[1]:
            yield first, last
            end = last


FINDERS: MappingProxyType[str, Callable[[str, PiiConfig], Spans]] = MappingProxyType(
    {"emails": _emails, "ibans": _ibans, "ips": _ips, "phones": _phones}
)
"""What finds each kind, in the order in which they are masked: ascending spans that do not overlap."""
