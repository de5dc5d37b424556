"""Signatures of manifests (Ed25519, RFC 8032), so that a team reads only artefacts that the team made.

Where `CLOZE_SIGNING_KEY` names a private key, every artefact is signed when it is committed. Where `CLOZE_TRUSTED_KEYS`
names a directory of public keys, artefacts that none of them signed are refused. Hashes of xxh3_128 find damage, and a
forger can make files that have them; so signed manifests also hold the SHA-256 of every file.

Keys are the PEM files that `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.artefacts.errors import ConfigError, MissingInputError, UntrustedArtefactError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Key = TypeVar("Key")

KEY_VARIABLE = "CLOZE_SIGNING_KEY"
"""Environment variable that names the file of a private key."""
TRUST_VARIABLE = "CLOZE_TRUSTED_KEYS"
"""Environment variable that names a directory of public keys, `*.pub`."""
PUBLIC_SUFFIX = ".pub"
_NAME_DIGITS = 16


class Signature(BaseModel):
    """A signature, with the name of its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """First digits of the SHA-256 of the raw public key."""
    value: str
    """Base64 of the 64 bytes."""


def is_signing() -> bool:
    """Whether this process signs what it commits."""
    return bool(os.environ.get(KEY_VARIABLE))


def is_trusting() -> bool:
    """Whether this process reads signed artefacts only."""
    return bool(os.environ.get(TRUST_VARIABLE))


def is_sealing() -> bool:
    """Whether work that is found, such as parts of an interrupted preparation, needs a signature to be continued."""
    return is_signing() or is_trusting()


def require_key() -> None:
    """Refuse to make what this process itself would refuse to read.

    Raises:
        UntrustedArtefactError: this process reads signed artefacts only, and does not sign.
    """
    if is_trusting() and not is_signing():
        raise UntrustedArtefactError(
            f"{TRUST_VARIABLE} asks for signatures, and without {KEY_VARIABLE} what is made here would have none.",
            kept="everything; nothing was made",
            next_step=f"export {KEY_VARIABLE}=FILE.pem; `cloze keys NAME` makes a pair of keys",
        )


def is_vouched(contents: bytes, signature: Any) -> bool:
    """Whether a trusted key signed some contents; where none are named, only this process's own key is trusted.

    Args:
        signature: as plain data.
    """
    try:
        found = Signature.model_validate(signature)
    except ValidationError:
        return False
    if is_trusting():
        keys = _read_trusted()
    else:
        own = _read_private(Path(os.environ[KEY_VARIABLE])).public_key()
        keys = {key_name(own): ("", own)}
    return found.key in keys and _fits(keys[found.key][1], contents, found)


def sign(contents: bytes) -> Signature:
    """Sign with the key that `CLOZE_SIGNING_KEY` names.

    Raises:
        MissingInputError, ConfigError: there is no such file, others can read it, or it holds no such key.
    """
    key = _read_private(Path(os.environ[KEY_VARIABLE]))
    return Signature(key=key_name(key.public_key()), value=base64.b64encode(key.sign(contents)).decode())


def require_trusted(place: str, contents: bytes, signature: Signature | None) -> None:
    """Check a signature against the trusted keys, which must be named.

    Raises:
        UntrustedArtefactError: it is unsigned, signed by another key, or its contents are not what was signed.
    """
    trusted = _read_trusted()
    if signature is None:
        raise _untrusted(f"{place} is not signed, and {TRUST_VARIABLE} asks for signatures.")
    if signature.key not in trusted:
        known = ", ".join(sorted(file for file, _ in trusted.values()))
        raise _untrusted(
            f"{place} was signed by the key {signature.key}, which is not in {os.environ[TRUST_VARIABLE]}"
            f" (there: {known})."
        )
    file, key = trusted[signature.key]
    if not _fits(key, contents, signature):
        raise _untrusted(f"{place} is not what {file} signed: it was altered afterwards.")


def _fits(key: Ed25519PublicKey, contents: bytes, signature: Signature) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(signature.value, validate=True), contents)
    except (InvalidSignature, binascii.Error):
        return False
    return True


def refuse_unsigned(place: str, what: str) -> None:
    """Refuse what cannot be signed, such as a directory that another program wrote, where signatures are asked for.

    Raises:
        UntrustedArtefactError: `CLOZE_TRUSTED_KEYS` is set.
    """
    if is_trusting():
        raise _untrusted(f"{place} is {what}, and {TRUST_VARIABLE} asks for signatures.")


def make_keys(directory: Path, name: str) -> tuple[Path, Path]:
    """Write a new pair of keys; returns the files of the private and of the public one.

    Raises:
        ConfigError: one of the files is there already, or the name is none of a file.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"{name} is no name of a key.", next_step="choose letters, digits, `.`, `_` and `-`, such as team"
        )
    private, public = directory / f"{name}.pem", directory / f"{name}{PUBLIC_SUFFIX}"
    if taken := [str(path) for path in (private, public) if path.exists()]:
        raise ConfigError(f"{' and '.join(taken)} exists already.", next_step="choose another name")
    key = Ed25519PrivateKey.generate()
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def key_name(key: Ed25519PublicKey) -> str:
    """The name of a key in signatures."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:_NAME_DIGITS]


def _untrusted(problem: str) -> UntrustedArtefactError:
    return UntrustedArtefactError(
        problem,
        kept="everything; nothing was read",
        next_step=f"ask who made it; if you trust it, sign it where its maker's key is: cloze sign PLACE; or unset"
        f" {TRUST_VARIABLE} to read it all the same",
    )


@lru_cache(maxsize=4)
def _read_private(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        data, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise MissingInputError(
            f"{KEY_VARIABLE} names {path}, which cannot be read: {error.strerror}.",
            next_step=f"make keys with `cloze keys {path.stem} --out {path.parent}`, or unset {KEY_VARIABLE}",
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"Others can read the private key {path}.", next_step=f"chmod 600 {path}")
    return _loaded(path, lambda: load_pem_private_key(data, password=None), Ed25519PrivateKey)


def _read_trusted() -> dict[str, tuple[str, Ed25519PublicKey]]:
    """The trusted public keys, each with the name of its file. Read every time: a key that is removed is trusted no
    longer."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    directory = Path(os.environ[TRUST_VARIABLE])
    files = sorted(directory.glob(f"*{PUBLIC_SUFFIX}"))
    if not files:
        raise MissingInputError(
            f"{TRUST_VARIABLE} names {directory}, which holds no public key (*{PUBLIC_SUFFIX}).",
            next_step=f"copy the keys of those you trust there, or unset {TRUST_VARIABLE}",
        )
    found = {}
    for file in files:
        key = _loaded(file, lambda file=file: load_pem_public_key(file.read_bytes()), Ed25519PublicKey)
        found[key_name(key)] = (file.name, key)
    return found


def _loaded(path: Path, load: Callable[[], object], kind: type[Key]) -> Key:
    try:
        key, reason = load(), "it is of another kind"
    except (ValueError, TypeError, OSError) as error:
        key, reason = None, str(error)
    if not isinstance(key, kind):
        raise ConfigError(
            f"{path} holds no Ed25519 key: {reason}.", next_step="`cloze keys NAME` writes a pair of keys"
        )
    return key
