"""Copies on this machine of artefacts that lie in an object store: verified, bounded, and shared by all its processes.

    CLOZE_CACHE/artefacts/KEY/NAME/        the files of an artefact, its manifest last; KEY hashes URI and fingerprint
    CLOZE_CACHE/artefacts/KEY/origin.json  where it is from, and the bytes set aside for it
    CLOZE_CACHE/artefacts/KEY/work         locked by the process that fetches files, or evicts the copy
    CLOZE_CACHE/artefacts/KEY/users        locked by every process that reads the copy, until it ends

A process that opens a copy reads the manifest in the store first, so an artefact that was replaced there is noticed.
The kernel releases the locks of a process however it ends, and the files that a killed one fetched serve the next.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import xxhash

from cluster import logs
from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import MissingInputError, StoreError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    manifest_bytes,
    read_manifest,
    write_durably,
)
from cluster.artefacts.owner import lock
from cluster.artefacts.places import Place, Uri, as_place, parse_size, shown_size
from cluster.artefacts.private import cache_directory
from cluster.artefacts.reading import confined_name
from cluster.artefacts.remote import Remote
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.storage import Damage, damaged, find_damage, is_committed, storage_errors
from cluster.progress import transfer

SIZE_VARIABLE = "CLOZE_CACHE_BYTES"
"""Environment variable with the most bytes that copies of artefacts may take, such as 500GB or 2TiB. Where it is not
set, they may take half of the file system; and never more than is free."""
_ORIGIN, _WORK, _USERS, _SEEN = "origin.json", "work", "users", "seen.json"
_held: dict[Path, int] = {}
"""Descriptors of this process's locks on the copies that it reads."""
_opened: dict[Path, Uri] = {}
"""The URIs of these copies, with the credentials that are written nowhere."""


def manifest_at(place: Place | str) -> Manifest | None:
    """The manifest of the artefact at a place; None where there is none.

    Raises:
        CorruptArtefactError, UntrustedArtefactError: as `read_manifest`.
        StoreError: the store does not answer.
    """
    place = as_place(place)
    if isinstance(place, Path):
        return read_manifest(place) if is_committed(place) else None
    return Remote.open(place).manifest()


def is_there(place: Place | str) -> bool:
    """Whether a committed artefact is at a place; its bytes are not checked."""
    place = as_place(place)
    return is_committed(place) if isinstance(place, Path) else Remote.open(place).exists(MANIFEST_NAME)


def damage_at(place: Place, manifest: Manifest, *, deep: bool = True) -> list[Damage]:
    """Compare the files of the artefact at a place with its manifest: sizes always, hashes when `deep`. Those at a URI
    are then read through the network, and not kept."""
    if isinstance(place, Path):
        return find_damage(place, manifest, deep=deep)
    remote = Remote.open(place)
    if not deep:
        return remote.find_damage(manifest)
    return [damage for damage in remote.download(manifest.files, None) if damage is not None]


def committed_at(place: Place | str, kind: str) -> Place:
    """The place itself, or the directory called `kind` in it where only this one is an artefact, as in the output
    directory of a preparation."""
    place = as_place(place)
    within = place / kind
    return within if not is_there(place) and is_there(within) else place


def local_copy(
    place: Place | str,
    *,
    kind: str | None = None,
    only: Collection[str] | None = None,
    verify: bool = True,
) -> Path:
    """A directory on this machine with the artefact at a place: the place itself, or a copy of the artefact at a URI.

    A copy stays as long as this process runs, or until its `release`. Its files have the hashes of the manifest: they
    are compared when a file is fetched, and again when it changed since.

    Args:
        kind: the kind that it must be; None accepts any.
        only: paths of the files that are needed; the copy may lack the others.
        verify: hash files that changed since they were fetched; otherwise only sizes are compared.

    Raises:
        MissingInputError: there is no artefact at the URI, or one of another kind.
        CorruptArtefactError: files in the store are missing or damaged; names them.
        StoreError: the store does not answer, or there is no room for the copy.
    """
    place = as_place(place)
    if isinstance(place, Path):
        return place
    remote = Remote.open(place)
    manifest = remote.require_manifest()
    if kind is not None and manifest.kind != kind:
        raise MissingInputError(
            f"{place} is an artefact of the kind `{manifest.kind}`; one of the kind `{kind}` is needed here.",
            next_step=f"name the URI of an artefact with {kind}",
        )
    copy = _directory(place, manifest.fingerprint)
    own = copy.parent
    entries = [entry for entry in manifest.files if only is None or entry.path in only]
    with storage_errors(own), _locked(own / _WORK, place):
        if stale := _stale(copy, manifest, entries, verify=verify):
            wanted = {entry.path for entry in stale}
            present = [one for one in manifest.files if one.path in wanted or (copy / one.path).is_file()]
            _make_room(own, remote.uri, sum(entry.size_bytes for entry in present))
            fetch_files(remote, manifest, stale, copy, "fetch")
        copy.mkdir(parents=True, exist_ok=True)
        file, data = copy / MANIFEST_NAME, manifest_bytes(manifest)
        if not (file.exists() and file.read_bytes() == data):
            write_durably(file, data)
        _hold(own / _USERS)
    _opened[copy] = place
    return copy


