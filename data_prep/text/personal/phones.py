"""Telephone numbers, distinguished from dates, times, sums, codes and other groups of digits.

With `+` (or `00`) and a country code a number is recognised in any grouping that its country's numbering plan allows.
As written inside a country it must be valid there, and show that it is one: by the country's grouping, by the trunk
prefix 0 before the area code, or by a word such as "Tel." before it. Ten digits in a row, or thousands set apart
(`612 345 678`), are a number like any other without such a word. Plans and formats come from libphonenumber.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

import regex

from data_prep.text.personal import Spans
from data_prep.text.personal.digit_contexts import (
    COUNTED_AFTER,
    NOT_A_PHONE,
    PHONE_CUE,
    UNIT_AFTER,
    dates_and_times,
    is_dotted_quad,
    is_range,
    is_thousands,
    stands_alone,
)

if TYPE_CHECKING:
    from phonenumbers import PhoneNumber


MIN_DIGITS, MAX_DIGITS = 7, 16
"""Digits of a number, with its country code or trunk prefix."""
MAX_GROUPS = 8
"""Groups of digits that one number is written in."""
MAX_GROUPS_UNANNOUNCED = 5
"""Groups of a number in national form without a word that announces it."""
MAX_CUE_DISTANCE = 30
"""A word such as "Tel." within so many characters before a number supports it."""
MAX_TRIES = 1000
"""Candidates of one run of digits that are compared with numbering plans; a longer run is a table."""

MAX_COLUMN_CHARACTERS = 100
"""Lines of nothing but numbers are searched in so many characters before and after a number."""

MAX_SEPARATORS = 4
"""Characters between two digits of a number."""

_SEPARATORS = " \t\xa0\u2007\u2009\u202f.-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d/()\uff08\uff09"
_DIGIT_RUN = regex.compile(
    rf"\d(?:[{regex.escape(_SEPARATORS)}]{{0,{MAX_SEPARATORS}}}+\d){{{MIN_DIGITS - 1},}}+"
)
_GROUP = regex.compile(r"\d+")
_PLUS_BEFORE = regex.compile(r"[+\uff0b] ?[(\uff08]? ?\Z")
_BRACKET_BEFORE = regex.compile(r"[(\uff08] ?\Z")
_ONLY_NUMBERS = regex.compile(r"\s*[\d.,%]+(?:\s+[\d.,%]+)+\s*")
_EXTENSION = regex.compile(
    r"(?i)[ \t\xa0,;]{0,3}"
    r"(?:(?:ext(?:n|ensi(?:on|ón|ão))?|anexo|interno|poste|durchwahl|dw|доб|toestel)\b[.:= ]{0,3}|x[. ]?(?=\d))"
    r"\d{1,6}(?![\dA-Za-z_])"
)
_DIALLED_PLUS = regex.compile(r"00(?=[1-9])|011(?= [1-9])")
_BRACKETS = str.maketrans("（）", "()")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Some groups of a run, with a bracket or plus sign before them."""

    text: str
    start: int
    stop: int
    groups: tuple[str, ...]
    """The digits, in ASCII."""
    separators: tuple[str, ...]
    """[len(groups) - 1] between them."""
    run: list[tuple[int, int]]
    """Where all groups of the run are; the candidate's are those from `first` to before `last`."""
    first: int
    last: int

    @property
    def digits(self) -> str:
        return "".join(self.groups)

    @property
    def written(self) -> str:
        return self.text[self.start : self.stop].translate(_BRACKETS)

    @property
    def is_spaced(self) -> bool:
        """Whether only spaces and full stops separate the groups: any number may be written so."""
        return "(" not in self.written and not "".join(self.separators).strip(" \t\xa0\u2007\u2009\u202f.")


def find_phones(text: str, regions: tuple[str, ...]) -> Spans:
    """Numbers with a country code, and national numbers of `regions` (ISO 3166 codes)."""
    end = 0
    for run in _DIGIT_RUN.finditer(text):
        for start, stop in _phones_of_run(text, run.span(), regions, end):
            extension = _EXTENSION.match(text, stop)
            end = extension.end() if extension else stop
            yield start, end


