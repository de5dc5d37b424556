"""Personal data is masked, and what only looks like it is not."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to jane.doe+news@mail.example.co.uk, please", "write to <EMAIL>, please"),
        ("<jörg@bücher.de>", "<<EMAIL>>"),
        ("mailto:a@b.org?subject=x", "mailto:<EMAIL>?subject=x"),
        ("server 8.8.8.8:53 and [2001:4860:4860::8888].", "server <IP>:53 and [<IP>]."),
        ("IBAN DE89 3704 0044 0532 0130 00 BIC COBADEFFXXX", "IBAN <IBAN> BIC COBADEFFXXX"),
        ("GB82WEST12345698765432", "<IBAN>"),
        ("NL91-ABNA-0417-1643-00.", "<IBAN>."),
        ("call (415) 555-2671 now", "call <PHONE> now"),
        ("Tel. +49 30 901820", "Tel. <PHONE>"),
        ("020 7946 0958 or 415-555-2671", "<PHONE> or <PHONE>"),
        ("a@b.org 8.8.8.8 a@b.org", "<EMAIL> <IP> <EMAIL>"),
    ],
)
def test_personal_data_is_masked(bench, text: str, masked: str):
    assert bench("pii").text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "prices @ 5.00, @handle, user@host, a@b, f(x)@y",
        "from 192.168.0.1, 10.1.2.3, 127.0.0.1 and fe80::1, ::1",
        "999.1.1.1 or 1.2.3.4.5 or 01.02.03.04",
        "std::vector, a::b, 12:30:45, 10:11:12:13",
        "DE88 3704 0044 0532 0130 00, XX89 3704 0044 0532 0130 00",
        "from 1914-1918 to 2001-02-03, 10.12.1999, 3,141,592, 12345678",
        "ISBN 978-0-19-853453-1 and 0-19-853453-1, pages 1120-1145",
        "serial A4155552671B",
    ],
)
def test_what_only_looks_like_it_stays(bench, text: str):
    assert bench("pii").text(text) == text


def test_masks_are_counted(bench):
    text = "a@b.org, c@d.org, 8.8.8.8, +49 30 901820, GB82WEST12345698765432"
    assert bench("pii").counts(text) == {"emails": 2, "ips": 1, "phones": 1, "ibans": 1}


def test_private_addresses_are_masked_where_wanted(bench):
    assert bench("pii", public_ips_only=False).text("192.168.0.1 and fe80::1") == "<IP> and <IP>"


def test_numbers_as_written_inside_a_country_need_its_region(bench):
    german = "Tel. 030 901820"
    assert bench("pii").text(german) == german
    assert bench("pii", phone_regions=["DE"]).text(german) == "Tel. <PHONE>"
    only_international = bench("pii", phone_regions=[])
    assert only_international.text("(415) 555-2671, +1 415 555 2671") == "(415) 555-2671, <PHONE>"


def test_every_number_of_a_line_is_masked(bench):
    numbers = [f"415-555-{number:04}" for number in range(1000, 1040)]
    assert bench("pii").text(" ".join(numbers)) == " ".join(["<PHONE>"] * 40)


@pytest.mark.parametrize("kind", ["emails", "ips", "phones", "ibans"])
def test_each_kind_can_be_switched_off(bench, kind: str):
    text = "a@b.org 8.8.8.8 GB82WEST12345698765432 +49 30 901820"
    assert set(bench("pii", **{kind: False}).counts(text)) == {"emails", "ips", "phones", "ibans"} - {kind}


def test_placeholders_can_be_chosen_and_removed(bench):
    assert (
        bench("pii", placeholders={"emails": "", "ips": "|||IP|||"}).text("a@b.org, 8.8.8.8") == ", |||IP|||"
    )


@pytest.mark.parametrize("placeholder", ["email@example.com", "22.214.171.124"])
def test_placeholder_that_would_be_masked_itself_is_refused(bench, placeholder: str):
    with pytest.raises(ValueError, match="neither digits nor @"):
        bench("pii", placeholders={"emails": placeholder})


def test_unknown_region_is_refused(bench):
    with pytest.raises(ValueError, match="XX is no ISO 3166 code"):
        bench("pii", phone_regions=["XX"])