def release(directory: Path) -> None:
    """Let a copy make room for others although this process still runs; any other directory is left alone."""
    if (held := _held.pop(directory.parent / _USERS, None)) is not None:
        os.close(held)


def place_of(directory: Path) -> str:
    """The place of an artefact for people and for lineages: the URI that a copy is from, or the directory."""
    if not directory.is_relative_to(_root()):
        return str(directory)
    return _origin(directory.parent).get("uri") or str(directory)


def place_of_file(file: Path) -> str:
    """The place of a file that lies directly in an artefact, as `place_of` gives it."""
    return str(as_place(place_of(file.parent)) / file.name)


def beside(directory: Path, name: str) -> Place:
    """The place called `name` beside an artefact, also where `directory` is a copy of it."""
    return as_place(_opened.get(directory) or place_of(directory)).parent / name


def is_on_this_machine(place: Place | str) -> bool:
    """Whether opening the artefact at a place would fetch nothing but its manifest."""
    place = as_place(place)
    manifest = manifest_at(place)
    if manifest is None or isinstance(place, Path):
        return manifest is not None
    return not find_damage(_directory(place, manifest.fingerprint), manifest, deep=False)


def _root() -> Path:
    return cache_directory().absolute() / "artefacts"


def _directory(place: Uri, fingerprint: str) -> Path:
    key = xxhash.xxh3_128_hexdigest(f"{without_credentials(place)}\n{fingerprint}".encode())
    # Some results are named for the last name of the URI.
    name = place.name.partition("?")[0]
    try:
        return _root() / key / confined_name(name)
    except ValueError:
        return _root() / key / "artefact"