def _phones_of_run(text: str, run: tuple[int, int], regions: tuple[str, ...], end: int) -> Spans:
    tries = MAX_TRIES
    for groups in _free_groups(text, run):
        first = 0
        while first < len(groups) and tries > 0:
            last = first + 1
            for stop in _ends(groups, first):
                candidate = _candidate(text, groups, first, stop)
                if candidate is None or candidate.start < end:
                    continue
                tries -= 1
                if _is_phone(candidate, regions, end):
                    last, end = stop, candidate.stop
                    yield candidate.start, end
                    break
            first = last


def _free_groups(text: str, run: tuple[int, int]) -> Iterator[list[tuple[int, int]]]:
    """The groups of digits between dates and times."""
    taken = dates_and_times(text, run)[::-1]
    groups: list[tuple[int, int]] = []
    for start, stop in (match.span() for match in _GROUP.finditer(text, *run)):
        while taken and taken[-1][1] <= start:
            taken.pop()
        if taken and taken[-1][0] < stop:
            yield groups
            groups = []
        else:
            groups.append((start, stop))
    yield groups


def _ends(groups: list[tuple[int, int]], first: int) -> list[int]:
    """Possible ends of a number that begins with group `first`, the longest first."""
    digits, ends = 0, []
    for number in range(first, min(first + MAX_GROUPS, len(groups))):
        digits += groups[number][1] - groups[number][0]
        if digits > MAX_DIGITS:
            break
        if digits >= MIN_DIGITS:
            ends.append(number + 1)
    return ends[::-1]


def _candidate(text: str, run: list[tuple[int, int]], first: int, last: int) -> _Candidate | None:
    """With the plus sign and brackets that belong to it; None when brackets do not match or separators are odd."""
    groups = run[first:last]
    start, stop = groups[0][0], groups[-1][1]
    before = text[max(start - 4, 0) : start]
    inside = text[start:stop].translate(_BRACKETS)
    unopened = inside.count(")") - inside.count("(")
    if unopened not in (0, 1):
        return None
    lead = _PLUS_BEFORE.search(before)
    if lead and ("(" in lead.group().translate(_BRACKETS)) == bool(unopened):
        start -= len(lead.group())
        unopened = 0
    elif lead:
        start -= len(lead.group())
    if unopened:
        bracket = _BRACKET_BEFORE.search(text[max(start - 2, 0) : start])
        if not bracket:
            return None
        start -= len(bracket.group())
    separators = tuple(text[groups[i][1] : groups[i + 1][0]] for i in range(len(groups) - 1))
    written = text[start:stop].translate(_BRACKETS)
    depths = [*accumulate((sign == "(") - (sign == ")") for sign in written)]
    if not set(depths) <= {0, 1} or depths[-1]:
        return None
    digits = tuple("".join(str(int(digit)) for digit in text[slice(*group)]) for group in groups)
    return _Candidate(text, start, stop, digits, separators, run, first, last)


