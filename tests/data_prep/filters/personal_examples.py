"""Labelled text for the filter of personal data: what must be masked, and what looks like it and must stay.

Numbers are drawn from a fixed seed; telephone numbers are valid ones of 41 countries in the formats people write, made
with libphonenumber's example numbers.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import phonenumbers
from phonenumbers import PhoneNumberFormat, PhoneNumberType
from stdnum import ean, isbn, issn, luhn
from stdnum.iso7064 import mod_97_10

REGIONS = tuple(
    re.findall("..", "USGBDEFRITESPTNLBECHATPLCZHUROBGGRTRRUUASENODKFIIEINCNJPKRTWHKSGIDTHVNAUNZZABRMXIL")
)


@dataclass(frozen=True, slots=True)
class Example:
    """A text, and what the filter has to make of it."""

    group: str
    """What it shows: `phones, national`, `timestamps`."""
    text: str
    expected: str
    """The text itself where nothing is to be masked."""
    regions: tuple[str, ...] = ("US", "GB")
    """Of the telephone numbers in national form."""


_SENTENCES = """
    Write to us: %s.~%s~Founded 1998 (%s) by two brothers~see 12-13 (%s)~[%s]~Room 12345 (%s), 2nd floor
    ~The clerk left a note, and %s stood on it in red ink; nothing else was found in 2019.~Name: J. Doe; %s; open 9-17
    ~- %s\n- none~„%s“~请记下%s谢谢~before,%s,after
"""
PLACES = tuple(_SENTENCES.strip().replace("\n    ~", "~").split("~"))
"""Sentences around any personal data."""
ANNOUNCED = (
    "Tel. %s",
    "call %s now",
    "Phone: %s, fax: none",
    "(mobile %s)",
    "电话：%s",
    "Тел.: %s",
    "Teléfono %s o visite",
)
"""Sentences around a number that only its neighbours show to be a telephone number."""
_ROWS = (
    "The log says %s and no more.~%s~(%s)~In 1998, %s was measured at 3 of 12 sites.~a | %s | b~It was %s."
)
NUMBERED = (*_ROWS.split("~"), "between %s, 12 and 40", "%s\tok")
"""Sentences around what is no personal data."""


def examples(count: int, seed: int = 0) -> Iterator[Example]:
    """`count` examples of every group."""
    draw = random.Random(seed)
    for group, (forms, kind, places) in POSITIVES.items():
        for number in range(count):
            region = REGIONS[number % len(REGIONS)]
            value = forms(draw, region) if callable(forms) else _fill(draw, forms)
            regions = (region,) if forms in (_national, _bare) else ("US", "GB") if kind == "PHONE" else ()
            place = draw.choice(places)
            yield Example(group, place % value, place % f"<{kind}>", regions)
    for group, forms in NEGATIVES.items():
        for _ in range(count):
            text = draw.choice(NUMBERED) % _fill(draw, forms)
            yield Example(group, text, text)


def _number(draw: random.Random, region: str) -> phonenumbers.PhoneNumber:
    """A valid number whose last digits are drawn."""
    kind = draw.choice((PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE))
    example = phonenumbers.example_number_for_type(region, kind)
    assert example is not None
    while True:
        number = phonenumbers.PhoneNumber()
        number.merge_from(example)
        assert number.national_number is not None
        number.national_number += draw.randrange(10**5) - number.national_number % 10**5
        if phonenumbers.is_valid_number(number):
            return number


def _international(draw: random.Random, region: str) -> str:
    number = _number(draw, region)
    written = phonenumbers.format_number(number, PhoneNumberFormat.INTERNATIONAL)
    code, _, rest = written.partition(" ")
    forms = (
        written,
        written.replace("-", " "),
        written.replace(" ", "-"),
        written.replace(" ", ".").replace("-", "."),
        phonenumbers.format_number(number, PhoneNumberFormat.E164),
        f"({code}) {rest}",
        f"00{code[1:]} {rest}",
        f"{written} ext. {draw.randrange(10, 9999)}",
        f"{written} x{draw.randrange(10, 9999)}",
    )
    return draw.choice(forms)


def _with_trunk_zero(draw: random.Random, region: str) -> str:
    region = draw.choice(("DE", "GB", "FR", "NL", "CH", "AT", "SE", "AU"))
    code, _, rest = phonenumbers.format_number(
        _number(draw, region), PhoneNumberFormat.INTERNATIONAL
    ).partition(" ")
    return f"{code} (0){draw.choice(('', ' '))}{rest}"


def _national(draw: random.Random, region: str) -> str:
    written = phonenumbers.format_number(_number(draw, region), PhoneNumberFormat.NATIONAL)
    if region == "US":
        plain = "".join(filter(str.isdigit, written))
        parts = plain[:3], plain[3:6], plain[6:]
        written = draw.choice(
            (written, "-".join(parts), ".".join(parts), " ".join(parts), "1-" + "-".join(parts))
        )
    return written


def _bare(draw: random.Random, region: str) -> str:
    return "".join(filter(str.isdigit, _national(draw, region)))


# -- forms that are filled with what is drawn ----------------------------------------------------------------


class _Values(dict[str, Any]):
    """Drawn anew at every mention: `{3-9}` is a number, `{8x}` eight of an alphabet, `{word}` one of VALUES."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def __missing__(self, name: str) -> Any:
        if bounds := re.fullmatch(r"(\d+)-(\d+)", name):
            return self._draw.randint(int(bounds[1]), int(bounds[2]))
        if letters := re.fullmatch(r"(\d+)([dxab])", name):
            return "".join(self._draw.choices(ALPHABETS[letters[2]], k=int(letters[1])))
        if name.isupper():
            return self[name.lower()].upper()
        value = VALUES[name](self._draw)
        return _fill(self._draw, value) if isinstance(value, str) else value


