"""A directory of downloads: files that are there, files that are missing, and fetching them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import orjson

from cluster.artefacts.errors import DownloadError, StorageError
from cluster.artefacts.owner import exclusive
from cluster.artefacts.storage import storage_errors
from cluster.progress import progress
from data_prep.download.fetch import Fetched, Http, RemoteFile, checksum_of, fetch

INDEX_NAME = "downloads.json"
SHOW_INTERVAL_S = 0.5
SAVE_INTERVAL_S = 10.0
"""How often the index is written: all of it, and a catalogue of books has tens of thousands of files."""


@dataclass(frozen=True, slots=True)
class Downloads:
    """How a call ended."""

    files: tuple[Fetched, ...]
    """All files that were asked for and are there, in the order of asking."""
    num_fetched: int
    """How many of them were not there before."""
    missing: tuple[str, ...]
    """Names of files that the publisher lists and does not have."""


def download(http: Http, files: Sequence[RemoteFile], directory: Path, *, verify: bool = False) -> Downloads:
    """Download files into a directory. A file that is there and as recorded is not fetched again.

    `downloads.json` records of every file its URL, size and checksum. One file that cannot be had does not keep the
    others from being fetched.

    Args:
        verify: hash the files that are there instead of comparing sizes and times.

    Raises:
        DownloadError: names every file that cannot be fetched, or differs from the published file.
        StorageError: the file system refused, or another process downloads into the directory.
    """
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with exclusive(directory, "cloze data download"):
            index = _Index(directory)
            there = {file.name for file in files if index.has(file, verify)}
            wanted = [file for file in files if file.name not in there]
            _check_space(directory, wanted)
            missing, failures = _fetch_all(http, wanted, directory, index)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        problems = "\n".join(f"  {error.problem}" for error in failures)
        raise DownloadError(
            f"{len(failures)} of {len(files)} files could not be downloaded:\n{problems}",
            kept="all other files, and the parts that arrived",
            next_step=failures[0].next_step,
        )
    found = tuple(index.entries[file.name] for file in files if file.name not in missing)
    return Downloads(found, len(wanted) - len(missing), tuple(missing))


def _fetch_all(
    http: Http, files: Sequence[RemoteFile], directory: Path, index: _Index
) -> tuple[list[str], list[DownloadError]]:
    """Fetch files, some at a time. Returns (names of missing files, failures), in the order of the files."""
    started = time.monotonic()
    outcomes: dict[str, DownloadError | None] = {}
    """By the names of files that did not come: the error, or None where the publisher lacks the file."""
    pool = ThreadPoolExecutor(http.connections, thread_name_prefix="download")
    try:
        with progress("download", len(files)) as advance:
            waiting = iter(files)
            running: dict[Future[Fetched | None], str] = {}
            while True:
                # Not all at once: a crawl has a hundred thousand files, and nothing is gained by queueing them.
                for file in islice(waiting, http.connections - len(running)):
                    running[pool.submit(fetch, http, file, directory)] = file.name
                if not running:
                    break
                done, _ = wait(running, timeout=SHOW_INTERVAL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    name = running.pop(future)
                    try:
                        fetched = future.result()
                    except DownloadError as error:
                        outcomes[name] = error
                        continue
                    if fetched is None:
                        outcomes[name] = None
                    else:
                        index.add(fetched)
                megabytes = http.num_received / 1e6
                speed = megabytes / max(time.monotonic() - started, 1e-3)
                advance(len(done), f"{megabytes:,.0f} MB, {speed:.1f} MB/s")
    except BaseException:
        http.stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        index.save()
    missing = [file.name for file in files if file.name in outcomes and outcomes[file.name] is None]
    failures = [error for file in files if (error := outcomes.get(file.name)) is not None]
    return missing, failures


def _check_space(directory: Path, files: Iterable[RemoteFile]) -> None:
    """Say before and not after a day of downloading that the disk is too small."""
    partial = [directory / f"{file.name}.part" for file in files]
    there = sum(path.stat().st_size for path in partial if path.exists())
    needed = sum(file.size_bytes or 0 for file in files) - there
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise StorageError(
            f"{needed:,} bytes are to be downloaded into {directory}, {free:,} are free.",
            next_step="free disk space, choose another --out, or fewer files with --match or --limit",
        )


class _Index:
    """`downloads.json`: the downloaded files, by name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / INDEX_NAME
        self.entries: dict[str, Fetched] = {}
        self._saved = time.monotonic()
        if self._path.exists():
            try:
                rows = orjson.loads(self._path.read_bytes())
                self.entries = {row["name"]: Fetched(**row) for row in rows}
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise DownloadError(
                    f"{self._path} cannot be read: {error}.",
                    kept="the files themselves",
                    next_step=f"rm {self._path}; files with a published checksum are not fetched again",
                ) from error

    def has(self, file: RemoteFile, verify: bool) -> bool:
        """Whether the file is there, right as far as anybody knows. One that came before its record is recorded, when a
        published checksum proves it."""
        path = self._directory / file.name
        if not path.exists():
            return False
        entry, status = self.entries.get(file.name), path.stat()
        if file.size_bytes not in (None, status.st_size):
            return False
        if entry is None:
            if not file.checksum or checksum_of(path, file.algorithm) != file.checksum:
                return False
            size, time_ns = status.st_size, status.st_mtime_ns
            self.add(Fetched(file.name, file.url, size, file.algorithm, file.checksum, time_ns))
            return True
        if file.checksum and file.algorithm == entry.algorithm and file.checksum != entry.checksum:
            return False
        if status.st_size != entry.size_bytes:
            return False
        unchanged = status.st_mtime_ns == entry.mtime_ns and not verify
        return unchanged or checksum_of(path, entry.algorithm) == entry.checksum

    def add(self, fetched: Fetched) -> None:
        self.entries[fetched.name] = fetched
        if time.monotonic() - self._saved > SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        rows = [asdict(self.entries[name]) for name in sorted(self.entries)]
        scratch = self._path.with_name(f"{INDEX_NAME}.part")
        scratch.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        os.replace(scratch, self._path)
        self._saved = time.monotonic()
