"""`cloze keys` and `cloze sign`: signatures of artefacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keys(
    name: Annotated[str, typer.Argument(help="Name of the key, such as the name of the cluster.")],
    out: Annotated[Path, typer.Option(help="Directory for both files.")] = Path("keys"),
) -> None:
    """Make a pair of keys (Ed25519): a private one to sign with, a public one for those who trust it."""
    from cluster.artefacts.signatures import KEY_VARIABLE, TRUST_VARIABLE, make_keys
    from cluster.artefacts.storage import storage_errors

    with storage_errors(out):
        private, public = make_keys(out, name)
    typer.echo(f"private key: {private}  (keep it secret)\npublic key:  {public}")
    typer.echo(
        f"\nTo sign everything that is committed here: export {KEY_VARIABLE}={private.resolve()}"
        f"\nTo read signed artefacts only: copy {public.name} into a directory, and export {TRUST_VARIABLE}=DIRECTORY"
    )


def sign(
    places: Annotated[
        list[Path], typer.Argument(help="Directories of artefacts: a store, a checkpoint, an export.")
    ],
) -> None:
    """Sign artefacts that are there already, with the key that CLOZE_SIGNING_KEY names. Their fingerprints stay."""
    from cluster.artefacts.errors import ConfigError
    from cluster.artefacts.manifest import write_manifest
    from cluster.artefacts.signatures import KEY_VARIABLE, is_signing
    from cluster.artefacts.storage import open_artefact, storage_errors

    if not is_signing():
        raise ConfigError(
            f"{KEY_VARIABLE} is not set.",
            next_step=f"cloze keys NAME, then export {KEY_VARIABLE}=keys/NAME.pem",
        )
    # All are verified before the first one is signed.
    manifests = {place: open_artefact(place, anyone=True) for place in places}
    for place, manifest in manifests.items():
        with storage_errors(place):
            signed = write_manifest(place, manifest)
        assert signed.signature is not None, "this process signs"
        typer.echo(f"{place}: signed by the key {signed.signature.key}, fingerprint {signed.fingerprint}")