def _fill(draw: random.Random, forms: str) -> str:
    """One of the forms between bars, with values."""
    return draw.choice(forms.split("|")).format_map(_Values(draw))


def _moment(draw: random.Random, forms: str) -> str:
    moment = datetime(1950, 1, 1) + timedelta(seconds=draw.randrange(3_000_000_000))
    return moment.strftime(draw.choice(forms.split("|")))


def _iban(draw: random.Random) -> str:
    account = "".join(draw.choices(string.digits, k=18))
    return "DE" + mod_97_10.calc_check_digits(account + "DE") + account


def _card(draw: random.Random) -> str:
    body = draw.choice(("4", "51", "2221", "37", "6011")) + "".join(draw.choices(string.digits, k=18))
    body = body[: 14 if body.startswith("37") else 15]
    number = body + luhn.calc_check_digit(body)
    cuts = (0, 4, 10, 15) if len(number) == 15 else (0, 4, 8, 12, 16)
    return draw.choice(("", " ", "-")).join(number[a:b] for a, b in pairwise(cuts))


def _book(draw: random.Random) -> str:
    """A number of thirteen digits."""
    body = "978" + "".join(draw.choices(string.digits, k=9))
    return body + ean.calc_check_digit(body)


def _serial(draw: random.Random) -> str:
    body = "".join(draw.choices(string.digits, k=7))
    return issn.format(body + issn.calc_check_digit(body))


def _separated(draw: random.Random, sign: str, most: int = 10) -> str:
    """A large number in groups of three digits."""
    return f"{draw.randrange(10**6, 10 ** draw.randint(8, most)):,}".replace(",", sign)


def _dotted(draw: random.Random, counts: tuple[int, ...], part: str) -> str:
    return ".".join([part] * draw.choice(counts))