def _is_phone(candidate: _Candidate, regions: tuple[str, ...], end: int) -> bool:
    text, start, stop = candidate.text, candidate.start, candidate.stop
    before, after = text[start - 1 : start], text[stop : stop + 2]
    if _continues_word(after[:1]) and not _EXTENSION.match(text, stop):
        return False
    announced = bool(PHONE_CUE.search(text, max(start - MAX_CUE_DISTANCE, 0), start))
    cue = announced or 0 < end >= start - 6
    if "+" in candidate.written or "\uff0b" in candidate.written:
        return not (before.isascii() and before.isalnum() and not cue) and _is_international(
            candidate, candidate.digits, cue
        )
    row = (candidate.separators and not cue) and _is_part_of_row(candidate, trunk=False)
    dialled = _DIALLED_PLUS.match(" ".join(candidate.groups))
    if dialled and not row and not _continues_word(before):
        abroad = candidate.digits[len(dialled.group()) :]
        if len(abroad) >= MIN_DIGITS + 2 and _is_international(candidate, abroad, cue):
            return True
    if not regions or _continues_word(before) or (before and before in ".,-$€£¥₹#№§%^~@"):
        return False
    ties = ".,:-/" if len(candidate.groups) == 1 else ".,:-"
    if (after[:1] and after[:1] in ties and after[1:2].isdigit()) or UNIT_AFTER.match(text, stop):
        return False
    if not cue and (NOT_A_PHONE.search(text, max(start - 24, 0), start) or before in ("/", "=")):
        return False
    if not cue and not _shows_it(candidate):
        return False
    is_open = candidate.is_spaced and not announced
    if is_open and (COUNTED_AFTER.match(text, stop) or _is_in_column(candidate, regions)):
        return False
    return any(_is_national(candidate, region, cue) for region in regions)


def _is_in_column(candidate: _Candidate, regions: tuple[str, ...]) -> bool:
    """Whether spaces set its groups apart as columns, or lines of nothing but numbers around it show a table.

    A list of telephone numbers, one in a line, is none: each of its lines is a valid number.
    """
    from phonenumbers import Leniency

    if any(len(separator) > 1 and separator.isspace() for separator in candidate.separators):
        return True
    text, start, stop = candidate.text, candidate.start, candidate.stop
    first, last = max(start - MAX_COLUMN_CHARACTERS, 0), stop + MAX_COLUMN_CHARACTERS
    # A line that is cut off is not looked at.
    above = text[first:start].split("\n")[int(first > 0) :]
    below = text[stop:last].split("\n")[: -1 if last < len(text) else None]
    if not above or not below or above[-1].strip() or below[0].strip():
        return False
    rows = [
        *takewhile(_ONLY_NUMBERS.fullmatch, above[-2::-1]),
        *takewhile(_ONLY_NUMBERS.fullmatch, below[1:]),
    ]
    return not all(any(_parsed(row.strip(), region, Leniency.VALID) for region in regions) for row in rows)


def _continues_word(neighbour: str) -> bool:
    """Letters of scripts without spaces between words (from Thai on) end where a number begins."""
    return neighbour == "_" or (neighbour.isalnum() and ord(neighbour) < 0x0E00)


def _shows_it(candidate: _Candidate) -> bool:
    """Whether a number in national form looks like a telephone number and like nothing else."""
    parts, separators = candidate.groups, candidate.separators
    trunk = candidate.digits.startswith("0")
    if len(parts) == 1:
        return trunk and len(candidate.digits) >= 9
    if separators == (".",) or is_range(parts, separators) or is_dotted_quad(parts, separators):
        return False
    if not trunk and ("/" in "".join(separators[1:]) or set(separators) == {"/"}):
        return False
    if len(parts) > MAX_GROUPS_UNANNOUNCED or sum(len(part) == 1 for part in parts) > 1:
        return False
    if "(" not in candidate.written and _is_part_of_row(candidate, trunk):
        return False
    if is_thousands(parts, separators):
        return separators[0] != "." and stands_alone(candidate.text, candidate.start, candidate.stop)
    return True


def _is_part_of_row(candidate: _Candidate, trunk: bool) -> bool:
    """Whether more digits follow the separators of a number: a row of a table, or a longer code."""
    text, groups, first, last = candidate.text, candidate.run, candidate.first, candidate.last
    inside = {separator.strip() or " " for separator in candidate.separators}

    def continues(left: int) -> bool:
        return (text[groups[left][1] : groups[left + 1][0]].strip() or " ") in inside

    if first > 0 and continues(first - 1):
        before = text[slice(*groups[first - 1])], text[groups[first - 1][1] : groups[first][0]]
        more = is_thousands((before[0], *candidate.groups), (before[1], *candidate.separators))
        uniform = len({len(before[0]), *map(len, candidate.groups)}) == 1
        if more or uniform or not trunk:
            return True
    if last == len(groups) or not continues(last - 1):
        return False
    lengths = [stop - start for start, stop in groups]
    again = lengths[last : last + last - first] == lengths[first:last]
    if len(set(lengths[first : last + 1])) == 1:
        return not (again and trunk and text[groups[last][0]] == "0")
    return not again and not trunk


