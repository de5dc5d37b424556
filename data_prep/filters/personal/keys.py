"""Secret keys of services whose keys have a form of their own, as the services publish it for secret scanning."""

from __future__ import annotations

from collections.abc import Iterator

import regex

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

Spans = Iterator[tuple[int, int]]


def find_keys(text: str) -> Spans:
    """Keys and tokens, and private keys in PEM or OpenPGP armour from their first line to their last."""
    blocks = [match.span() for match in _BLOCK.finditer(text)] if _BLOCK_BEGIN in text else []
    keys = [
        match.span()
        for form in _KEYS
        for match in form.finditer(text)
        if not _WORD_ENDS.search(text, max(match.start() - 1, 0), match.start())
    ]
    end = 0
    for start, stop in sorted(blocks + keys):
        if start >= end:
            yield start, stop
            end = stop