ALPHABETS: Mapping[str, str] = MappingProxyType(
    {
        "d": string.digits,
        "x": "0123456789abcdef",
        "a": string.ascii_letters + string.digits,
        "b": string.ascii_uppercase + "234567",
    }
)
_DATES = "%Y-%m-%d|%d.%m.%Y|%d/%m/%Y|%m/%d/%Y|%d-%m-%Y|%Y/%m/%d|%Y.%m.%d|%Y%m%d|%d.%m.%y|%m-%d-%Y"
_TIMESTAMPS = (
    "%Y-%m-%d %H:%M:%S|%Y-%m-%dT%H:%M:%SZ|%d.%m.%Y %H:%M|%d/%m/%Y %H.%M|%Y%m%d%H%M%S|%Y%m%dT%H%M%S|%Y%m%d-%H%M%S"
    "|%Y%m%d %H%M|%Y-%m-%d %H:%M:%S.%f|%d/%b/%Y:%H:%M:%S +0000|%Y-%m-%d %H:%M:%S +0530|%d.%m.%Y, %H.%M Uhr"
    "|%m/%d/%Y %I:%M %p|%Y-%m-%d_%H-%M-%S|%Y-%m-%dT%H:%M:%S+02:00|%H:%M:%S %d-%m-%Y"
)
VALUES: Mapping[str, Callable[[random.Random], Any]] = MappingProxyType(
    {
        "word": lambda draw: "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))),
        "name": lambda draw: "{word}|{word}.{word}|{word}{0-99}",
        "tld": lambda draw: "org|com|de",
        "host": lambda draw: "{label}.{domain}|mail.{label}.{domain}",
        "label": lambda draw: "{word}|{word}-{word}",
        "domain": lambda draw: "org|com|co.uk|de|fr|museum|com.br|xn--p1ai",
        "foreign_name": lambda draw: "jörg|иван.петров|δοκιμή|أحمد|josé.garcía|łukasz|राम",
        "foreign_host": lambda draw: (
            "bücher.de|пример.рф|παράδειγμα.ελ|مثال.شبكة|ñandú.cl|zażółć.pl|उदाहरण.भारत"
        ),
        "public": lambda draw: draw.choice(
            [n for n in range(11, 200) if n not in (100, 127, 169, 172, 192, 198)]
        ),
        "group": lambda draw: f"{draw.randrange(1, 1 << 16):x}",
        "head": lambda draw: "2001:4860|2606:4700|2a00:1450|2A02:908",
        "iban": _iban,
        "iban_groups": lambda draw: " ".join(re.findall(".{1,4}", _iban(draw))),
        "card": _card,
        "line": lambda draw: "{64a}\n{64a}\n{64a}",
        "date": lambda draw: _moment(draw, _DATES),
        "timestamp": lambda draw: _moment(draw, _TIMESTAMPS),
        "clock": lambda draw: _moment(draw, "%H:%M|%H:%M:%S|%H.%M|%H:%M:%S.%f"),
        "version": lambda draw: _dotted(draw, (3, 4, 4, 4, 5), "{0-255}"),
        "section": lambda draw: _dotted(draw, (2, 3, 4, 4), "{1-19}"),
        "large": lambda draw: _separated(draw, "", 13),
        "commas": lambda draw: _separated(draw, ",", 13),
        "dots": lambda draw: _separated(draw, ".", 13),
        "spaces": lambda draw: _separated(draw, " ", 13),
        "price": lambda draw: _separated(draw, ""),
        "book": lambda draw: isbn.format(_book(draw)),
        "short_book": lambda draw: isbn.to_isbn10(_book(draw)),
        "plain_book": _book,
        "serial": _serial,
        "latitude": lambda draw: draw.uniform(-90, 90),
        "longitude": lambda draw: draw.uniform(-180, 180),
        "share": lambda draw: draw.random(),
        "row": lambda draw: " ".join(["{0-99}"] * 12),
    }
)
"""Values by name; a text is a form itself."""
_NEEDS_SPACE = tuple(place for place in PLACES if not place.startswith(("请", "before,")))
_NAMES = "{word}.{word}|{word}|{word}_{word}|{word}+{word}|{word}{0-99}|{word}-{word}.{0-99}"
_QUOTED = '"{word} {word}"|"{word}@{word}"'
_SIGNS = " [at] ~.|(at)~(dot)| (at) ~ (dot) |[at]~[dot]| {{at}} ~.| [@] ~.|(@)~.| <at> ~ <dot> "
_MORE_SIGNS = " (AT) ~ (DOT) | [at] ~ dot "
POSITIVES: dict[str, tuple[str | Callable[[random.Random, str], str], str, tuple[str, ...]]] = {
    "phones, international": (_international, "PHONE", PLACES),
    "phones, +CC (0)": (_with_trunk_zero, "PHONE", PLACES),
    "phones, national": (_national, "PHONE", _NEEDS_SPACE),
    "phones, national, announced": (_national, "PHONE", ANNOUNCED),
    "phones, bare digits, announced": (_bare, "PHONE", ANNOUNCED),
    "emails": ("|".join(f"{name}@{{host}}" for name in f"{_NAMES}|{_QUOTED}".split("|")), "EMAIL", PLACES),
    "emails, other scripts": ("{foreign_name}@{foreign_host}", "EMAIL", _NEEDS_SPACE),
    "emails, spelled out": (
        "|".join(
            f"{{name}}{sign.replace('~', '{word}')}{{tld}}" for sign in f"{_SIGNS}|{_MORE_SIGNS}".split("|")
        )
        + "|{NAME} AT {WORD} DOT {TLD}",
        "EMAIL",
        _NEEDS_SPACE,
    ),
    "ips, version 4": ("{public}.{33-255}.{33-255}.{33-255}", "IP", PLACES),
    "ips, version 6": (
        "{head}:{group}:{group}:{group}:{group}:{group}:{group}|{head}::{group}|{head}:{group}::{group}:{group}:{group}",
        "IP",
        _NEEDS_SPACE,
    ),
    "ibans": ("{iban}|{iban_groups}", "IBAN", _NEEDS_SPACE),
    "cards": ("{card}", "CARD", _NEEDS_SPACE),
    "keys": (
        "AKIA{16b}|ghp_{36a}|xoxb-{12d}-{24a}|AIza{35a}|sk_live_{24a}|eyJ{20a}.eyJ{40a}.{43a}"
        "|-----BEGIN RSA " + "PRIVATE KEY-----\n{line}\n-----END RSA PRIVATE KEY-----",
        "KEY",
        _NEEDS_SPACE,
    ),
}
"""By group: its forms, what masks it, and the sentences around it."""
NEGATIVES: dict[str, str] = {
    "dates": "{date}|{date}|{date} - {date}|{date}, {date}|{date}/{date}",
    "timestamps": "{timestamp}",
    "clock times": "{clock}|{clock}-{clock}|{clock} - {clock}",
    "versions": "version {version}|v{version}|Version: {version}|ver. {version}|Chrome/{version}|release {version}"
    "|build {version}|Firmware {version}",
    "sections and figures": "Fig. {section}|Section {section}|§ {section}|Figure {section}|Table {section}"
    "|see {section}|Clause {section}|{section}|Abb. {section}|in {section}",
    "large numbers": "{large}|{commas}|{spaces}|{dots}",
    "ISBN, ISSN, DOI": "ISBN {book}|ISBN-13: {plain_book}|{book}|ISBN {short_book}|ISSN {serial}|PMID {8d}"
    "|doi:10.{1000-9999}/{0-99999999}.{0-3000}.5{5d}|https://doi.org/10.{1000-9999}/s{5d}-097-{5d}-4|arXiv:2412.{5d}",
    "coordinates": "{latitude:.6f}, {longitude:.6f}|{latitude:.4f} {longitude:.4f}|{0-89}.{7d}°N {0-179}.{7d}°E"
    "|{0-89}°{0-59}′{0-59}″N {0-179}°{0-59}′W|{0-89}.{5d} {0-179}.{5d}",
    "prices": "${commas}.50|€ {dots},00|£{price}|{spaces} €|USD {price}|{dots} EUR|$ {price}.{2d}|¥{price}",
    "ranges and years": "{1000-1899}-{1900-2025}|{1000-1899}–{1900-2025}|{1000-1899}/{1900-2025}"
    "|pp. {1000-1899}-{1900-2025}|{1000-1899} - {1900-2025}|{1000-1499}-{1500-1599}, {1600-1899}-{1900-2025}"
    "|{1000-1899} {1900-2025}",
    "codes and rows": "order no. {10d}|#{10d}|{8x}-{4x}-{4x}-{4x}-{12x}|{2x}:{2x}:{2x}:{2x}:{2x}:{2x}|id={10d}"
    "|https://x.org/a/{10d}-{3d}.html|{5d}-{4d}|A{10d}B|{3d}-{2d}-{4d}|{row}|1 2 3 4 5 6 7 8 9 10 11 12"
    "|3-0 2-1 1-1 4-2 {0-9}-0 2-2|{share:.12f}|{4d}-{4d}-{4d}-{4d}",
    "@ and ::": "@{word}|{word}@{word}|12 apples @ {0-8}.50|f(x)@{word}|look at the {word} dot com bubble"
    "|(at) {word}. Next|he said (at last) that it was so|std::vector, a::b, 10:11:12:13",
}
"""By group, the forms of what is no personal data."""
