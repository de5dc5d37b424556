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
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.manifest import hash_json
from cluster.artefacts.owner import lock
from cluster.artefacts.seals import read_sealed, write_sealed
from cluster.artefacts.storage import commit, is_committed, open_artefact, staging_directory
from pipeline.samples import digest_of
from pipeline.samples.mixture import Part
from pipeline.samples.packed import EpochRows

KIND = "epoch_index"
FROM_TOKENS = 1 << 23
"""The index of a smaller store is made as fast as it is read."""
_PARTS = "parts.json"
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


Summary = tuple[list[Part], list[str] | None]
"""The facts of a dataset that are needed before its first sample is read: the parts of its mixture, and
`TokenDataset.languages`, or None if languages are not kept apart."""


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

    def key(self, fingerprint: str, num_tokens: int) -> str | None:
        """The key of a dataset with this fingerprint, or None for stores with too few tokens to cache."""
        if num_tokens < self._from_tokens:
            return None
        key = hash_json([fingerprint, _code_version()])
        self._used.add(key[:16])
        return key

    def evict_unused(self) -> None:
        """Delete the indices of datasets whose keys were not asked for until now, if this process writes."""
        if self.writes and self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name not in self._used:
                    shutil.rmtree(path, ignore_errors=True)

    def summary(self, key: str, make: Callable[[], Summary]) -> Summary:
        """The cached summary of a dataset, or the one that `make` gives, which is then cached."""
        path = self.directory / key[:16] / _PARTS
        try:
            contents = read_sealed(path, signed=True)
        except (OSError, ClozeError, ValueError):
            contents = {}
        if contents.get("index") == key:
            return [Part(**one) for one in contents["parts"]], contents["languages"]
        parts, languages = make()

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            contents = {"index": key, "parts": [asdict(one) for one in parts], "languages": languages}
            write_sealed(path, contents, signed=True)

        self._attempt(write)
        return parts, languages

    def epoch(self, key: str, number: int, epoch: int, make: Callable[[], EpochRows]) -> EpochRows:
        """The index of an epoch of part `number`, memory-mapped; in memory where it cannot be written."""
        directory = self.directory / key[:16] / f"part-{number}-epoch-{epoch}"
        identity = {"index": key, "part": number, "epoch": epoch}
        if (found := self._open(directory, identity)) is not None:
            return found
        if not self.writes:
            return make()
        with ExitStack() as stack:
            # On a file system without locks, each process makes its own.
            with suppress(OSError):
                directory.parent.mkdir(parents=True, exist_ok=True)
                making = stack.enter_context((directory.parent / f".{directory.name}.lock").open("a"))
                lock(making.fileno())
            # Another rank may have made it meanwhile.
            if (found := self._open(directory, identity)) is not None:
                return found
            index = make()
            self._attempt(lambda: _write(index, directory, identity))
        return self._open(directory, identity) or index

    def _open(self, directory: Path, identity: Mapping[str, Any]) -> EpochRows | None:
        """The index in a directory; None where there is none as it was written."""
        if not is_committed(directory):
            return None
        try:
            manifest = open_artefact(directory, kind=KIND)
            if manifest.config != identity:
                raise ValueError(f"{directory} holds something else: {manifest.config}.")
            return EpochRows(**{path.stem: _map_array(path) for path in directory.glob("*.npy")})
        except (ClozeError, OSError, ValueError, TypeError) as error:
            self._notify("index-damaged", error)
            if self.writes:
                shutil.rmtree(directory, ignore_errors=True)
            return None

    def _attempt(self, write: Callable[[], None]) -> None:
        """Write something, if this process writes; report its error, if it is the first."""
        if not self.writes:
            return
        try:
            write()
        except (ClozeError, OSError) as error:
            if not self._failed:
                self._notify("index-not-cached", error)
            self._failed = True

    def _notify(self, event: str, error: Exception) -> None:
        # On a file system that refuses the cache, the event may not be written either.
        with suppress(ClozeError, OSError):
            self._report(event, message=str(error)[:2000])


def _write(index: EpochRows, directory: Path, identity: Mapping[str, Any]) -> None:
    arrays = {one.name: array for one in fields(index) if (array := getattr(index, one.name)) is not None}
    staging = staging_directory(directory, identity["index"])
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
    for path in directory.parent.glob(f"*part-{identity['part']}-epoch-*"):
        other = int(path.name.partition("epoch-")[2].partition(".")[0])
        if abs(other - identity["epoch"]) > 1 and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


@cache
def _code_version() -> str:
    return digest_of(_CODE)


class EpochPrefetch:
    """Results of a function of (part, epoch): each is made once, however many ask for it; the last used are kept."""

    def __init__(self, make: Callable[[int, int], EpochRows], num_kept: int) -> None:
        """
        Args:
            make: a pure function of part and epoch; called in any thread.
            num_kept: how many results are kept.
        """
        self._make = make
        self._num_kept = num_kept
        self._kept: OrderedDict[tuple[int, int], Future[EpochRows]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, part: int, epoch: int) -> EpochRows:
        """An epoch of a part; waits while it is being made, and raises the error of making it."""
        return self.begin(part, epoch).result()

    def begin(self, part: int, epoch: int) -> Future[EpochRows]:
        """Make an epoch in a thread of its own, unless it was begun before; after an error, again."""
        key = part, epoch
        with self._lock:
            if key not in self._kept:
                self._kept[key] = Future()
                name = f"epoch-{epoch}-of-{part}"
                threading.Thread(
                    target=self._fill, args=(self._kept[key], key), name=name, daemon=True
                ).start()
            self._kept.move_to_end(key)
            result = self._kept[key]
            while len(self._kept) > self._num_kept:
                self._kept.popitem(last=False)
            return result

    def _fill(self, result: Future[EpochRows], key: tuple[int, int]) -> None:
        try:
            result.set_result(self._make(*key))
        except BaseException as error:
            with self._lock:
                if self._kept.get(key) is result:
                    del self._kept[key]
            result.set_exception(error)


def _map_array(path: Path) -> np.ndarray:
    """Map a file of NumPy's into memory."""
    for _ in range(5):
        # Until Python 3.12.4, threads that parse literals at the same time disturb one another.
        with suppress(SystemError):
            return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    raise OSError(errno.EAGAIN, "Python cannot parse its header", str(path))
