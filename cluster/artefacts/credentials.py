"""Credentials in URIs: removed from everything that is stored, printed, logged or passed on.

Two forms are in use: `scheme://USER:PASSWORD@host/path`, and parameters such as in a presigned address of S3
(`?X-Amz-Signature=...`) or an Azure SAS (`?sig=...`). Both can occur anywhere in a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

# Up to the last @ of the authority: passwords are written with an @ of their own, too.
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
    """Remove credentials from an error's message, in which a library may repeat them outside of the URI."""
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
