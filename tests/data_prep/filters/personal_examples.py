"""Telephone numbers, and what looks like personal data and is none, drawn from a fixed seed.

The numbers are valid ones of 41 countries in the formats people write, made with libphonenumber's example numbers.
"""

import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import phonenumbers
from phonenumbers import PhoneNumberFormat, PhoneNumberType
from stdnum import ean, isbn, issn

REGIONS = tuple(
    re.findall("..", "USGBDEFRITESPTNLBECHATPLCZHUROBGGRTRRUUASENODKFIIEINCNJPKRTWHKSGIDTHVNAUNZZABRMXIL")
)
_SENTENCES = """
    Write to us: %s.~%s~Founded 1998 (%s) by two brothers~see 12-13 (%s)~[%s]~Room 12345 (%s), 2nd floor
    ~The clerk left a note, and %s stood on it in red ink; nothing else was found in 2019.~Name: J. Doe; %s; open 9-17
    ~- %s\n- none~„%s“~请记下%s谢谢~before,%s,after
"""
PLACES = _SENTENCES.strip().replace("\n    ~", "~").split("~")
"""Sentences around any personal data."""
SPACED_PLACES = [place for place in PLACES if not place.startswith(("请", "before,"))]
ANNOUNCED = [
    "Tel. %s",
    "call %s now",
    "Phone: %s, fax: none",
    "(mobile %s)",
    "电话：%s",
    "Тел.: %s",
    "Teléfono %s o visite",
]
"""Sentences around a number that only its neighbours show to be a telephone number."""
_ROWS = (
    "The log says %s and no more.~%s~(%s)~In 1998, %s was measured at 3 of 12 sites.~a | %s | b~It was %s."
)
NUMBERED = (*_ROWS.split("~"), "between %s, 12 and 40", "%s\tok")
"""Sentences around what is no personal data."""


class Example(NamedTuple):
    group: str
    text: str
    expected: str
    regions: tuple[str, ...]
    """Of telephone numbers in national form."""


def examples(count: int) -> Iterator[Example]:
    """`count` examples of every group."""
    draw = random.Random(0)
    for group, (write, places) in PHONES.items():
        for number in range(count):
            region = REGIONS[number % len(REGIONS)]
            regions = (region,) if "national" in group else ("US", "GB")
            place, phone = draw.choice(places), write(draw, region)
            yield Example(group, place % phone, place % "<PHONE>", regions)
    for group, forms in NEGATIVES.items():
        for _ in range(count):
            text = draw.choice(NUMBERED) % draw.choice(forms.split("|")).format_map(_Values(draw))
            yield Example(group, text, text, ("US", "GB"))


def _number(draw: random.Random, region: str, form: int) -> str:
    """A valid number whose last digits are drawn."""
    kind = draw.choice((PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE))
    while True:
        number = phonenumbers.example_number_for_type(region, kind)
        assert number is not None
        assert number.national_number is not None
        number.national_number += draw.randrange(10**5) - number.national_number % 10**5
        if phonenumbers.is_valid_number(number):
            return phonenumbers.format_number(number, form)


def _abroad(draw: random.Random, region: str) -> str:
    written = _number(draw, region, PhoneNumberFormat.INTERNATIONAL)
    code, _, rest = written.partition(" ")
    forms = (
        written,
        written.replace("-", " "),
        written.replace(" ", "-"),
        written.replace(" ", ".").replace("-", "."),
        _number(draw, region, PhoneNumberFormat.E164),
        f"({code}) {rest}",
        f"00{code[1:]} {rest}",
        f"{written} ext. {draw.randrange(10, 9999)}",
        f"{written} x{draw.randrange(10, 9999)}",
    )
    return draw.choice(forms)


def _with_trunk_zero(draw: random.Random, region: str) -> str:
    region = draw.choice(("DE", "GB", "FR", "NL", "CH", "AT", "SE", "AU"))
    code, _, rest = _number(draw, region, PhoneNumberFormat.INTERNATIONAL).partition(" ")
    return f"{code} (0){draw.choice(('', ' '))}{rest}"


def _national(draw: random.Random, region: str) -> str:
    written = _number(draw, region, PhoneNumberFormat.NATIONAL)
    if region != "US":
        return written
    parts = re.findall(r"\d+", written)
    return draw.choice((written, "-".join(parts), ".".join(parts), " ".join(parts), "1-" + "-".join(parts)))


