"""Artefacts between places and under signatures: `cloze push`, `pull`, `keys` and `sign`; paths that must be local."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipeline.commands.output import Json, LogFormat, Replace, show

_Uri = Annotated[str, typer.Argument(help="An fsspec URI, such as s3://bucket/corpus.", metavar="URI")]
_COLUMNS = {
    "kind": "kind",
    "files": "files",
    "bytes": "size_bytes",
    "copied now": "copied_bytes",
    "fingerprint": "fingerprint",
    "place": "place",
}


class LocalPaths(TyperGroup):
    """A group whose commands refuse URIs for parameters that are paths, which would become relative paths."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _refuse_uris(self)


def _refuse_uris(command: Any) -> None:
    for inner in getattr(command, "commands", {}).values():
        _refuse_uris(inner)
    if (callback := command.callback) is None:
        return

    @wraps(callback)
    def call(**values: Any) -> Any:
        if any(isinstance(value, Path | list) for value in values.values()):
            _require_local(values)
        return callback(**values)

    command.callback = call


def _require_local(values: dict[str, Any]) -> None:
    from cluster.artefacts.errors import ConfigError
    from cluster.artefacts.places import folded_uri

    for name, value in values.items():
        paths = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Path)]
        for uri in filter(None, map(folded_uri, paths)):
            raise ConfigError(
                f"{uri} is a URI, and `{name.replace('_', '-')}` must be a path on a file system of this machine.",
                next_step="name a path; `cloze pull URI DIRECTORY` copies artefacts from a URI to one, and `cloze push"
                " DIRECTORY URI` the other way",
            )


def push(
    directory: Annotated[Path, typer.Argument(help="A preparation, scores, or any directory of artefacts.")],
    uri: _Uri,
    replace: Replace = False,
    again: Annotated[
        bool, typer.Option("--again", help="Write files that are there too, after damage in the store.")
    ] = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Copy finished artefacts to an object store, each committed there by its manifest.

    The same command continues after a kill, and only confirms files that are there already. A preparation goes without
    its `work/`.
    """
    from cluster import logs
    from cluster.artefacts.errors import MissingInputError
    from cluster.artefacts.storage import find_artefacts
    from cluster.publication import push as push_one
    from data_prep.layout import WORK
    from pipeline.run.directory import RUN_FILE

    target = _uri(uri)
    if (directory / RUN_FILE).is_file():
        raise MissingInputError(
            f"{directory} is a run, which is more than its artefacts.",
            next_step="keep the checkpoints of runs in a store with checkpoint.directory=URI",
        )
    found = [path for path in find_artefacts(directory) if path.parent.name != WORK]
    if not found:
        raise MissingInputError(
            f"There is no committed artefact at or below {directory}.",
            next_step="name a directory that has one",
        )
    if unfinished := sorted({path.name.split(".")[1] for path in directory.glob(".*.partial")}):
        logs.say(f"not copied, because unfinished: {', '.join(unfinished)}", "warning")
    names = [path.relative_to(directory).as_posix() for path in found]
    places = [target if name == "." else f"{target}/{name}" for name in names]
    copied = [
        push_one(path, place, replace=replace, again=again) for path, place in zip(found, places, strict=True)
    ]
    show(copied, "artefacts", as_json=as_json, columns=_COLUMNS, copied=("place",))


def pull(
    uri: _Uri,
    directory: Annotated[Path, typer.Argument(help="The directory to make.")],
    replace: Replace = False,
    as_json: Json = False,
    log_format: LogFormat = None,
) -> None:
    """Copy artefacts from an object store into a directory, every file verified.

    The same command continues after a kill, and fetches damaged files again. A preparation that is pulled is confirmed
    by `cloze data prepare`, as where it was made.
    """
    from cluster.artefacts.owner import exclusive
    from cluster.artefacts.reading import inside
    from cluster.artefacts.storage import storage_errors
    from cluster.publication import find_published
    from cluster.publication import pull as pull_one

    source = _uri(uri)
    names = find_published(source)
    # The parent of `.` has no name, and a link would be replaced instead of what it leads to.
    directory = directory.resolve()
    targets = [inside(directory, name, replaced=True) if name else directory for name in names]
    holder = directory if names != [""] else directory.parent
    with storage_errors(holder):
        holder.mkdir(parents=True, exist_ok=True)
    with exclusive(holder, "`cloze pull`"):
        found = [
            pull_one(f"{source}/{name}".rstrip("/"), target, replace=replace)
            for name, target in zip(names, targets, strict=True)
        ]
    show(found, "artefacts", as_json=as_json, columns=_COLUMNS, copied=("place",))


def _uri(text: str) -> str:
    from cluster.artefacts.errors import ConfigError
    from cluster.artefacts.places import as_place

    place = as_place(text)
    if isinstance(place, Path):
        raise ConfigError(
            f"{text} is a directory of a file system.",
            next_step="name an object store, such as s3://bucket/corpus; `cp -r` copies files",
        )
    return place


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
