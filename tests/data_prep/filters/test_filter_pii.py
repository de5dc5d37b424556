"""Personal data is masked, and what only looks like it is not."""

import random
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from string import ascii_uppercase, digits

import phonenumbers
import pytest
import stdnum
from hypothesis import given
from hypothesis import strategies as st
from phonenumbers import PhoneNumberFormat, PhoneNumberType
from pydantic import ValidationError
from stdnum.iso7064 import mod_97_10

from data_prep.text.personal.phones import find_phones
from tests.data_prep.filters.bench import Bench

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
ANNOUNCED = ("Tel. %s", "call %s now", "Phone: %s, fax: none", "(mobile %s)", "电话：%s", "Тел.: %s")
"""Sentences around a number that only its neighbours show to be a telephone number."""
_ROWS = (
    "The log says %s and no more.~%s~(%s)~In 1998, %s was measured at 3 of 12 sites.~a | %s | b~It was %s."
)
NUMBERED = (*_ROWS.split("~"), "between %s, 12 and 40", "%s\tok")
"""Sentences around what is no personal data."""


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to jane.doe+news@mail.example.co.uk, please", "write to <EMAIL>, please"),
        ("mailto:a@b.org?subject=x", "mailto:<EMAIL>?subject=x"),
        ("NL91-ABNA-0417-1643-00.", "<IBAN>."),
        ("gb82 west 1234 5698 7654 32 or be31435411161155", "<IBAN> or <IBAN>"),
        ("020 7946 0958 or 415-555-2671", "<PHONE> or <PHONE>"),
        ("a@b.org 8.8.8.8 a@b.org", "<EMAIL> <IP> <EMAIL>"),
        # What stands around it neither hides it nor goes with it.
        ("((415) 555-2671) (tel. (415) 555-2671)", "(<PHONE>) (tel. <PHONE>)"),
        ("+44 (0)20 7946 0123, (+44) 20 7946 0123, 0044 20 7946 0123", "<PHONE>, <PHONE>, <PHONE>"),
        ("(303)969-8917x45; tel:+1-303-969-8917;ext=12", "<PHONE>; tel:<PHONE>"),
        ("(555) 123-4567, 555-123-4567, 713/853-5025, 01632 960123", "<PHONE>, <PHONE>, <PHONE>, <PHONE>"),
        ("on 10-12-2004 415 555 2671 rang", "on 10-12-2004 <PHONE> rang"),
        ("617 253 1000\n212 418 5310", "<PHONE>\n<PHONE>"),  # one in a line: no column
        (" ".join(f"415-555-{n:04}" for n in range(1000, 1040)), " ".join(["<PHONE>"] * 40)),
        ("JOHN DOT DOE AT X DOT ORG, jane.doe @ x.org", "<EMAIL>, <EMAIL>"),
        ("mail john at example dot org, or jane AT example.org", "mail <EMAIL>, or <EMAIL>"),
        ("x&#64;y.de, j&#46;d&commat;y&#x2e;de; ?m=x%40y.de&n=1", "<EMAIL>, <EMAIL>; ?m=<EMAIL>&n=1"),
        ("'john@x.org'", "'<EMAIL>'"),
        ("::ffff:8.8.8.8, 23.45.67.89:8080", "<IP>, <IP>:8080"),
        ("the server 4.2.2.2", "the server <IP>"),
    ],
)
def test_personal_data_is_masked_and_nothing_around_it(text, masked):
    assert Bench("pii").text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "prices @ 5.00, @handle, user@host, a@b, f(x)@y",
        "from 192.168.0.1, 10.1.2.3, 127.0.0.1 and fe80::1, ::1",
        "999.1.1.1 or 1.2.3.4.5 or 01.02.03.04",
        "std::vector, a::b, 12:30:45, 10:11:12:13",
        "DE88 3704 0044 0532 0130 00, XX89 3704 0044 0532 0130 00",
        "serial A4155552671B",
        "2 345 678 901 people and 4155552671 stars",
        "617 253 1000 dollars, 617 253 1000 US dollars, 617  253  1000",
        "617 253 1000\n 12   7   30\n412 268 2000",
        "logo@2x.png and logo%402x.png",
        "Fig. 3.1.4.1, sections 1.2.3.4, 1.2.3.5 and 45.2.3.6, version: 45.67.89.123, Chrome/91.33.44.124",
        "the year has 365 385/1539 days",
        "works at amazon dot com, LOOK AT x.org",
        "$1 234 567 890, -33.865143, 151.209900, ISBN 0198534531, doi:10.1000/182.2012.5550123",
    ],
)
def test_what_only_looks_like_it_stays(text):
    assert Bench("pii").text(text) == text


