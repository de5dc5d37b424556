"""Labelled text for the filter of personal data: what must be masked, and what looks like it and must stay.

Numbers are drawn from a fixed seed; telephone numbers are valid ones of 41 countries in the formats people write, made
with libphonenumber's example numbers.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

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
Made = tuple[str, tuple[str, ...]]
"""Personal data, and the regions that it needs."""


def examples(count: int, seed: int = 0) -> Iterator[Example]:
    """`count` examples of every group."""
    draw = random.Random(seed)
    for group, (make, kind, places) in POSITIVES.items():
        for number in range(count):
            value, regions = make(draw, REGIONS[number % len(REGIONS)])
            place = draw.choice(places)
            yield Example(group, place % value, place % f"<{kind}>", regions)
    for group, make_plain in NEGATIVES.items():
        for _ in range(count):
            text = draw.choice(NUMBERED) % make_plain(draw)
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


def _international(draw: random.Random, region: str) -> Made:
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
    return draw.choice(forms), ("US", "GB")


def _with_trunk_zero(draw: random.Random, region: str) -> Made:
    region = draw.choice(("DE", "GB", "FR", "NL", "CH", "AT", "SE", "AU"))
    code, _, rest = phonenumbers.format_number(
        _number(draw, region), PhoneNumberFormat.INTERNATIONAL
    ).partition(" ")
    return f"{code} (0){draw.choice(('', ' '))}{rest}", ("US", "GB")


def _national(draw: random.Random, region: str) -> Made:
    written = phonenumbers.format_number(_number(draw, region), PhoneNumberFormat.NATIONAL)
    if region == "US":
        plain = "".join(filter(str.isdigit, written))
        parts = plain[:3], plain[3:6], plain[6:]
        written = draw.choice(
            (written, "-".join(parts), ".".join(parts), " ".join(parts), "1-" + "-".join(parts))
        )
    return written, (region,)


def _bare(draw: random.Random, region: str) -> Made:
    written, regions = _national(draw, region)
    return "".join(filter(str.isdigit, written)), regions


def _word(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9)))


def _form(draw: random.Random, forms: str, **values: object) -> str:
    """One of the forms between bars, with the values."""
    return draw.choice(forms.split("|")).format(**values)


def _host(draw: random.Random) -> str:
    tld = draw.choice(("org", "com", "co.uk", "de", "fr", "museum", "com.br", "xn--p1ai"))
    return f"{draw.choice(('', 'mail.'))}{_word(draw)}{draw.choice(('', '-' + _word(draw)))}.{tld}"


def _email(draw: random.Random, region: str) -> Made:
    name = draw.choice(
        ["{a}.{b}", "{a}", "{a}_{b}", "{a}+{b}", "{a}{n}", "{a}-{b}.{n}", '"{a} {b}"', '"{a}@{b}"']
    )
    return f"{name.format(a=_word(draw), b=_word(draw), n=draw.randrange(100))}@{_host(draw)}", ()


def _foreign_email(draw: random.Random, region: str) -> Made:
    names = ("jörg", "иван.петров", "δοκιμή", "أحمد", "josé.garcía", "łukasz", "राम")
    hosts = ("bücher.de", "пример.рф", "παράδειγμα.ελ", "مثال.شبكة", "ñandú.cl", "zażółć.pl", "उदाहरण.भारत")
    number = draw.randrange(len(names))
    return f"{names[number]}@{hosts[number]}", ()


def _hidden_email(draw: random.Random, region: str) -> Made:
    signs = (
        " [at] ~.|(at)~(dot)| (at) ~ (dot) |[at]~[dot]| {at} ~.| [@] ~.|(@)~.| AT ~ DOT | <at> ~ <dot> "
        "| (AT) ~ (DOT) | [at] ~ dot "
    )
    at, dot = draw.choice(signs.split("|")).split("~")
    name = draw.choice(("{a}", "{a}.{b}", "{a}{n}"))
    name = name.format(a=_word(draw), b=_word(draw), n=draw.randrange(100))
    tld, host = draw.choice(("org", "com", "de")), _word(draw)
    written = f"{name}{at}{host}{dot}{tld}"
    return written.upper() if at == " AT " else written, ()


def _ipv4(draw: random.Random, region: str) -> Made:
    first = draw.choice([n for n in range(11, 200) if n not in (100, 127, 169, 172, 192, 198)])
    return ".".join(map(str, (first, *(draw.randrange(33, 256) for _ in range(3))))), ()


def _ipv6(draw: random.Random, region: str) -> Made:
    groups = [f"{draw.randrange(1, 1 << 16):x}" for _ in range(8)]
    head = draw.choice(("2001:4860", "2606:4700", "2a00:1450", "2A02:908"))
    tails = (f":{':'.join(groups[:6])}", f"::{groups[0]}", f":{groups[0]}::{':'.join(groups[1:4])}")
    return head + draw.choice(tails), ()


def _iban(draw: random.Random, region: str) -> Made:
    account = "".join(draw.choices(string.digits, k=18))
    number = "DE" + mod_97_10.calc_check_digits(account + "DE") + account
    return draw.choice((number, " ".join(number[i : i + 4] for i in range(0, 22, 4)))), ()


def _card(draw: random.Random, region: str) -> Made:
    body = draw.choice(("4", "51", "2221", "37", "6011")) + "".join(draw.choices(string.digits, k=18))
    body = body[: 14 if body.startswith("37") else 15]
    number = body + luhn.calc_check_digit(body)
    cuts = (0, 4, 10, 15) if len(number) == 15 else (0, 4, 8, 12, 16)
    parts = [number[a:b] for a, b in pairwise(cuts)]
    return draw.choice((number, " ".join(parts), "-".join(parts))), ()


def _key(draw: random.Random, region: str) -> Made:
    def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        return "".join(draw.choices(alphabet, k=count))

    body = "\n".join(letters(64) for _ in range(3))
    return draw.choice(
        (
            "AKIA" + letters(16, string.ascii_uppercase + "234567"),
            "ghp" + "_" + letters(36),
            "xox" + "b-" + letters(12, string.digits) + "-" + letters(24),
            "AIza" + letters(35),
            "sk" + "_live_" + letters(24),
            "eyJ" + letters(20) + ".eyJ" + letters(40) + "." + letters(43),
            "-----BEGIN RSA " + f"PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----",
        )
    ), ()


def _moment(draw: random.Random) -> datetime:
    return datetime(1950, 1, 1) + timedelta(seconds=draw.randrange(3_000_000_000))


_DATES = "%Y-%m-%d|%d.%m.%Y|%d/%m/%Y|%m/%d/%Y|%d-%m-%Y|%Y/%m/%d|%Y.%m.%d|%Y%m%d|%d.%m.%y|%m-%d-%Y"
_TIMESTAMPS = (
    "%Y-%m-%d %H:%M:%S|%Y-%m-%dT%H:%M:%SZ|%d.%m.%Y %H:%M|%d/%m/%Y %H.%M|%Y%m%d%H%M%S|%Y%m%dT%H%M%S|%Y%m%d-%H%M%S"
    "|%Y%m%d %H%M|%Y-%m-%d %H:%M:%S.%f|%d/%b/%Y:%H:%M:%S +0000|%Y-%m-%d %H:%M:%S +0530|%d.%m.%Y, %H.%M Uhr"
    "|%m/%d/%Y %I:%M %p|%Y-%m-%d_%H-%M-%S|%Y-%m-%dT%H:%M:%S+02:00|%H:%M:%S %d-%m-%Y"
)


def _date(draw: random.Random) -> str:
    one, other = (_moment(draw).strftime(draw.choice(_DATES.split("|"))) for _ in range(2))
    return draw.choice((one, one, f"{one} - {other}", f"{one}, {other}", f"{one}/{other}"))


def _timestamp(draw: random.Random) -> str:
    return _moment(draw).strftime(draw.choice(_TIMESTAMPS.split("|")))


def _clock(draw: random.Random) -> str:
    one, other = _moment(draw), _moment(draw)
    form = draw.choice(("%H:%M", "%H:%M:%S", "%H.%M", "%H:%M:%S.%f"))
    return one.strftime(form) + draw.choice(("", other.strftime("-" + form), other.strftime(" - " + form)))


def _version(draw: random.Random) -> str:
    parts = ".".join(str(draw.randrange(256)) for _ in range(draw.choice((3, 4, 4, 4, 5))))
    return _form(draw, "version |v|Version: |ver. |Chrome/|release |build |Firmware ") + parts


def _section(draw: random.Random) -> str:
    number = ".".join(str(draw.randrange(1, 20)) for _ in range(draw.choice((2, 3, 4, 4))))
    return _form(draw, "Fig. |Section |§ |Figure |Table |see |Clause ||Abb. |in ") + number


def _large(draw: random.Random) -> str:
    value = draw.randrange(10**6, 10 ** draw.choice((8, 9, 10, 11, 12, 13)))
    spaces, dots = (f"{value:,}".replace(",", sign) for sign in " .")
    return _form(draw, "{n}|{n:,}|{spaces}|{dots}", n=value, spaces=spaces, dots=dots)


def _publication(draw: random.Random) -> str:
    body = "978" + "".join(draw.choices(string.digits, k=9))
    number = body + ean.calc_check_digit(body)
    serial = "".join(draw.choices(string.digits, k=7))
    serial += issn.calc_check_digit(serial)
    short = isbn.to_isbn10(number)
    forms = (
        "ISBN {book}|ISBN-13: {n}|{book}|ISBN {old}|ISBN: {short}|ISSN {issn}|doi:10.{a}/{b}.{c}.5{s}"
        "|https://doi.org/10.{d}/s{s}-0{n:.2}-{middle}-4|PMID {e}|arXiv:{f}.{g:05}"
    )
    limits = ((1000, 9999), (0, 10**8), (0, 3000), (1000, 9999), (10**7, 10**8), (1000, 2412), (0, 10**5))
    drawn = {name: draw.randrange(*own) for name, own in zip("abcdefg", limits, strict=True)}
    parts = {"n": number, "book": isbn.format(number), "short": short, "old": isbn.format(short)}
    return _form(draw, forms, issn=issn.format(serial), s=serial[:5], middle=number[4:9], **parts, **drawn)


def _coordinates(draw: random.Random) -> str:
    forms = "{a:.6f}, {b:.6f}|{a:.4f} {b:.4f}|{c:.7f}°N {d:.7f}°E|{e}°{m[0]}′{m[1]}″N {f}°{m[2]}′W|{c:.5f} {d:.5f}"
    a, b = draw.uniform(-90, 90), draw.uniform(-180, 180)
    minutes = [draw.randrange(60) for _ in range(3)]
    return _form(draw, forms, a=a, b=b, c=abs(a), d=abs(b), e=int(abs(a)), f=int(abs(b)), m=minutes)


def _price(draw: random.Random) -> str:
    value = draw.randrange(10**6, 10**10)
    dots, spaces = f"{value:,}".replace(",", "."), f"{value:,}".replace(",", " ")
    forms = "${n:,}.50|€ {dots},00|£{n}|{spaces} €|USD {n}|{dots} EUR|$ {cents:.2f}|¥{n}"
    return _form(draw, forms, n=value, dots=dots, spaces=spaces, cents=value / 100)


def _range(draw: random.Random) -> str:
    a = draw.randrange(1000, 2025)
    b = a + draw.randrange(1, 90)
    forms = "{a}-{b}|{a}–{b}|{a}/{b}|pp. {a}-{b}|{a} - {b}|{a}-{b}, {c}-{d}|{a} {b}"
    return _form(draw, forms, a=a, b=b, c=a + 5, d=b + 8)


def _code(draw: random.Random) -> str:
    digits = "".join(draw.choices(string.digits, k=24))
    hexes = "".join(draw.choices("0123456789abcdef", k=32))
    one, two, three, four = (digits[start : start + 4] for start in range(0, 16, 4))
    row = " ".join(str(draw.randrange(100)) for _ in range(12))
    goals, share = draw.randrange(10), draw.random()
    forms = (
        "order no. {n}|#{n}|{uuid}|{mac}|https://x.org/a/{n}-{after}.html|id={n}|{zip}-{ext}|A{n}B|{ssn}|{row}"
        "|1 2 3 4 5 6 7 8 9 10 11 12|3-0 2-1 1-1 4-2 {goals}-0 2-2|{share:.12f}|{one}-{two}-{three}-{four}"
    )
    return _form(
        draw,
        forms,
        n=digits[:10],
        uuid="-".join(hexes[a:b] for a, b in pairwise((0, 8, 12, 16, 20, 32))),
        mac=":".join(hexes[i : i + 2] for i in range(0, 12, 2)),
        after=digits[10:13],
        zip=digits[:5],
        ext=digits[5:9],
        ssn=f"{digits[:3]}-{digits[3:5]}-{digits[5:9]}",
        row=row,
        goals=goals,
        share=share,
        one=one,
        two=two,
        three=three,
        four=four,
    )


def _at_sign(draw: random.Random) -> str:
    forms = (
        "@{a}|{b}@{c}|12 apples @ {n}.50|f(x)@{d}|look at the {e} dot com bubble|(at) {f}. Next"
        "|he said (at last) that it was so|std::vector, a::b, 10:11:12:13"
    )
    a, b, c, n = _word(draw), _word(draw), _word(draw), draw.randrange(9)
    return _form(draw, forms, a=a, b=b, c=c, n=n, d=_word(draw), e=_word(draw), f=_word(draw))


_PLAIN = Callable[[random.Random], str]
_MAKER = Callable[[random.Random, str], Made]
_NEEDS_SPACE = tuple(place for place in PLACES if not place.startswith(("请", "before,")))
POSITIVES: dict[str, tuple[_MAKER, str, tuple[str, ...]]] = {
    "phones, international": (_international, "PHONE", PLACES),
    "phones, +CC (0)": (_with_trunk_zero, "PHONE", PLACES),
    "phones, national": (_national, "PHONE", _NEEDS_SPACE),
    "phones, national, announced": (_national, "PHONE", ANNOUNCED),
    "phones, bare digits, announced": (_bare, "PHONE", ANNOUNCED),
    "emails": (_email, "EMAIL", PLACES),
    "emails, other scripts": (_foreign_email, "EMAIL", _NEEDS_SPACE),
    "emails, spelled out": (_hidden_email, "EMAIL", _NEEDS_SPACE),
    "ips, version 4": (_ipv4, "IP", PLACES),
    "ips, version 6": (_ipv6, "IP", _NEEDS_SPACE),
    "ibans": (_iban, "IBAN", _NEEDS_SPACE),
    "cards": (_card, "CARD", _NEEDS_SPACE),
    "keys": (_key, "KEY", _NEEDS_SPACE),
}
"""By group: how it is made, what masks it, and the sentences around it."""
NEGATIVES: dict[str, _PLAIN] = {
    "dates": _date,
    "timestamps": _timestamp,
    "clock times": _clock,
    "versions": _version,
    "sections and figures": _section,
    "large numbers": _large,
    "ISBN, ISSN, DOI": _publication,
    "coordinates": _coordinates,
    "prices": _price,
    "ranges and years": _range,
    "codes and rows": _code,
    "@ and ::": _at_sign,
}
