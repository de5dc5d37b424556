"""The cache of a run's epoch indices on disk: a resumed run need not read the length of each document again.

    index-cache/KEY/parts.json             the parts of a dataset's mixture
    index-cache/KEY/part-P-epoch-E/        blocks of the index of the current epoch, and of the next once it is made

KEY is a hash of the dataset's fingerprint and of the code that makes its indices. One process writes, in a thread of
low priority; all read. A block that is missing or damaged is made anew.
"""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from cluster.artefacts.errors import ClozeError, ConfigError
from cluster.artefacts.manifest import hash_json, seal_signed, unseal_signed, write_durably
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.storage import is_committed, staging_directory
from cluster.priority import step_back
from pipeline.samples.epochs import index_blocks
from pipeline.samples.epochs.index_blocks import Block, DamagedBlockError
from pipeline.samples.epochs.prefetch import EpochPrefetch
from pipeline.samples.noise.kernel_cache import digest_of
from pipeline.samples.parts import Part
from pipeline.samples.rows import EpochIndex, Rows

FROM_TOKENS = 1 << 23
"""The index of a smaller store is made as fast as it is read."""
_PARTS = "parts.json"
_BLOCKS_IN_MEMORY = 2
_CODE = tuple(
    Path(__file__).parents[3] / name
    for name in (
        "pipeline/samples",
        "data_prep/token_arrays.py",
        "data_prep/token_store.py",
        "data_prep/token_files.py",
        "data_prep/hashing.py",
        "data_prep/hash_kernel.py",
    )
)
"""The code that makes indices."""


class Summary(NamedTuple):
    """The facts of a dataset that are needed before its first sample is read."""

    parts: list[Part]
    languages: list[str] | None
    """`TokenDataset.languages`; None if languages are not kept apart."""


