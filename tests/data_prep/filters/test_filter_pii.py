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
from tests.data_prep.filters.personal_examples import REGIONS, examples


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to jane.doe+news@mail.example.co.uk, please", "write to <EMAIL>, please"),
        ("<jörg@bücher.de>", "<<EMAIL>>"),
        ("mailto:a@b.org?subject=x", "mailto:<EMAIL>?subject=x"),
        ("NL91-ABNA-0417-1643-00.", "<IBAN>."),
        ("gb82 west 1234 5698 7654 32 or be31435411161155", "<IBAN> or <IBAN>"),
        ("call (415) 555-2671 now", "call <PHONE> now"),
        ("020 7946 0958 or 415-555-2671", "<PHONE> or <PHONE>"),
        ("a@b.org 8.8.8.8 a@b.org", "<EMAIL> <IP> <EMAIL>"),
        # What stands around it neither hides it nor goes with it.
        ("((415) 555-2671) (tel. (415) 555-2671)", "(<PHONE>) (tel. <PHONE>)"),
        ("+44 (0)20 7946 0123, (+44) 20 7946 0123, 0044 20 7946 0123", "<PHONE>, <PHONE>, <PHONE>"),
        ("(303)969-8917x45; tel:+1-303-969-8917;ext=12", "<PHONE>; tel:<PHONE>"),
        ("call 4155552671", "call <PHONE>"),
        ("(555) 123-4567, 555-123-4567, 713/853-5025, 01632 960123", "<PHONE>, <PHONE>, <PHONE>, <PHONE>"),
        ("on 10-12-2004 415 555 2671 rang", "on 10-12-2004 <PHONE> rang"),
        ("617 253 1000\n212 418 5310", "<PHONE>\n<PHONE>"),  # one in a line: no column
        (" ".join(f"415-555-{n:04}" for n in range(1000, 1040)), " ".join(["<PHONE>"] * 40)),
        ("john [at] x.org, john(at)x(dot)org", "<EMAIL>, <EMAIL>"),
        ("JOHN DOT DOE AT X DOT ORG", "<EMAIL>"),
        ("mail john at example dot org, or jane AT example.org", "mail <EMAIL>, or <EMAIL>"),
        ('"john doe"@x.org and jane.doe @ x.org', "<EMAIL> and <EMAIL>"),
        ("иван@пример.рф, a@xn--e1afmkfd.xn--p1ai", "<EMAIL>, <EMAIL>"),
        ("联系我john@x.org谢谢", "联系我<EMAIL>谢谢"),
        ("x&#64;y.de, j&#46;d&commat;y&#x2e;de; ?m=x%40y.de&n=1", "<EMAIL>, <EMAIL>; ?m=<EMAIL>&n=1"),
        ("'john@x.org'", "'<EMAIL>'"),
        ("::ffff:8.8.8.8, 23.45.67.89:8080", "<IP>, <IP>:8080"),
        ("the server 4.2.2.2", "the server <IP>"),
    ],
)
def test_personal_data_is_masked_and_nothing_around_it(bench, text, masked):
    assert bench("pii").text(text) == masked


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
def test_what_only_looks_like_it_stays(bench, text):
    assert bench("pii").text(text) == text


def test_masks_are_counted_and_each_kind_can_be_switched_off(bench):
    text = "a@b.org, c@d.org, 8.8.8.8, +49 30 901820, GB82WEST12345698765432"
    counts = {"emails": 2, "ips": 1, "phones": 1, "ibans": 1}
    assert bench("pii").counts(text) == counts
    for kind in counts:
        left = {other: count for other, count in counts.items() if other != kind}
        assert bench("pii", **{kind: False}).counts(text) == left


TOKEN = "ghp" + "_" + "aB3" * 12
ARMOUR = "-----BEGIN " + "PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
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
def test_settings_choose_what_is_masked_and_how(bench, settings, text, masked):
    assert bench("pii", **settings).text(text) == masked


@pytest.mark.parametrize(
    "settings",
    [
        {"placeholders": {"emails": "email@example.com"}},
        {"placeholders": {"ips": "22.214.171.124"}},
        {"phone_regions": ["XX"]},
    ],
)
def test_placeholders_that_would_be_masked_and_unknown_regions_are_refused(bench, settings):
    with pytest.raises(ValidationError):
        bench("pii", **settings)


def test_account_numbers_of_every_country_are_told_by_form_and_check_digits(bench):
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
        assert bench("pii", phones=False).text(written) == "<IBAN>, <IBAN>", written


LEAST_RIGHT = {"phones, national": 0.95}
"""Groups of which some are lost on purpose: nine digits in threes may be a sum. Of all others, 99% must be right."""
LEAST_RIGHT_EVERYWHERE = {"codes and rows": 0.85, "large numbers": 0.97}
"""With the national forms of 41 countries, in some of which nearly every row of digits is a number."""


def test_examples_of_each_kind_are_told_from_what_looks_like_them(bench):
    """The benchmark prints the same on more of them."""
    filters = {
        regions: bench("pii", phone_regions=regions, cards=True, keys=True)
        for regions in {*((region,) for region in REGIONS), ("US", "GB"), REGIONS, ()}
    }
    right: Counter[str] = Counter()
    everywhere: Counter[str] = Counter()
    for example in examples(len(REGIONS)):
        right[example.group] += filters[example.regions].text(example.text) == example.expected
        if example.text == example.expected:
            everywhere[example.group] += filters[REGIONS].text(example.text) == example.expected
    assert {g: n for g, n in right.items() if n < LEAST_RIGHT.get(g, 0.99) * len(REGIONS)} == {}
    least = LEAST_RIGHT_EVERYWHERE
    assert {g: n for g, n in everywhere.items() if n < least.get(g, 0.99) * len(REGIONS)} == {}


@given(st.text("0123456789 .-/()+xt:", max_size=40))
def test_phones_take_whole_pairs_of_brackets(text):
    for start, stop in find_phones(text, ("US", "DE")):
        depths = list(accumulate((c == "(") - (c == ")") for c in text[start:stop]))
        assert min(depths) >= 0
        assert depths[-1] == 0
