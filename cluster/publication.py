"""Artefacts copied to an object store, and back into directories.

Each artefact is committed there by its manifest, written last. Files go several at a time. Their hashes are noted in
the store before, and a store shows files as a whole: one that has its size has arrived. So a copy that was killed
continues from any machine, and one that is complete is confirmed by a few requests.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ConfigError, CorruptArtefactError, StoreError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    hash_json,
    manifest_bytes,
    read_manifest,
    write_durably,
)
from cluster.artefacts.places import is_web, shown_size
from cluster.artefacts.reading import for_files, inside
from cluster.artefacts.remote import TRANSFERS, Remote
from cluster.artefacts.shard_records import LOG_NAME
from cluster.artefacts.storage import (
    find_damage,
    is_committed,
    open_artefact,
    put_in_place,
    staging_directory,
    storage_errors,
)
from cluster.copies import fetch_files
from cluster.progress import transfer

_NOTE = "arrived.json"
"""Beside the files in the store: the hash of every file that was or is to be written, by name."""
RECORD_BYTES = 1 << 26
"""Much more than any record of a shard or log of shards has; no manifest says how large they are."""


@dataclass(frozen=True, slots=True)
class Copied:
    """An artefact that was copied, or found in place."""

    kind: str
    place: str
    """Its place now: a URI, or a directory."""
    fingerprint: str
    files: int
    size_bytes: int
    """Size of all files of its manifest."""
    copied_bytes: int
    """Size of the files that were not there yet, records and logs among them."""


def push(directory: Path, uri: str, *, replace: bool = False, again: bool = False) -> Copied:
    """Copy a committed artefact to a URI, with the records beside its files; one that is there is only confirmed. What
    an earlier artefact had there is deleted; files of any other origin stay.

    Args:
        replace: allow another artefact that is there to be replaced, or others to lie below.
        again: write all files, also those that have arrived, after damage in the store.

    Raises:
        ConfigError: another artefact is there or below, and `replace` is False; or a web server is named.
        CorruptArtefactError: the artefact is damaged.
        StoreError: the store refuses, or does not hold what was written.
    """
    if is_web(uri):
        raise ConfigError(
            f"{uri} is on a web server, which is only read.",
            next_step="name a store, such as s3://bucket/corpus",
        )
    remote, manifest = Remote.open(uri), read_manifest(directory)
    there, sizes = None, remote.sizes()
    # A damaged manifest is written again.
    with suppress(CorruptArtefactError):
        there = remote.manifest(anyone=True)
    files = [*manifest.files, *_records_in(directory)]
    is_same = there is not None and there.fingerprint == manifest.fingerprint
    if there is not None and not is_same and not replace:
        raise _in_the_way(uri, there, "URI")
    if there is None and not replace:
        _require_none_below(uri, sizes.keys() - {entry.path for entry in files})
    listed = {entry.path: entry.xxh3_128 for entry in there.files} if there is not None else {}
    noted = listed if is_same else {}
    with suppress(FileNotFoundError, ValueError, TypeError):
        noted = dict(orjson.loads(remote.read(_NOTE))) if _NOTE in sizes else noted
    arrived = {} if again else noted
    missing = [
        entry
        for entry in files
        if sizes.get(entry.path) != entry.size_bytes or arrived.get(entry.path) != entry.xxh3_128
    ]
    if missing:
        open_artefact(directory)
        if not is_same and MANIFEST_NAME in sizes:
            remote.remove([MANIFEST_NAME])
    # No file with another hash may have the size of one that is noted now. Files of a manifest that stays are written
    # over, so that its readers find them, and noted only afterwards.
    written = {entry.path for entry in missing}
    over = written & listed.keys() if is_same else set()
    kept = {entry.path for entry in files} - written | ({*listed} if is_same else set())
    remote.remove(({*noted, *listed, *written} & sizes.keys()) - kept - {MANIFEST_NAME, _NOTE})
    if missing:
        note = {entry.path: entry.xxh3_128 for entry in files}
        remote.write(_NOTE, orjson.dumps({name: note[name] for name in note.keys() - over}))
        _upload(remote, directory, missing)
        if over:
            remote.write(_NOTE, orjson.dumps(note))
    if missing or there != manifest:
        remote.commit(manifest)
    return _copied(manifest, without_credentials(uri), missing)


def pull(uri: str, directory: Path, *, replace: bool = False) -> Copied:
    """Copy an artefact from a URI into a directory, with the records beside its files; one that is there is verified,
    and its damaged files are fetched again.

    Args:
        replace: allow another artefact that is there to be replaced.

    Raises:
        MissingInputError: there is no artefact at the URI.
        ConfigError: another artefact is in the directory, and `replace` is False.
        CorruptArtefactError: files in the store are missing or damaged; names them.
    """
    remote = Remote.open(uri)
    manifest = remote.require_manifest()
    there = read_manifest(directory, anyone=True) if is_committed(directory) else None
    is_same = there is not None and there.fingerprint == manifest.fingerprint
    if there is not None and not is_same and not replace:
        raise _in_the_way(str(directory), there, "directory")
    is_taken = directory.is_file() or (directory.is_dir() and any(directory.iterdir()))
    if there is None and is_taken and not replace:
        raise ConfigError(
            f"{directory} is there, and is no artefact.",
            kept="it is untouched",
            next_step="name a directory that is new or empty, or add --replace to move this one aside",
        )
    # Never use what another address returned.
    target = directory if is_same else staging_directory(directory, hash_json([uri, manifest.fingerprint]))
    with storage_errors(directory):
        target.mkdir(parents=True, exist_ok=True)
        if not is_same:
            # Also the records of an earlier attempt, which no hash vouches for.
            _remove_unlisted(target, manifest)
        damages = {damage.path for damage in find_damage(target, manifest)}
        missing = [entry for entry in manifest.files if entry.path in damages]
        needed, free = sum(entry.size_bytes for entry in missing), shutil.disk_usage(target).free
        if needed > free:
            raise StoreError(
                f"{uri} takes {shown_size(needed)} more, and the file system of {target.parent} has"
                f" {shown_size(free)}.",
                next_step="free disk space, or name a directory of another file system",
            )
        fetch_files(remote, manifest, missing, target, "pull")
        names = remote.sizes() if remote.lists else ()

        def fetch_record(name: str) -> None:
            file = inside(target, name, replaced=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(file, remote.read(name, RECORD_BYTES))

        for_files(fetch_record, [name for name in names if _is_record(name)])
        write_durably(target / MANIFEST_NAME, manifest_bytes(manifest))
    if not is_same:
        put_in_place(target, directory, manifest.files)
    return _copied(manifest, str(directory), missing)


def find_published(uri: str) -> list[str]:
    """Names, relative to a URI and in order, of the artefacts below it; only the empty name where it is one itself.

    Raises:
        MissingInputError: there is none, or the server has no listing.
    """
    remote = Remote.open(uri)
    if remote.exists(MANIFEST_NAME):
        return [""]
    end = f"/{MANIFEST_NAME}"
    found = sorted(
        name.removesuffix(end) for name in (remote.sizes() if remote.lists else {}) if name.endswith(end)
    )
    # The insides of artefacts are theirs.
    outermost = [name for name in found if not any(name.startswith(f"{one}/") for one in found)]
    if not outermost:
        raise remote.nothing_here()
    return outermost


def _remove_unlisted(directory: Path, manifest: Manifest) -> None:
    """Delete the files that a manifest does not list."""
    listed = {MANIFEST_NAME, *(entry.path for entry in manifest.files)}
    for path in list(directory.rglob("*")):
        if path.relative_to(directory).as_posix() not in listed and (path.is_symlink() or not path.is_dir()):
            path.unlink()


def _require_none_below(uri: str, others: Collection[str]) -> None:
    """Refuse a place such as a bucket, whose other artefacts would not be found any more."""
    end = f"/{MANIFEST_NAME}"
    if below := sorted(name.removesuffix(end) for name in others if name.endswith(end)):
        raise ConfigError(
            f"Other artefacts lie below {uri}: {', '.join(below[:3])}.",
            kept="they are untouched",
            next_step="name a URI for this artefact alone, such as URI/tokens, or add --replace to put it above them",
        )


def _in_the_way(place: str, there: Manifest, what: str) -> ConfigError:
    return ConfigError(
        f"{place} holds other {there.kind}, with the fingerprint {there.fingerprint}.",
        kept="it is untouched",
        next_step=f"add --replace to replace it, or name another {what}",
    )


def _records_in(directory: Path) -> Iterator[FileEntry]:
    """Entries of the records and logs beside the files of an artefact."""
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and _is_record(name):
            yield FileEntry.of(path, name)


def _is_record(name: str) -> bool:
    """Whether a file records how an artefact was made, and is no part of its content. A store may hold anything else,
    too, which must not come between the files of an artefact."""
    directory, _, file = name.rpartition("/")
    return name == LOG_NAME or (
        directory.endswith("-records") and "/" not in directory and file[0] != "." and file.endswith(".json")
    )


def _upload(remote: Remote, directory: Path, entries: Sequence[FileEntry]) -> None:
    """Write files to the store, several at a time."""

    def upload(entry: FileEntry) -> None:
        remote.upload(entry.under(directory), entry.path)
        advance(entry.size_bytes)

    size_bytes = sum(entry.size_bytes for entry in entries)
    shown = f"push {without_credentials(remote.uri)}"
    with transfer(shown, size_bytes) as advance, ThreadPoolExecutor(TRANSFERS) as pool:
        running = [pool.submit(upload, entry) for entry in entries]
        try:
            for one in running:
                one.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _copied(manifest: Manifest, place: str, missing: Sequence[FileEntry]) -> Copied:
    return Copied(
        kind=manifest.kind,
        place=place,
        fingerprint=manifest.fingerprint,
        files=len(manifest.files),
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
        copied_bytes=sum(entry.size_bytes for entry in missing),
    )