def _is_international(candidate: _Candidate, digits: str, cue: bool) -> bool:
    """Valid in its country; or only of a possible length there, when a word or the grouping supports it."""
    import phonenumbers

    try:
        number = phonenumbers.parse("+" + digits)
    except phonenumbers.NumberParseException:
        return False
    if phonenumbers.is_valid_number(number):
        return True
    grouped = len(candidate.groups) > 2 and not is_thousands(candidate.groups, candidate.separators)
    return (cue or (grouped and len(digits) >= 10)) and phonenumbers.is_possible_number(number)


def _is_national(candidate: _Candidate, region: str, cue: bool) -> bool:
    from phonenumbers import Leniency

    number = None
    if _plan(region).fullmatch(candidate.digits):
        number = _parsed(candidate.written, region, Leniency.VALID)
    if number is None:
        return _has_shape(candidate, region, cue)
    if cue or _parsed(candidate.written, region, Leniency.STRICT_GROUPING):
        return True
    return candidate.digits.startswith("0") and _area_code_is_apart(candidate, number)


def _has_shape(candidate: _Candidate, region: str, cue: bool) -> bool:
    """Whether a number that is not assigned is written like one: (555) 123-4567, 01632 960123."""
    from phonenumbers import Leniency

    lengths = tuple(map(len, candidate.groups))
    if lengths not in _shapes(region):
        return False
    tied = len(lengths) > 2 and set(candidate.separators) in ({"-"}, {"."})
    shown = cue or candidate.digits.startswith("0") or "(" in candidate.written or tied
    return shown and _parsed(candidate.written, region, Leniency.POSSIBLE) is not None


def _parsed(written: str, region: str, leniency: int) -> PhoneNumber | None:
    from phonenumbers import PhoneNumberMatcher

    for match in PhoneNumberMatcher(written, region, leniency, max_tries=1):
        if (match.start, match.end) == (0, len(written)):
            return match.number
    return None


def _area_code_is_apart(candidate: _Candidate, number: PhoneNumber) -> bool:
    """Whether a separator follows the area code, which is the first group of the international form."""
    import phonenumbers

    international = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.INTERNATIONAL)
    area_code = re.split("[ -]", international)[1]
    subscriber = len(phonenumbers.national_significant_number(number)) - len(area_code)
    ends = {len("".join(candidate.groups[:count])) for count in range(1, len(candidate.groups))}
    return len(candidate.digits) - subscriber in ends


@cache
def _shapes(region: str) -> frozenset[tuple[int, ...]]:
    """The lengths of the groups of digits in a region's national formats."""
    import phonenumbers
    from phonenumbers import PhoneNumberFormat, PhoneNumberType

    examples = [
        phonenumbers.example_number_for_type(region, kind)
        for kind in (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE, PhoneNumberType.TOLL_FREE)
    ]
    written = [phonenumbers.format_number(each, PhoneNumberFormat.NATIONAL) for each in examples if each]
    return frozenset(tuple(map(len, _GROUP.findall(number))) for number in written)


@cache
def _plan(region: str) -> re.Pattern[str]:
    """All digits that may be a number of a region, with its trunk prefix or without."""
    from phonenumbers import PhoneMetadata

    metadata = PhoneMetadata.metadata_for_region(region)
    assert metadata is not None
    prefix = f"(?:{metadata.national_prefix_for_parsing})?" if metadata.national_prefix_for_parsing else ""
    own = metadata.general_desc.national_number_pattern if metadata.general_desc else None
    # A transformation rule may put digits in, so that only the plan's full check decides.
    return re.compile(f"{prefix}(?:{own})" if own and not metadata.national_prefix_transform_rule else r"\d+")
