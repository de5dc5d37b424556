"""Mask e-mail addresses, telephone numbers, IP addresses, account numbers and, where wanted, card numbers and keys.

What looks like one and is not stays: IBANs must have their country's form and check digits, telephone numbers must
fit their country's numbering plan and be no date, sum or code, IP addresses must be public and no version or section.
Names, postal addresses, dates of birth and identity numbers are not looked for: they need more than a pattern.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

from data_prep.document import Document
from data_prep.filters.base import Apply, FilterConfig, Passed
from data_prep.text.personal import Spans
from data_prep.text.personal.addresses import find_emails, find_ips
from data_prep.text.personal.numbers import find_cards, find_ibans, find_keys
from data_prep.text.personal.phones import find_phones


class Placeholders(BaseModel):
    """Replacement of masked text. Without digits and `@`, so that it is never masked itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cards: str = "<CARD>"
    """For numbers of payment cards."""
    emails: str = "<EMAIL>"
    """For e-mail addresses."""
    ibans: str = "<IBAN>"
    """For numbers of bank accounts."""
    ips: str = "<IP>"
    """For IP addresses."""
    keys: str = "<KEY>"
    """For keys and tokens of services."""
    phones: str = "<PHONE>"
    """For telephone numbers."""

    @field_validator("*")
    @classmethod
    def _inert(cls, placeholder: str) -> str:
        if re.search(r"[\d@]", placeholder):
            raise ValueError("a placeholder holds neither digits nor @, or it would be masked itself")
        return placeholder


class PiiConfig(FilterConfig):
    """The kinds of personal data to mask, and their replacements."""

    kind: Literal["pii"] = "pii"
    emails: bool = True
    """E-mail addresses, in any script, quoted, or spelled out: `john [at] x.org`, `john(at)x(dot)org`."""
    ibans: bool = True
    """International bank account numbers with correct check digits, with or without spaces."""
    ips: bool = True
    """IP addresses, versions 4 and 6. Four small numbers with full stops, such as 3.1.4.1, only where the text names
    addresses."""
    public_ips_only: bool = True
    """Leave private, local, documentation and other reserved addresses alone: they identify no person."""
    phones: bool = True
    """Telephone numbers with their extensions: with `+` and country code everywhere, otherwise national numbers of
    `phone_regions`."""
    phone_regions: tuple[str, ...] = ("US", "GB")
    """ISO 3166 codes of the countries whose numbers are recognised as written inside the country. Without separators,
    or in groups of three digits as sums are written, they need a word such as "Tel." before them."""
    cards: bool = False
    """Payment card numbers of the large issuers (Visa, Mastercard, American Express, Diners Club, JCB, Discover,
    UnionPay, Mir, Maestro) with correct check digit (Luhn)."""
    keys: bool = False
    """Secret keys of well-known forms: private keys in PEM or OpenPGP armour, JSON Web Tokens, and the keys of AWS,
    GitHub, GitLab, Slack, Google, Stripe, OpenAI, Anthropic, Hugging Face, npm, PyPI, SendGrid, Telegram, DigitalOcean,
    Shopify and age."""
    placeholders: Placeholders = Placeholders()

    @field_validator("phone_regions")
    @classmethod
    def _known(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        from phonenumbers import SUPPORTED_REGIONS

        unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(f"{unknown[0]} is no ISO 3166 code of a country with a known numbering plan")
        return regions

    def build(self) -> Apply:
        """A filter that changes text and drops nothing; counts `emails`, `ibans` and so on, named as its settings."""
        finders = [
            (name, find, getattr(self.placeholders, name))
            for name, find in FINDERS.items()
            if getattr(self, name)
        ]

        def apply(document: Document) -> Passed:
            counts: Counter[str] = Counter()
            before, text = None, document.text
            # A mask can free what stood beside it. Every mask takes digits or an @ and brings none: this ends.
            while text != before:
                before = text
                for name, find, placeholder in finders:
                    pieces, end = [], 0
                    for start, stop in sorted(find(text, self)):
                        if start >= end:
                            pieces += [text[end:start], placeholder]
                            end = stop
                    counts[name] += len(pieces) // 2
                    text = "".join([*pieces, text[end:]]) if pieces else text
            return Passed.with_text(document, text, **+counts)

        return apply


FINDERS: MappingProxyType[str, Callable[[str, PiiConfig], Spans]] = MappingProxyType(
    {
        "keys": lambda text, config: find_keys(text),
        "emails": lambda text, config: find_emails(text),
        "ibans": lambda text, config: find_ibans(text),
        "cards": lambda text, config: find_cards(text),
        "ips": lambda text, config: find_ips(text, config.public_ips_only),
        "phones": lambda text, config: find_phones(text, config.phone_regions),
    }
)
"""Finders by kind, in the order of masking."""
