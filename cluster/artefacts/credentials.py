"""Credentials in URIs, removed from everything that is stored, printed, logged or passed on; and `Redactor`, which
removes all secrets from texts for others.

Two forms are in use: `scheme://USER:PASSWORD@host/path`, and parameters such as in a presigned address of S3
(`?X-Amz-Signature=...`) or an Azure SAS (`?sig=...`). Both can occur anywhere in a message.

The redactor knows the values of this process's environment and of the files where programs keep passwords and
tokens. It finds others by their form: settings and options that are named like secrets, tokens of well-known services.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, unquote

# Up to the last @ of the authority, because passwords may have an @ of their own.
_USER = re.compile(r"(?<=://)[^\s/?#\"'<>\\]*@")
_QUERY = re.compile(r"\?[^\s#\"'<>\\]+")
_SECRET = re.compile(
    r"token|secret|passw|pwd|signature|credential|auth|accesskey|apikey|accessid|(^|[-_.])(key|sig|pass)$",
    re.I,
)
"""Matches the names of parameters that hold secrets."""
_SHORTEST_PASSWORD, _SHORTEST_TOKEN = 6, 16
"""Lengths in characters; shorter ones are often ordinary words."""
_TRACKING_URI = "MLFLOW_TRACKING_URI"
_TRACKING_NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
TRACKING_VARIABLES = (_TRACKING_URI, *_TRACKING_NAMES, "MLFLOW_TRACKING_TOKEN")
"""Environment variables with the address and the credentials of MLflow's store."""


def without_credentials(text: str) -> str:
    """Remove users, passwords and secret parameters from a URI, or from all URIs in a text."""
    return _QUERY.sub(_harmless_query, _USER.sub("", text)) if "://" in text else text


def message_without_credentials(text: str) -> str:
    """Remove credentials from an error's message; a library may repeat them outside of the URI."""
    cut = without_credentials(text)
    for user in {one[:-1] for one in _USER.findall(text)}:
        # A long name without a password is a token.
        password = user.partition(":")[2] or user
        shortest = _SHORTEST_PASSWORD if ":" in user else _SHORTEST_TOKEN
        for secret in (user, unquote(user), password, unquote(password)):
            if len(secret) >= shortest:
                cut = cut.replace(secret, "***")
    return cut


def has_credentials(text: str) -> bool:
    """Whether a text has a URI with credentials."""
    return without_credentials(text) != text


def require_no_credentials(uri: str) -> str:
    """Return `uri`, for a setting that is stored with the artefact.

    Raises:
        ValueError: it has credentials.
    """
    if has_credentials(uri):
        raise ValueError(
            "must not hold credentials, because all who may read the run would see them; give them where the store's"
            " library looks for them, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws or ~/.netrc"
        )
    return uri


def _harmless_query(found: re.Match[str]) -> str:
    parameters = re.split("[&;]", found[0][1:])
    kept = [one for one in parameters if not ("=" in one and _SECRET.search(unquote(one.partition("=")[0])))]
    if len(kept) == len(parameters):
        return found[0]
    return f"?{'&'.join(kept)}" if kept else ""


def split_tracking_credentials() -> None:
    """Move user and password from MLFLOW_TRACKING_URI to MLflow's own variables for them, so that the URI can be shown;
    child processes inherit both. A database's URI stays as it is."""
    uri = os.environ.get(_TRACKING_URI, "")
    if not uri.startswith(("http://", "https://")) or not _USER.search(uri):
        return
    user, _, password = _USER.findall(uri)[0][:-1].partition(":")
    os.environ |= dict(zip(_TRACKING_NAMES, map(unquote, (user, password)), strict=True))
    os.environ[_TRACKING_URI] = _USER.sub("", uri)


def tracking_environment() -> Mapping[str, str]:
    """The variables of this process's environment with MLflow's address and credentials, for workers on other nodes."""
    split_tracking_credentials()
    return {name: os.environ[name] for name in TRACKING_VARIABLES if name in os.environ}


def connection_uri(uri: str) -> str:
    """Add credentials to a stored URI: the URI of the environment if it is the same store's, else the stored one."""
    split_tracking_credentials()
    own = os.environ.get(_TRACKING_URI, "")
    return own if own and without_credentials(own) == without_credentials(uri) else uri


def refused(error: object) -> bool:
    """Whether a store's answer says that credentials are missing or wrong."""
    answer = str(error).lower()
    return any(word in answer for word in ("401", "403", "unauthorized", "not authenticated", "password"))