def _origin(own: Path) -> dict[str, Any]:
    """The contents of the file that `_make_room` wrote; nothing where that is gone or damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = orjson.loads((own / _ORIGIN).read_bytes())
        return {"uri": str(found["uri"]), "size_bytes": max(0, int(found["size_bytes"]))}
    return {}


# -- fetching -----------------------------------------------------------------------------------------------


def _stale(copy: Path, manifest: Manifest, entries: Sequence[FileEntry], *, verify: bool) -> list[FileEntry]:
    """The files that are missing in a copy, or damaged."""
    seen = SeenFiles.read(copy.parent / _SEEN, is_private=True)
    wanted = manifest.model_copy(update={"files": tuple(entries)})
    bad = {damage.path for damage in find_damage(copy, wanted, deep=verify, seen=seen)}
    if verify and not bad:
        seen.write(copy.parent / _SEEN)
    return [entry for entry in entries if entry.path in bad]


def fetch_files(
    remote: Remote, manifest: Manifest, entries: Sequence[FileEntry], target: Path, verb: str
) -> None:
    """Download files of an artefact and verify them; no other process may download into the directory.

    Args:
        verb: for the progress that is shown.

    Raises:
        StoreError: the store does not answer, or has another artefact by now.
        CorruptArtefactError: names every file that is missing or damaged in the store.
    """
    for leftover in target.rglob(".*.tmp"):  # of killed downloads
        leftover.unlink()
    size_bytes = sum(entry.size_bytes for entry in entries)
    with transfer(f"{verb} {without_credentials(remote.uri)}", size_bytes) as advance:
        damages = [damage for damage in remote.download(entries, target, advance) if damage is not None]
    if not damages:
        return
    if remote.exists(MANIFEST_NAME) and manifest.fingerprint.encode() not in remote.read(MANIFEST_NAME):
        raise StoreError(
            f"{remote.uri} was replaced by another artefact while it was read.",
            next_step="type the same command again, which reads the new one",
        )
    remedy = f"put it there again from where it was made: cloze push DIRECTORY {remote.uri} --again"
    raise damaged(remote.uri, manifest, damages, remedy)


# -- room ---------------------------------------------------------------------------------------------------


def _make_room(own: Path, uri: str, size_bytes: int) -> None:
    """Set `size_bytes` aside for a copy, and evict the copies that were used longest ago where there is no room."""

    def last_use(one: Path) -> float:
        with suppress(OSError):
            return (one / _USERS).stat().st_mtime
        return 0.0

    def bytes_in(one: Path) -> int:
        found = 0
        for path in one.rglob("*"):
            with suppress(OSError):
                found += path.stat().st_size if path.is_file() else 0
        return found

    with _locked(own.parent / _WORK, uri):
        copies = sorted((one for one in own.parent.iterdir() if one.is_dir()), key=last_use)
        on_disk = {one: bytes_in(one) for one in copies}
        # Copies that are being fetched will need more than they have.
        taken = {one: _origin(one).get("size_bytes", on_disk[one]) for one in copies if one != own}
        limit, reason = _limit(own.parent, sum(on_disk.values()))
        # Nothing is evicted for a copy that would not fit all the same.
        for other in list(taken) if size_bytes <= limit else ():
            if size_bytes + sum(taken.values()) <= limit:
                break
            if _evict(other):
                del taken[other]
        if size_bytes + sum(taken.values()) > limit:
            in_use = f", of which processes that run now use {shown_size(sum(taken.values()))}"
            raise StoreError(
                f"{uri} takes {shown_size(size_bytes)}, and there is no room for a copy in {own.parent}: copies may"
                f" take {shown_size(limit)}, {reason}{in_use if size_bytes <= limit else ''}.",
                kept="all other copies",
                next_step=f"free disk space, set {SIZE_VARIABLE}, or name a larger file system by CLOZE_CACHE",
            )
        facts = {"uri": without_credentials(uri), "size_bytes": size_bytes}
        write_durably(own / _ORIGIN, orjson.dumps(facts))


def _limit(root: Path, on_disk: int) -> tuple[int, str]:
    """The most bytes that all copies may take, and why."""
    disk = shutil.disk_usage(root)
    free = on_disk + disk.free
    chosen = os.environ.get(SIZE_VARIABLE)
    limit = parse_size(chosen, f"{SIZE_VARIABLE}=") if chosen else disk.total // 2
    reason = f"as {SIZE_VARIABLE} says" if chosen else "half of the file system"
    return (limit, reason) if limit <= free else (free, "which is what is free")


def _evict(own: Path) -> bool:
    """Delete a copy unless a process uses it or works on it; returns whether it was deleted."""
    try:
        with (own / _WORK).open("a") as work, (own / _USERS).open("a") as users:
            for held in (work, users):
                if not lock(held.fileno(), wait_s=0):
                    return False
            # A killed deletion leaves a copy without some files.
            shutil.rmtree(own)
            return True
    except OSError:
        return False


# -- locks --------------------------------------------------------------------------------------------------


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock at `path`, whose directory is made; waits while another process holds it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a") as held:
            _lock(held.fileno(), f"another process of this machine fetches {without_credentials(what)}")
            # A copy that was evicted meanwhile took its lock with it.
            if _is_open(path, held.fileno()):
                yield
                return


def _lock(descriptor: int, why: str, *, shared: bool = False) -> None:
    try:
        lock(descriptor, shared=shared, wait_s=0)
    except BlockingIOError:
        logs.say(f"waiting: {why}")
        lock(descriptor, shared=shared)


def _hold(path: Path) -> None:
    """Mark a copy as used now, and by this process until it ends."""
    if path not in _held or not _is_open(path, _held[path]):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _lock(descriptor, f"another process evicts {path.parent}", shared=True)
        _held[path] = descriptor
    os.utime(path)


def _is_open(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