def test_masks_are_counted_and_each_kind_can_be_switched_off():
    text = "a@b.org, c@d.org, 8.8.8.8, +49 30 901820, GB82WEST12345698765432"
    counts = {"emails": 2, "ips": 1, "phones": 1, "ibans": 1}
    assert Bench("pii").counts(text) == counts
    for kind in counts:
        left = {other: count for other, count in counts.items() if other != kind}
        assert Bench("pii", **{kind: False}).counts(text) == left


TOKEN = "ghp" + "_" + "aB3" * 12
JWT = "eyJ" + "a1B2" * 5 + ".eyJ" + "c3D4" * 10 + "." + "e5-F" * 11
OTHER_KEYS = ("AKIA" + "B2C3" * 4, "xox" + "b-123456789012-" + "aB3" * 8, "AIza" + "aB3-5" * 7)
ARMOUR = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
KINDS = {
    "EMAIL": "jane.doe@x.org|jane@mail.a-b.co.uk|j_d@x.museum|j+news@x.com.br|j99@x.fr|a-b.7@x.xn--p1ai",
    "SPELLED EMAIL": "jane [at] x.org|jane(at)x(dot)org|j.d (at) x (dot) org|jane[at]x[dot]org|jane {at} x.org"
    "|jane [@] x.org|jane(@)x.org|jane <at> x <dot> org|jane (AT) x (DOT) org|jane [at] x dot org|JANE AT X DOT ORG",
    "UNUSUAL EMAIL": '"jane doe"@x.org|"j@d"@x.org|jörg@bücher.de|иван.петров@пример.рф|δοκιμή@παράδειγμα.ελ'
    "|أحمد@مثال.شبكة|राम@उदाहरण.भारत",
    "IP": "11.33.44.255|199.200.33.45|8.8.8.8",
    "LONG IP": "2001:4860:1:2:3:4:a:b|2606:4700::1234|2A02:908:1f::2:3:4",
    "IBAN": "DE89370400440532013000|DE89 3704 0044 0532 0130 00",
    "CARD": "4111111111111111|5555 5555 5555 4444|2223-0031-2200-3222|3782 822463 10005|6011111111111117",
    "KEY": "|".join([TOKEN, JWT, *OTHER_KEYS, ARMOUR]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_personal_data_is_masked_in_any_sentence(kind):
    masks, mask = Bench("pii", cards=True, keys=True), f"<{kind.split()[-1]}>"
    for value in KINDS[kind].split("|"):
        for place in PLACES if kind in ("EMAIL", "IP") else SPACED_PLACES:
            assert masks.text(place % value) == place % mask


SECRETS = f"4111 1111 1111 1111, not 4111 1111 1111 1112; {TOKEN}\n{ARMOUR}"
WORDS = f"xoxo-gossip-girl, sk-proj-your-key-goes-here-please, glrt-a-long-name-of-things, x{TOKEN}"


@pytest.mark.parametrize(
    ("settings", "text", "masked"),
    [
        ({"public_ips_only": False}, "192.168.0.1 and fe80::1", "<IP> and <IP>"),
        # Numbers as written inside a country need its region.
        ({}, "Tel. 030 901820", "Tel. 030 901820"),
        ({"phone_regions": ["DE"]}, "Tel. 030 901820", "Tel. <PHONE>"),
        ({"phone_regions": []}, "(415) 555-2671, +1 415 555 2671", "(415) 555-2671, <PHONE>"),
        ({"placeholders": {"emails": "", "ips": "|||IP|||"}}, "a@b.org, 8.8.8.8", ", |||IP|||"),
        ({}, SECRETS, SECRETS),
        ({"cards": True, "keys": True}, SECRETS, "<CARD>, not 4111 1111 1111 1112; <KEY>\n<KEY>"),
        ({"keys": True}, WORDS, WORDS),
        ({"keys": True}, "sk" + "-proj-" + "aB3_x" * 9 + ".", "<KEY>."),
    ],
)
def test_settings_choose_what_is_masked_and_how(settings, text, masked):
    assert Bench("pii", **settings).text(text) == masked


@pytest.mark.parametrize(
    "settings",
    [
        {"placeholders": {"emails": "email@example.com"}},
        {"placeholders": {"ips": "22.214.171.124"}},
        {"phone_regions": ["XX"]},
    ],
)
def test_placeholders_that_would_be_masked_and_unknown_regions_are_refused(settings):
    with pytest.raises(ValidationError):
        Bench("pii", **settings)


def test_account_numbers_of_every_country_are_told_by_form_and_check_digits():
    draw, signs = random.Random(0), {"n": digits, "a": ascii_uppercase, "c": ascii_uppercase + digits}
    registry = (Path(stdnum.__file__).parent / "iban.dat").read_text("utf-8")
    forms = re.findall(r'^([A-Z]{2}) .*bban="([^"]+)"', registry, re.MULTILINE)
    assert len(forms) > 80
    for country, form in 5 * forms:
        parts = re.findall(r"(\d+)!([nac])", form)
        account = "".join(sign for count, kind in parts for sign in draw.choices(signs[kind], k=int(count)))
        number = country + mod_97_10.calc_check_digits(account + country) + account
        groups = " ".join(number[place : place + 4] for place in range(0, len(number), 4))
        written = f"{number}, {groups.lower()}"
        assert Bench("pii", phones=False).text(written) == "<IBAN>, <IBAN>", written


LOOK_ALIKES = {
    "dates": "2034-10-11|18.10.1998|16/05/2013|04/29/2038|08-05-1971|2000/08/07|1983.07.24|20240103|11.02.28|10-14-1951"
    "|20-07-2005 - 1974.10.13|21.09.1971, 11-20-1968|20340113/31/03/1967",
    "timestamps": "1950-03-30 05:29:20|1978-07-05T03:11:55Z|28.07.1972 18:26|17/05/1989 10.30|19770125201224"
    "|19740922T190933|20020227-032615|19521208 0615|2006-06-21 02:59:29.000000|30/Oct/1969:21:08:52 +0000"
    "|1958-11-13 02:42:08 +0530|06.01.1991, 15.24 Uhr|02/11/2031 06:35 AM|1958-12-26_23-51-02"
    "|1998-05-13T14:40:43+02:00|23:20:37 06-06-2015",
    "clock times": "03:03|00:12:37|12.45|15:40:23.000000|13:38-05:11:11.000000|03:05:45.000000 - 07:50",
    "versions": "version 23.92.100.60|v236.176.181.128|Version: 55.188.151.18|ver. 46.106.174.185|release 156.90.40.76"
    "|Chrome/174.141.47.159|build 247.82.24.41|Firmware 207.16.121.176.128",
    "sections": "Fig. 10.6.4.18|Section 11.4.1.13|§ 4.14.19.5|Figure 15.12.4.3|Table 2.15.8|see 11.17.8.15"
    "|Clause 15.17|11.8.11.13|5.14.11.10|Abb. 15.9.2.13|in 19.18.16|in 9.19.17.8",
    "large numbers": "489610164120|172823457|3853362948714|737,526,179,866|34,273,808,042|59,135,614|4 158 444 657"
    "|73 845 919 329|56 766 093|1.265.349.020.050|258.576.784.155|48.046.049",
    "ISBN, ISSN, DOI": "ISBN 978-4-352-68888-8|ISBN-13: 9782990672351|978-91-89670-12-9|ISBN 4402795796|ISSN 1930-6288"
    "|PMID 65953259|doi:10.5803/47193392.529.548631|https://doi.org/10.7270/s59963-097-80156-4|arXiv:2412.16834",
    "coordinates": "-49.259544, -75.061951|85.0418 -43.2790|20.5294439°N 125.9106920°E|17°52′25″N 3°30′W"
    "|68.52404 39.72495",
    "prices": "$819,827,191,263.50|$3,170,671.50|€ 323.863.173,00|£4410281424|2 330 410 761 300 €|1 380 661 €"
    "|USD 595024273|93.264.036 EUR|13.707.010.783 EUR|$ 836782016.85|$ 5951561873.38|¥892230986",
    "ranges": "1776-1908|1310–2007|1003/1988|pp. 1797-1955|1596 - 1936|1331-1599, 1841-2016|1318 1918",
    "codes": "order no. 1689545072|#0093404411|9d1efb72-2c13-8ab4-9169-01a75ae249a4|f8:31:3d:4f:cd:76|id=1035085434"
    "|https://x.org/a/9155389477-094.html|27382-9773|A7326930921B|001-14-9634|0.869067194951|8451-8760-8373-0048",
    "rows": "38 79 54 41 59 59 12 24 19 83 20 9|1 2 3 4 5 6 7 8 9 10 11 12|3-0 2-1 1-1 4-2 5-0 2-2",
    "@ and ::": "@drhr|zasor@imhts|12 apples @ 0.50|f(x)@pshml|look at the znjc dot com bubble|(at) qmub. Next"
    "|he said (at last) that it was so|std::vector, a::b, 10:11:12:13",
}


@pytest.mark.parametrize("regions", [("US", "GB"), REGIONS], ids=["two countries", "all"])
@pytest.mark.parametrize("kind", LOOK_ALIKES)
def test_numbers_that_are_no_personal_data_stay_in_any_sentence(kind, regions):
    masks = Bench("pii", phone_regions=regions, cards=True, keys=True)
    for value in LOOK_ALIKES[kind].split("|"):
        for place in NUMBERED:
            assert masks.text(place % value) == place % value


def valid_number(draw: random.Random, region: str, form: int) -> str:
    """A valid number whose last digits are drawn."""
    kind = draw.choice((PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE))
    while True:
        number = phonenumbers.example_number_for_type(region, kind)
        assert number is not None
        assert number.national_number is not None
        number.national_number += draw.randrange(10**5) - number.national_number % 10**5
        if phonenumbers.is_valid_number(number):
            return phonenumbers.format_number(number, form)


def abroad(draw: random.Random, region: str) -> str:
    written = valid_number(draw, region, PhoneNumberFormat.INTERNATIONAL)
    code, _, rest = written.partition(" ")
    forms = (
        written,
        written.replace("-", " "),
        written.replace(" ", "-"),
        written.replace(" ", ".").replace("-", "."),
        valid_number(draw, region, PhoneNumberFormat.E164),
        f"({code}) {rest}",
        f"00{code[1:]} {rest}",
        f"{written} ext. {draw.randrange(10, 9999)}",
        f"{written} x{draw.randrange(10, 9999)}",
    )
    return draw.choice(forms)


def with_trunk_zero(draw: random.Random, region: str) -> str:
    region = draw.choice(("DE", "GB", "FR", "NL", "CH", "AT", "SE", "AU"))
    code, _, rest = valid_number(draw, region, PhoneNumberFormat.INTERNATIONAL).partition(" ")
    return f"{code} (0){draw.choice(('', ' '))}{rest}"


def national(draw: random.Random, region: str) -> str:
    written = valid_number(draw, region, PhoneNumberFormat.NATIONAL)
    if region != "US":
        return written
    parts = re.findall(r"\d+", written)
    return draw.choice((written, "-".join(parts), ".".join(parts), " ".join(parts), "1-" + "-".join(parts)))


def bare(draw: random.Random, region: str) -> str:
    return re.sub(r"\D", "", national(draw, region))


PHONES: dict[str, tuple[Callable[[random.Random, str], str], Sequence[str]]] = {
    "abroad": (abroad, PLACES),
    "+CC (0)": (with_trunk_zero, PLACES),
    "national": (national, SPACED_PLACES),
    "national, announced": (national, ANNOUNCED),
    "national, bare digits, announced": (bare, ANNOUNCED),
}


@pytest.mark.parametrize("form", PHONES)
def test_valid_phones_of_many_countries_are_masked_as_people_write_them(form):
    write, places = PHONES[form]
    draw = random.Random(0)
    for region in REGIONS:
        masks = Bench("pii", phone_regions=(region,) if "national" in form else ("US", "GB"))
        place, phone = draw.choice(places), write(draw, region)
        assert masks.text(place % phone) == place % "<PHONE>"


@given(st.text("0123456789 .-/()+xt:", max_size=40))
def test_phones_take_whole_pairs_of_brackets(text):
    for start, stop in find_phones(text, ("US", "DE")):
        depths = list(accumulate((c == "(") - (c == ")") for c in text[start:stop]))
        assert min(depths) >= 0
        assert depths[-1] == 0