class IndexCache:
    """The cached indices of a run's datasets, in a directory of the run."""

    def __init__(
        self,
        directory: Path,
        *,
        writes: bool = False,
        tell: Callable[..., None] | None = None,
        from_tokens: int = FROM_TOKENS,
    ) -> None:
        """
        Args:
            writes: whether this process writes the indices it makes; of all processes that train a run, one does.
            tell: called with the name of an event (`index-not-cached`, `index-damaged`) and its `message`; training
                continues.
            from_tokens: datasets of stores with fewer tokens are not cached.
        """
        self.directory = directory
        self._told = tell or (lambda *_, **__: None)
        self._from_tokens = from_tokens
        self._writer = ThreadPoolExecutor(1, "index-cache", initializer=step_back) if writes else None
        self._pending: list[Future[None]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._failed = False
        self._used: set[str] = set()

    def of(self, fingerprint: str, num_tokens: int) -> DatasetCache | None:
        """The cache of a dataset, or None for stores too small to cache.

        Args:
            num_tokens: tokens of its stores.
        """
        if num_tokens < self._from_tokens:
            return None
        key = hash_json([fingerprint, _code_version()])
        self._used.add(key[:16])
        return DatasetCache(self, self.directory / key[:16], key)

    def evict_unused(self) -> None:
        """Delete the indices of datasets that were not asked for until now, and leftovers of killed processes."""

        def delete() -> None:
            used = [self.directory / name for name in sorted(self._used)]
            _delete(path for path in _entries(self.directory) if path not in used)
            _delete(path for one in used for path in (*one.glob(".*"), *one.glob("*/.*")))

        self.submit(delete)

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in the background, in the order of the calls, if this process writes."""
        if self._writer is None:
            return
        with self._lock:
            if not self._closing.is_set():
                self._pending = [one for one in self._pending if not one.done()]
                self._pending.append(self._writer.submit(self.attempt, work))

    def attempt(self, work: Callable[[], None]) -> None:
        """Run `work` at once, if this process writes; report its error, if it is the first."""
        if self._writer is None:
            return
        try:
            work()
        except InterruptedError:
            return
        except (ClozeError, OSError) as error:
            if not self._failed:
                self.tell("index-not-cached", error)
            self._failed = True

    def require_space(self, size_bytes: int) -> None:
        """Make sure that as much disk space stays free as a block takes, and that the cache is still open.

        Raises:
            InterruptedError: the cache is being closed.
            OSError: there is not enough space.
        """
        if self._closing.is_set():
            raise InterruptedError
        if shutil.disk_usage(self.directory).free < 2 * size_bytes:
            raise OSError(errno.ENOSPC, "Less would be free than it takes", str(self.directory))

    def tell(self, event: str, error: Exception) -> None:
        """Report an event; never fails."""
        # On a file system that refuses the cache, the event may not be written either.
        with suppress(ClozeError, OSError):
            self._told(event, message=str(error)[:2000])

    def close(self, timeout_s: float = 0.0) -> None:
        """Wait at most `timeout_s` for pending writes; the rest is dropped."""
        end_s = time.monotonic() + timeout_s
        # Finished writes may have submitted further ones.
        while (pending := [one for one in self._pending if not one.done()]) and time.monotonic() < end_s:
            wait(pending, end_s - time.monotonic())
        with self._lock:
            self._closing.set()
        if self._writer is not None:
            self._writer.shutdown(cancel_futures=True)


class DatasetCache:
    """The cached indices of one dataset."""

    def __init__(self, owner: IndexCache, path: Path, key: str) -> None:
        self._owner, self._path, self._key = owner, path, key

    def summary(self, make: Callable[[], Summary]) -> Summary:
        """The cached summary of the dataset, or the one that `make` gives, which is then cached.

        Raises:
            ConfigError: the dataset gives no samples, as `make` says now or said before.
        """
        if (contents := self._read()) is not None:
            if refusal := contents["refusal"]:
                raise ConfigError(refusal["problem"], next_step=refusal["next_step"])
            return Summary([Part(**one) for one in contents["parts"]], contents["languages"])
        try:
            found = make()
        except ConfigError as error:
            self._write(refusal={"problem": error.problem, "next_step": error.next_step})
            raise
        self._write(parts=[asdict(one) for one in found.parts], languages=found.languages, refusal=None)
        return found

    def epoch(
        self, number: int, epoch: int, make: Callable[[], EpochIndex], part: Part, num_documents: int
    ) -> EpochIndex:
        """The index of an epoch of part `number`: read from disk, and from memory as soon as a block is missing.

        Args:
            make: makes the whole index.
            num_documents: documents of the part's store.
        """
        directory = self._path / f"part-{number}-epoch-{epoch}"
        identity = {"index": self._key, "part": number, "epoch": epoch}

        def write(index: EpochIndex, block: int) -> None:
            target = index_blocks.block_directory(directory, block)
            staging = staging_directory(target, self._key)
            shutil.rmtree(staging, ignore_errors=True)
            contents = index_blocks.make_block(index, block, part.num_rows, num_documents)
            self._owner.require_space(contents.size_bytes)
            staging.mkdir(parents=True)
            try:
                index_blocks.write_block(contents, staging, target, identity | {"block": block})
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            # The epoch before may be wanted once more, by a run that is rolled back to a checkpoint of it.
            epochs = {
                path: int(path.name.rpartition("-")[2]) for path in self._path.glob(f"part-{number}-epoch-*")
            }
            _delete(path for path, other in epochs.items() if abs(other - epoch) > 1)

        return _CachedIndex(self._owner, directory, identity, part.num_rows, make, write)

    def _read(self) -> dict[str, Any] | None:
        try:
            contents = unseal_signed(orjson.loads(read_bytes(self._path / _PARTS)))
        except (OSError, ClozeError, ValueError):
            return None
        return contents if contents.get("index") == self._key else None

    def _write(self, **contents: Any) -> None:
        def write() -> None:
            self._path.mkdir(parents=True, exist_ok=True)
            write_durably(self._path / _PARTS, orjson.dumps(seal_signed({"index": self._key, **contents})))

        self._owner.attempt(write)


class _CachedIndex:
    """The index of an epoch with some blocks on disk; when later ones are missing, a thread makes it meanwhile."""

    def __init__(
        self,
        owner: IndexCache,
        directory: Path,
        identity: dict[str, Any],
        num_samples: int,
        make: Callable[[], EpochIndex],
        write: Callable[[EpochIndex, int], None],
    ) -> None:
        self._owner, self._directory, self._identity = owner, directory, identity
        self._write = write
        self._block = lru_cache(_BLOCKS_IN_MEMORY)(self._read)
        every = range(index_blocks.num_blocks(num_samples))
        self._missing = {
            one for one in every if not is_committed(index_blocks.block_directory(directory, one))
        }
        self._epoch = identity["part"], identity["epoch"]
        self._current = 0

        def make_and_write(*_: int) -> EpochIndex:
            index = make()
            owner.submit(lambda: self._write_next(index))
            return index

        self._whole = EpochPrefetch(make_and_write, 1)
        if len(self._missing) == len(every):
            self._whole.begin(*self._epoch)

    def look_up(self, places: np.ndarray) -> Rows:
        """The rows at some int64 places of the epoch, in any order."""
        numbers = np.unique(places // index_blocks.BLOCK)
        self._current = int(numbers[-1])
        if any(block > self._current for block in tuple(self._missing)):
            self._whole.begin(*self._epoch)
        if not self._whole.has(*self._epoch) and self._missing.isdisjoint(numbers.tolist()):
            try:
                joined = Block.join([self._block(number) for number in numbers.tolist()])
            except DamagedBlockError as error:
                self._owner.tell("index-damaged", error)
                self._missing.add(error.block)
            else:
                # All blocks but the last of the epoch are full.
                before = np.searchsorted(numbers, places // index_blocks.BLOCK) * index_blocks.BLOCK
                return joined.look_up(before + places % index_blocks.BLOCK)
        return self._whole.get(*self._epoch).look_up(places)

    def _read(self, number: int) -> Block:
        directory = index_blocks.block_directory(self._directory, number)
        return index_blocks.read_block(directory, number, self._identity | {"block": number})

    def _write_next(self, index: EpochIndex) -> None:
        """Write the current block if it is missing, else the next missing one; then let other work have its turn."""
        if self._missing:
            block = min(tuple(self._missing), key=lambda number: (number < self._current, number))
            self._write(index, block)
            self._missing.discard(block)
            self._owner.submit(lambda: self._write_next(index))


@cache
def _code_version() -> str:
    return digest_of(_CODE)


def _entries(directory: Path) -> Sequence[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else ()


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