REMOVED = "***"
_LARGEST_FILE_BYTES = 1 << 20
_WORDS = (
    r"passw(?:or)?d|passphrase|(?<![a-z])(?:pass|pwd)|secret|api[-_]?key|access[-_]?key(?:[-_]?id)?|private[-_]?key|secret[-_]?key"
    r"|account[-_]?key|credentials?|authorization|(?<!mask_)(?<!pad_)(?<!eos_)(?<!bos_)(?<!cls_)(?<!sep_)(?<!unk_)(?<![a-z])token|(?:auth|access|api|bearer|refresh)token"
)
_NAMED = re.compile(rf"(?:^|[-_.])(?:{_WORDS}|key|auth|login)$", re.IGNORECASE)
"""Names of variables whose values are secrets."""
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([\w.-]+)\s*[=:]\s*[\"']?(.*?)[\"']?\s*$")
_VALUE = r"""\\".{0,1000}?\\"|"(?:[^"\\]|\\.)*"|'[^']*'|(?:(?:bearer|basic|token)\s+)?[^\s"',;&)}\]\\]+"""
_NAMED_VALUE = re.compile(rf"""((?:{_WORDS})(?:\\?["'])?\s*[:=]\s*)({_VALUE})""", re.IGNORECASE)
_OPTION = re.compile(rf"((?<!-)--[\w-]{{0,40}}(?:{_WORDS})\s+)({_VALUE})", re.IGNORECASE)
_TOKENS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|sk-|xox[abprs]-|dapi|pypi-|AIza)[\w-]{16,}",
    re.DOTALL,
)
"""Private keys, and tokens by the beginnings that their services give them."""


class Redactor:
    """Removes secrets from texts, and counts them."""

    def __init__(self, known: Iterable[str]) -> None:
        """
        Args:
            known: secrets to be removed everywhere; too short ones are ignored.
        """
        forms = {form for secret in known for form in (secret, quote(secret, safe=""), unquote(secret))}
        # The longest first: a secret may begin with another one.
        words = sorted(
            (form for form in forms if len(form) >= _SHORTEST_PASSWORD), key=lambda form: (-len(form), form)
        )
        self._known = re.compile("|".join(map(re.escape, words))) if words else None
        self.count = 0
        """Secrets that were removed so far."""

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(self._remove, text)
        without = message_without_credentials(text)
        self.count += without != text
        text = _TOKENS.sub(self._remove, without)
        for pattern in (_NAMED_VALUE, _OPTION):
            text = pattern.sub(self._remove_value, text)
        return text

    def _remove(self, found: re.Match[str]) -> str:
        self.count += 1
        return REMOVED

    def _remove_value(self, found: re.Match[str]) -> str:
        name, value = found.groups()
        if value.strip("\\\"'") in ("", REMOVED, "null", "None", "true", "false"):
            return found[0]
        self.count += 1
        quoted = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark)), "")
        return f"{name}{quoted}{REMOVED}{quoted}"


def known_secrets(environment: Mapping[str, str], *directories: Path) -> set[str]:
    """Secrets of this machine that a text may repeat.

    Args:
        environment: variables; those that are named like secrets, and passwords in URIs of any.
        directories: where a file `.env` may lie.
    """
    home = Path(environment.get("HOME") or Path.home())
    hugging_face = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
    settings = [
        *(directory / ".env" for directory in directories),
        *(home / name for name in (".aws/credentials", ".mlflow/credentials", ".pypirc", ".databrickscfg")),
    ]
    tokens = [hugging_face / "token", home / ".ray" / "auth_token"]
    if place := environment.get("RAY_AUTH_TOKEN_PATH"):
        tokens.append(Path(place))
    found = set(_of_assignments(environment.items()))
    for path in settings:
        matches = map(_ASSIGNMENT.match, _read(path).splitlines())
        found |= set(_of_assignments((match[1], match[2]) for match in matches if match))
    for path in tokens:
        found |= set(_read(path).split())
    found |= set(_of_uris(_read(home / ".git-credentials")))
    found |= {line.rpartition(":")[2] for line in _read(home / ".pgpass").splitlines()}
    netrc = Path(environment.get("NETRC") or home / ".netrc")
    # The value after every `password` and `account`, also in a file that is not well-formed.
    words = _read(netrc).split()
    found |= {value for name, value in pairwise(words) if name in ("password", "account")}
    return {secret for secret in found if len(secret) >= _SHORTEST_PASSWORD}


def _of_assignments(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in pairs:
        yield from _of_uris(value)
        if _NAMED.search(name) and name not in _NO_SECRETS and not os.path.exists(value):
            yield value  # and not the path of a file with the secret


def _of_uris(text: str) -> Iterator[str]:
    for user in _USER.findall(text):
        # A name without a password is a token, if it is long.
        name, _, password = user[:-1].partition(":")
        yield password or (name if len(name) >= _SHORTEST_TOKEN else "")


def _read(path: Path) -> str:
    with suppress(OSError):
        if path.is_file() and path.stat().st_size <= _LARGEST_FILE_BYTES:
            return path.read_text(encoding="utf-8", errors="replace")
    return ""