def _bare(draw: random.Random, region: str) -> str:
    return re.sub(r"\D", "", _national(draw, region))


PHONES: dict[str, tuple[Callable[[random.Random, str], str], Sequence[str]]] = {
    "abroad": (_abroad, PLACES),
    "+CC (0)": (_with_trunk_zero, PLACES),
    "national": (_national, SPACED_PLACES),
    "national, announced": (_national, ANNOUNCED),
    "national, bare digits, announced": (_bare, ANNOUNCED),
}


class _Values(dict[str, Any]):
    """Drawn anew at every mention: `{3-9}` is a number, `{8x}` eight hexadecimal digits, `{word}` one of VALUES."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def __missing__(self, name: str) -> Any:
        if bounds := re.fullmatch(r"(\d+)-(\d+)", name):
            return self._draw.randint(int(bounds[1]), int(bounds[2]))
        if signs := re.fullmatch(r"(\d+)([dx])", name):
            alphabet = string.digits if signs[2] == "d" else "0123456789abcdef"
            return "".join(self._draw.choices(alphabet, k=int(signs[1])))
        return VALUES[name](self._draw)


def _moment(draw: random.Random, forms: str) -> str:
    moment = datetime(1950, 1, 1) + timedelta(seconds=draw.randrange(3_000_000_000))
    return moment.strftime(draw.choice(forms.split("|")))


def _book(draw: random.Random) -> str:
    """A number of thirteen digits."""
    body = f"978{draw.randrange(10**9):09}"
    return body + ean.calc_check_digit(body)


def _serial(draw: random.Random) -> str:
    body = f"{draw.randrange(10**7):07}"
    return issn.format(body + issn.calc_check_digit(body))


def _grouped(draw: random.Random, sign: str, most: int = 13) -> str:
    """A large number in groups of three digits."""
    return f"{draw.randrange(10**6, 10 ** draw.randint(8, most)):,}".replace(",", sign)


def _dotted(draw: random.Random, counts: str, most: int) -> str:
    return ".".join(str(draw.randint(0, most)) for _ in range(int(draw.choice(counts))))


_DATES = "%Y-%m-%d|%d.%m.%Y|%d/%m/%Y|%m/%d/%Y|%d-%m-%Y|%Y/%m/%d|%Y.%m.%d|%Y%m%d|%d.%m.%y|%m-%d-%Y"
_TIMESTAMPS = (
    "%Y-%m-%d %H:%M:%S|%Y-%m-%dT%H:%M:%SZ|%d.%m.%Y %H:%M|%d/%m/%Y %H.%M|%Y%m%d%H%M%S|%Y%m%dT%H%M%S|%Y%m%d-%H%M%S"
    "|%Y%m%d %H%M|%Y-%m-%d %H:%M:%S.%f|%d/%b/%Y:%H:%M:%S +0000|%Y-%m-%d %H:%M:%S +0530|%d.%m.%Y, %H.%M Uhr"
    "|%m/%d/%Y %I:%M %p|%Y-%m-%d_%H-%M-%S|%Y-%m-%dT%H:%M:%S+02:00|%H:%M:%S %d-%m-%Y"
)
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "word": lambda draw: "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))),
    "date": lambda draw: _moment(draw, _DATES),
    "timestamp": lambda draw: _moment(draw, _TIMESTAMPS),
    "clock": lambda draw: _moment(draw, "%H:%M|%H:%M:%S|%H.%M|%H:%M:%S.%f"),
    "version": lambda draw: _dotted(draw, "34445", 255),
    "section": lambda draw: _dotted(draw, "2344", 19),
    "large": lambda draw: _grouped(draw, ""),
    "commas": lambda draw: _grouped(draw, ","),
    "dots": lambda draw: _grouped(draw, "."),
    "spaces": lambda draw: _grouped(draw, " "),
    "price": lambda draw: _grouped(draw, "", 10),
    "book": lambda draw: isbn.format(_book(draw)),
    "short_book": lambda draw: isbn.to_isbn10(_book(draw)),
    "plain_book": _book,
    "serial": _serial,
    "latitude": lambda draw: draw.uniform(-90, 90),
    "longitude": lambda draw: draw.uniform(-180, 180),
    "share": lambda draw: draw.random(),
    "row": lambda draw: " ".join(str(draw.randrange(100)) for _ in range(12)),
}
NEGATIVES = {
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
