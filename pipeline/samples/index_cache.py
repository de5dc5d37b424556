"""The indices of epochs: made once, kept on disk and memory-mapped by all ranks, and made ahead of time in threads.

    index-cache/KEY/parts.json             the parts of a dataset's mixture
    index-cache/KEY/part-P-epoch-E/        an artefact: the arrays of the index of an epoch, one `.npy` each

KEY is a hash of the dataset's fingerprint and of the code that makes its indices. The first rank that needs an epoch
makes it under a lock, and the others wait for it. A resumed run finds it. An index is verified when it is opened; one
that is missing or damaged is made again.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from cluster.artefacts.errors import ClozeError, ConfigError
from cluster.artefacts.manifest import hash_json, read_sealed, write_sealed
from cluster.artefacts.owner import lock
from cluster.artefacts.storage import commit, is_committed, open_artefact, staging_directory
from pipeline.samples import digest_of
from pipeline.samples.formats import rows_from_arrays
from pipeline.samples.mixture import Part
from pipeline.samples.rows import ShuffledRows

KIND = "epoch_index"
FROM_TOKENS = 1 << 23
"""The index of a smaller store is made as fast as it is read."""
_PARTS, _ORDER = "parts.json", "order"
_CODE = tuple(
    Path(__file__).parents[2] / name
    for name in (
        "pipeline/samples",
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
        report: Callable[..., None] | None = None,
        from_tokens: int = FROM_TOKENS,
    ) -> None:
        """
        Args:
            writes: whether this process writes the indices it makes.
            report: called with the name of an event (`index-not-cached`, `index-damaged`) and its `message`; training
                continues.
            from_tokens: datasets of stores with fewer tokens are not cached.
        """
        self.directory, self.writes = directory, writes
        self._report = report or (lambda *_, **__: None)
        self._from_tokens = from_tokens
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
        """Delete the indices of datasets that were not asked for until now, if this process writes."""
        if self.writes and self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name not in self._used:
                    shutil.rmtree(path, ignore_errors=True)

    def attempt(self, work: Callable[[], None]) -> None:
        """Write something, if this process writes; report its error, if it is the first."""
        if not self.writes:
            return
        try:
            work()
        except (ClozeError, OSError) as error:
            if not self._failed:
                self.report("index-not-cached", error)
            self._failed = True

    def report(self, event: str, error: Exception) -> None:
        """Report an event; never fails."""
        # On a file system that refuses the cache, the event may not be written either.
        with suppress(ClozeError, OSError):
            self._report(event, message=str(error)[:2000])


class DatasetCache:
    """The cached indices of one dataset."""

    def __init__(self, owner: IndexCache, path: Path, key: str) -> None:
        self._owner, self._path, self._key = owner, path, key

    def summary(self, make: Callable[[], Summary]) -> Summary:
        """The cached summary of the dataset, or the one that `make` gives, which is then cached.

        Raises:
            ConfigError: the dataset gives no samples, as `make` says now or said before.
        """
        try:
            contents = read_sealed(self._path / _PARTS, signed=True)
        except (OSError, ClozeError, ValueError):
            contents = {}
        if contents.get("index") == self._key:
            if refusal := contents["refusal"]:
                raise ConfigError(refusal["problem"], next_step=refusal["next_step"])
            return Summary([Part(**one) for one in contents["parts"]], contents["languages"])
        try:
            found = make()
        except ConfigError as error:
            self._write_summary(refusal={"problem": error.problem, "next_step": error.next_step})
            raise
        self._write_summary(
            parts=[asdict(one) for one in found.parts], languages=found.languages, refusal=None
        )
        return found

    def epoch(self, number: int, epoch: int, make: Callable[[], ShuffledRows]) -> ShuffledRows:
        """The index of an epoch of part `number`, memory-mapped; in memory where it cannot be written."""
        directory = self._path / f"part-{number}-epoch-{epoch}"
        identity = {"index": self._key, "part": number, "epoch": epoch}
        if (found := self._open(directory, identity)) is not None:
            return found
        if not self._owner.writes:
            return make()
        with ExitStack() as stack:
            # On a file system without locks, each process makes its own.
            with suppress(OSError):
                self._path.mkdir(parents=True, exist_ok=True)
                making = stack.enter_context((self._path / f".{directory.name}.lock").open("a"))
                lock(making.fileno())
            # Another rank may have made it meanwhile.
            if (found := self._open(directory, identity)) is not None:
                return found
            index = make()
            self._owner.attempt(lambda: self._write(index, directory, identity))
        return self._open(directory, identity) or index

    def _open(self, directory: Path, identity: Mapping[str, Any]) -> ShuffledRows | None:
        """The index in a directory; None where there is none as it was written."""
        if not is_committed(directory):
            return None
        try:
            manifest = open_artefact(directory, kind=KIND)
            if manifest.config != identity:
                raise ValueError(f"{directory} holds something else: {manifest.config}.")
            arrays = {path.stem: _map_array(path) for path in directory.glob("*.npy")}
            return ShuffledRows(rows_from_arrays(arrays), arrays[_ORDER])
        except (ClozeError, OSError, ValueError) as error:
            self._owner.report("index-damaged", error)
            if self._owner.writes:
                shutil.rmtree(directory, ignore_errors=True)
            return None

    def _write(self, index: ShuffledRows, directory: Path, identity: Mapping[str, Any]) -> None:
        arrays = {**index.rows.arrays(), _ORDER: index.order}
        staging = staging_directory(directory, self._key)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            if shutil.disk_usage(staging).free < 2 * sum(each.nbytes for each in arrays.values()):
                raise OSError(errno.ENOSPC, "Less would be free than it takes", str(directory))
            for name, array in arrays.items():
                np.save(staging / f"{name}.npy", array)
            commit(staging, directory, KIND, config=identity)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        # The epoch before may be wanted once more, by a run that is rolled back to a checkpoint of it.
        for path in self._path.glob(f"*part-{identity['part']}-epoch-*"):
            other = int(path.name.partition("epoch-")[2].partition(".")[0])
            if abs(other - identity["epoch"]) > 1 and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def _write_summary(self, **contents: Any) -> None:
        def write() -> None:
            self._path.mkdir(parents=True, exist_ok=True)
            write_sealed(self._path / _PARTS, {"index": self._key, **contents}, signed=True)

        self._owner.attempt(write)


@cache
def _code_version() -> str:
    return digest_of(_CODE)


IndexT = TypeVar("IndexT")


class EpochPrefetch(Generic[IndexT]):
    """Results of a function of (part, epoch): each is made once, however many ask for it; the last used are kept."""

    def __init__(self, make: Callable[[int, int], IndexT], num_kept: int) -> None:
        """
        Args:
            make: a pure function of part and epoch; called in any thread.
            num_kept: how many results are kept.
        """
        self._make = make
        self._num_kept = num_kept
        self._kept: OrderedDict[tuple[int, int], Future[IndexT]] = OrderedDict()
        self._latest: tuple[tuple[int, int], IndexT] | None = None
        """The last result of `get`: batch after batch asks for the same, and a lock costs as much as some rows."""
        self._lock = threading.Lock()

    def get(self, part: int, epoch: int) -> IndexT:
        """An epoch of a part; waits while it is being made, and raises the error of making it."""
        latest = self._latest
        if latest is not None and latest[0] == (part, epoch):
            return latest[1]
        result, is_new = self._claim(part, epoch)
        if is_new:
            self._fill(result, part, epoch)
        index = result.result()
        self._latest = (part, epoch), index
        return index

    def begin(self, part: int, epoch: int) -> None:
        """Make an epoch in a thread of its own, unless that was begun before. After an error, `get` tries again."""
        result, is_new = self._claim(part, epoch)
        if is_new:
            name = f"epoch-{epoch}-of-{part}"
            threading.Thread(target=self._fill, args=(result, part, epoch), name=name, daemon=True).start()

    def _claim(self, part: int, epoch: int) -> tuple[Future[IndexT], bool]:
        """The epoch, perhaps still to be made, and whether the caller has to see to that."""
        with self._lock:
            is_new = (part, epoch) not in self._kept
            if is_new:
                self._kept[part, epoch] = Future()
            self._kept.move_to_end((part, epoch))
            result = self._kept[part, epoch]
            while len(self._kept) > self._num_kept:
                self._kept.popitem(last=False)
            return result, is_new

    def _fill(self, result: Future[IndexT], part: int, epoch: int) -> None:
        try:
            result.set_result(self._make(part, epoch))
        except BaseException as error:
            with self._lock:
                if self._kept.get((part, epoch)) is result:
                    del self._kept[part, epoch]
            result.set_exception(error)


def _map_array(path: Path) -> np.ndarray:
    """Map a file of NumPy's into memory."""
    for _ in range(5):
        # Until Python 3.12.4, threads that parse literals at the same time disturb one another.
        with suppress(SystemError):
            return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    raise OSError(errno.EAGAIN, "Python cannot parse its header", str(path))
