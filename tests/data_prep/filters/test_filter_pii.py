"""Personal data is masked, and what only looks like it is not."""

import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from random import Random
from string import ascii_uppercase, digits

import pytest
import stdnum
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from stdnum.iso7064 import mod_97_10

from data_prep.text.personal.phones import find_phones
from tests.data_prep.filters.bench import Bench
from tests.data_prep.filters.personal_examples import PLACES, REGIONS, SPACED_PLACES, examples


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
WORDS = "xoxo-gossip-girl, sk-proj-your-key-goes-here-please, glrt-a-long-name-of-things"


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
    draw, signs = Random(0), {"n": digits, "a": ascii_uppercase, "c": ascii_uppercase + digits}
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


LEAST_RIGHT = {"national": 0.95}
"""Groups of which some are lost on purpose: nine digits in threes may be a sum. Of all others, 99% must be right."""
LEAST_RIGHT_EVERYWHERE = {"codes and rows": 0.85, "large numbers": 0.97}
"""With the national forms of 41 countries, in some of which nearly every row of digits is a number."""


def test_phones_and_what_looks_like_personal_data_are_told_from_each_other():
    filters = {
        regions: Bench("pii", phone_regions=regions, cards=True, keys=True)
        for regions in {*((region,) for region in REGIONS), ("US", "GB"), REGIONS}
    }
    right: Counter[str] = Counter()
    everywhere: Counter[str] = Counter()
    for group, text, expected, regions in examples(len(REGIONS)):
        right[group] += filters[regions].text(text) == expected
        if text == expected:
            everywhere[group] += filters[REGIONS].text(text) == expected
    assert {g: n for g, n in right.items() if n < LEAST_RIGHT.get(g, 0.99) * len(REGIONS)} == {}
    least = LEAST_RIGHT_EVERYWHERE
    assert {g: n for g, n in everywhere.items() if n < least.get(g, 0.99) * len(REGIONS)} == {}


@given(st.text("0123456789 .-/()+xt:", max_size=40))
def test_phones_take_whole_pairs_of_brackets(text):
    for start, stop in find_phones(text, ("US", "DE")):
        depths = list(accumulate((c == "(") - (c == ")") for c in text[start:stop]))
        assert min(depths) >= 0
        assert depths[-1] == 0
