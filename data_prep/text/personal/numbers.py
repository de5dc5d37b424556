"""Bank account numbers (IBAN, ISO 13616), payment card numbers (ISO/IEC 7812) with their check digits, and secret keys
of services whose keys have a form of their own, as the services publish it for secret scanning.
"""

from __future__ import annotations

import regex

from data_prep.text.personal import Spans

# -- account and card numbers --------------------------------------------------------------------------------

# All patterns start where no character of their own kind precedes, so that a run is tried once and not from each of
# its characters.
IBAN_DIGITS = regex.compile(r"[0-9](?<=(?<![A-Za-z0-9])[A-Za-z]{2}[0-9])[0-9]")
"""The two digits after the two letters that an account number begins with. Texts have far fewer digits than letters."""
_IBAN = regex.compile(r"[A-Za-z]{2}[0-9]{2}(?:[ .\xa0\u2007\u2009\u202f\u2010\u2011-]?[A-Za-z0-9]){11,30}")
_IN_FOURS = regex.compile(r"[a-z0-9]+|(?:[a-z0-9]{4}[^a-z0-9])+[a-z0-9]{1,4}", regex.IGNORECASE)
MIN_IBAN_CHARACTERS = 15
_EIGHT_DIGITS = regex.compile(r"[0-9]{4}[ -]?[0-9]{4}")
_CARD = regex.compile(
    r"(?<![\w+.,/-])(?:[2-6]\d{3}([ -]?)\d{4}\1\d{4}\1\d{1,7}|3\d{3}([ -]?)\d{6}\2\d{4,5})(?![\w-]|[.,]\d)",
    regex.ASCII,
)
_ISSUERS = regex.compile(
    r"4(?:\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11,16}"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|(?:6011|64[4-9]\d|65\d\d)\d{12,15}"  # Discover, RuPay
    r"|62\d{14,17}"  # UnionPay
    r"|220[0-4]\d{12,15}"  # Mir
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{8,15}"  # Maestro
)
"""Numbers that begin as an issuer's do and are as long."""


def find_ibans(text: str) -> Spans:
    """Numbers that have their country's form and check digits, in capitals or small letters."""
    end = 0
    for digits in IBAN_DIGITS.finditer(text):
        place = digits.start() - 2
        match = _IBAN.match(text, place) if place >= end else None
        if match is None:
            continue
        end = match.end()
        # The pattern may run on into the next words; groups are given back until the check digits fit.
        for stop in range(match.end(), match.start() + MIN_IBAN_CHARACTERS - 1, -1):
            complete = not text[stop : stop + 1].isalnum() and text[stop - 1].isalnum()
            if complete and _is_iban(text[match.start() : stop]):
                yield match.start(), stop
                break


def _is_iban(number: str) -> bool:
    from stdnum import iban

    # Words can have a country's form: in small letters, a number is solid, in groups of four, or mostly digits.
    digits = sum(sign.isdigit() for sign in number)
    if number != number.upper() and not _IN_FOURS.fullmatch(number) and 2 * digits < len(number):
        return False
    # The library's lists of banks are shorter than the countries' own.
    return iban.is_valid(number, check_country=False)


def find_cards(text: str) -> Spans:
    """Numbers of the large card issuers with their check digit (Luhn), bare or in groups as on the card."""
    from stdnum import luhn

    for hint in _EIGHT_DIGITS.finditer(text, overlapped=True):
        match = _CARD.match(text, hint.start())
        if not match:
            continue
        digits = match.group().replace(" ", "").replace("-", "")
        if _ISSUERS.fullmatch(digits) and luhn.is_valid(digits):
            yield match.span()


# -- keys ----------------------------------------------------------------------------------------------------

_MIXED = r"(?=[A-Z_-]*[a-z0-9])(?=[a-z_-]*[A-Z0-9])"
"""Not all small letters, as words between hyphens are, nor all capitals, as names of variables."""
_FORMS = {
    "AWS": (r"AKIA[A-Z2-7]{16}", r"ASIA[A-Z2-7]{16}"),
    "GitHub": (r"gh[pousr]_[A-Za-z0-9]{36,255}", r"github_pat_[A-Za-z0-9_]{60,255}"),
    "GitLab": (rf"gl(?:pat|ptt|dt|rt|cbt|ft|soat)-{_MIXED}[A-Za-z0-9_-]{{20,}}+",),
    "Slack": (
        r"xox[abceoprs]-\d+-[A-Za-z0-9-]{8,}+",
        r"xox[ar]-(?=[A-Za-z]*\d)[A-Za-z0-9]{8,48}",
        r"xoxd-[A-Za-z0-9%+/=_-]{40,}+",
        r"xapp-\d-[A-Za-z0-9-]{20,}+",
        r"https://hooks\.slack\.com/services/T[A-Za-z0-9_]+/B[A-Za-z0-9_]+/[A-Za-z0-9_]{20,}+",
    ),
    "Google": (r"AIza[A-Za-z0-9_-]{35}", r"GOCSPX-[A-Za-z0-9_-]{28}", r"ya29\.[A-Za-z0-9_-]{20,}"),
    "Stripe": (
        r"sk_(?:live|test)_[A-Za-z0-9]{16,}+",
        r"rk_(?:live|test)_[A-Za-z0-9]{16,}+",
        r"whsec_[A-Za-z0-9+/]{32,}+",
    ),
    "OpenAI": (
        r"sk-[A-Za-z0-9_-]{0,100}T3BlbkFJ[A-Za-z0-9_-]{20,}+",
        rf"sk-(?:proj|svcacct|admin|None)-{_MIXED}[A-Za-z0-9_-]{{20,}}+",
    ),
    "Anthropic": (rf"sk-ant-{_MIXED}[A-Za-z0-9_-]{{20,}}+",),
    "Hugging Face": (r"hf_[A-Za-z0-9]{34,}+",),
    "npm": (r"npm_[A-Za-z0-9]{36}",),
    "PyPI": (r"pypi-AgE[A-Za-z0-9_-]{50,}+",),
    "SendGrid": (r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",),
    "Telegram": (r"\d{8,10}:AA[A-Za-z0-9_-]{33}",),
    "DigitalOcean": (r"do[opr]_v1_[a-f0-9]{64}",),
    "Shopify": (r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",),
    "age": (r"AGE-SECRET-KEY-1[A-Z0-9]{58}",),
    "JSON Web Token": (
        r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+",
    ),
}
# One pattern each: a text is searched for a fixed beginning much faster than for any of several.
_KEYS = [regex.compile(rf"(?:{form})(?![A-Za-z0-9_])") for forms in _FORMS.values() for form in forms]
_WORD_ENDS = regex.compile(r"[A-Za-z0-9_-]\Z")
_BLOCK_BEGIN = "-----BEGIN "
_BLOCK = regex.compile(
    r"-----BEGIN ((?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?)-----[^-]{1,100000}+-----END \1-----"
)


def find_keys(text: str) -> Spans:
    """Keys and tokens, and private keys in PEM or OpenPGP armour from their first line to their last."""
    blocks = [match.span() for match in _BLOCK.finditer(text)] if _BLOCK_BEGIN in text else []
    return blocks + [
        match.span()
        for form in _KEYS
        for match in form.finditer(text)
        if not _WORD_ENDS.search(text, max(match.start() - 1, 0), match.start())
    ]
