"""What was laid out for a run, kept on disk: whoever continues the run need not look at each document again.

    layout/KEY/outline.json          what is known of a dataset's stocks
    layout/KEY/part-P-epoch-E/       the epoch that is read, and the next one once it was laid out ahead, in stretches

KEY is a hash of the dataset's fingerprint and of the code that lays it out. One process writes, in a thread of low
priority; all read. What is missing, or is not what was written, is laid out anew.
"""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.artefacts.errors import ClozeError, ConfigError
from cluster.artefacts.manifest import hash_json, seal, unseal, write_durably
from cluster.artefacts.storage import staging_directory
from cluster.priority import step_back
from pipeline.samples.epochs.kept_epoch import (
    DamagedStretchError,
    KeptEpoch,
    stretch_directory,
    stretch_of,
    stretches_of,
    write_stretch,
)
from pipeline.samples.epochs.laid_out import Drawn, Epoch, LaidOut
from pipeline.samples.epochs.stocks import Outline
from pipeline.samples.noise.kernel_cache import digest_of

FROM_TOKENS = 1 << 23
"""Smaller stores are laid out as fast as a layout of theirs is read."""
_OUTLINE = "outline.json"
_CODE = tuple(
    Path(__file__).parents[3] / name
    for name in (
        "pipeline/samples",
        "data_prep/token_store.py",
        "data_prep/token_files.py",
        "data_prep/hashing.py",
        "data_prep/hash_kernel.py",
    )
)
"""What layouts are made by."""


@dataclass(frozen=True, slots=True)
class KeptOutline:
    """What is known of a dataset."""

    stocks: list[Outline]
    languages: list[str] | None
    """`TokenDataset.languages`, where they are kept apart."""


class KeptLayouts:
    """The layouts of a run, in a directory of it."""

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
            writes: whether this process keeps what it lays out; of all that train a run, one does.
            tell: is told by name (`layout-not-kept`, `layout-damaged`) and `message` of what went wrong; training
                goes on.
            from_tokens: datasets of stores with fewer tokens are not kept.
        """
        self.directory = directory
        self._told = tell or (lambda *_, **__: None)
        self._from_tokens = from_tokens
        self._writer = ThreadPoolExecutor(1, "layouts", initializer=step_back) if writes else None
        self._pending: list[Future[None]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._failed = False
        self._used: set[str] = set()

    def of(self, fingerprint: str, num_tokens: int) -> KeptLayout | None:
        """That of a dataset; None where it is not worth the while.

        Args:
            num_tokens: tokens of its stores.
        """
        if num_tokens < self._from_tokens:
            return None
        key = hash_json([fingerprint, _code_version()])
        self._used.add(key[:16])
        return KeptLayout(self, self.directory / key[:16], key)

    def forget_others(self) -> None:
        """Delete the layouts that nobody asked for until now, and what a process that was killed left behind."""

        def delete() -> None:
            kept = [self.directory / name for name in sorted(self._used)]
            _delete(path for path in _entries(self.directory) if path not in kept)
            _delete(path for one in kept for path in (*one.glob(".*"), *one.glob("*/.*")))

        self.write(delete)

    def write(self, work: Callable[[], None]) -> None:
        """Do it in the background, in the order of the calls, where this process is the one that writes."""
        if self._writer is None:
            return
        with self._lock:
            if not self._closing.is_set():
                self._pending = [one for one in self._pending if not one.done()]
                self._pending.append(self._writer.submit(self.attempt, work))

    def go_on(self, size_bytes: int) -> None:
        """Called in the middle of writing, after so many bytes; at least as many stay free for others.

        Raises:
            OSError: it is to end.
        """
        if self._closing.is_set():
            raise InterruptedError
        if shutil.disk_usage(self.directory).free < size_bytes:
            raise OSError(errno.ENOSPC, "Less is free than it has taken already", str(self.directory))

    def damaged(self, error: Exception) -> None:
        """Tell of something that was laid out anew because it was not what was written."""
        self._tell("layout-damaged", error)

    def close(self, timeout_s: float = 0.0) -> None:
        """Wait so long for what is being written; give up what is not done then."""
        end_s = time.monotonic() + timeout_s
        # What is done may have led to more.
        while (pending := [one for one in self._pending if not one.done()]) and time.monotonic() < end_s:
            wait(pending, end_s - time.monotonic())
        with self._lock:
            self._closing.set()
        if self._writer is not None:
            # What is being written ends at its next block.
            self._writer.shutdown(cancel_futures=True)

    def attempt(self, work: Callable[[], None]) -> None:
        """Do it at once, where this process is the one that writes; tell of what goes wrong."""
        if self._writer is None:
            return
        try:
            work()
        except InterruptedError:
            return
        except (ClozeError, OSError) as error:
            if not self._failed:
                self._tell("layout-not-kept", error)
            self._failed = True

    def _tell(self, event: str, error: Exception) -> None:
        # Where nothing can be written, the event cannot be either.
        with suppress(ClozeError, OSError):
            self._told(event, message=str(error)[:2000])


class KeptLayout:
    """The layout of one dataset."""

    def __init__(self, owner: KeptLayouts, path: Path, key: str) -> None:
        self._owner, self._path, self._key = owner, path, key

    def outline(self) -> KeptOutline | None:
        """What is known of the dataset; None where nothing was kept.

        Raises:
            ConfigError: it gives no samples.
        """
        try:
            contents = unseal(orjson.loads((self._path / _OUTLINE).read_bytes()))
        except (OSError, ValueError):
            return None
        if contents.get("layout") != self._key:
            return None
        if refusal := contents["refusal"]:
            raise ConfigError(refusal["problem"], next_step=refusal["next_step"])
        return KeptOutline([Outline(**one) for one in contents["stocks"]], contents["languages"])

    def keep_outline(self, outline: KeptOutline) -> None:
        """Keep what is known of the dataset."""
        self._keep_outline(
            stocks=[asdict(one) for one in outline.stocks], languages=outline.languages, refusal=None
        )

    def keep_refusal(self, error: ConfigError) -> None:
        """Keep that the dataset gives no samples."""
        self._keep_outline(refusal={"problem": error.problem, "next_step": error.next_step})

    def epoch(
        self, part: int, number: int, lay_out: Callable[[], LaidOut], outline: Outline, num_documents: int
    ) -> Epoch:
        """An epoch of a part: what was kept of it, and as soon as something else is wanted as it is laid out now.

        Args:
            num_documents: documents of the part's store.
        """
        directory = self._path / f"part-{part}-epoch-{number}"

        def write(laid_out: LaidOut, stretch: int) -> None:
            target = stretch_directory(directory, stretch)
            staging = staging_directory(target, self._key)
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            try:
                write_stretch(
                    staging, directory, identity, laid_out, stretch, num_documents, self._owner.go_on
                )
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            # The epoch before may be wanted once more, by a run that goes back to a checkpoint of it.
            epochs = {
                path: int(path.name.rpartition("-")[2]) for path in self._path.glob(f"part-{part}-epoch-*")
            }
            _delete(path for path, epoch in epochs.items() if abs(epoch - number) > 1)

        identity = {"layout": self._key, "part": part, "epoch": number}
        kept = KeptEpoch(directory, identity)
        return _KeptOrNew(self._owner, kept, stretches_of(outline.num_rows), lay_out, write)

    def _keep_outline(self, **contents: Any) -> None:
        def write() -> None:
            self._path.mkdir(parents=True, exist_ok=True)
            write_durably(self._path / _OUTLINE, orjson.dumps(seal({"layout": self._key, **contents})))

        self._owner.attempt(write)


class _KeptOrNew:
    """An epoch of which some stretches may be on disk; where others come after them, a thread lays it out meanwhile."""

    def __init__(
        self,
        owner: KeptLayouts,
        kept: KeptEpoch,
        num_stretches: int,
        lay_out: Callable[[], LaidOut],
        write: Callable[[LaidOut, int], None],
    ) -> None:
        self._owner, self._kept, self._lay_out, self._write = owner, kept, lay_out, write
        self._missing = {stretch for stretch in range(num_stretches) if not kept.has(stretch)}
        self._new: Future[LaidOut] | None = None
        self._lock = threading.Lock()
        self._current = 0
        if len(self._missing) == num_stretches:
            self._begin()

    def draw(self, places: np.ndarray) -> Drawn:
        """The samples at some int64 places of the epoch, in any order."""
        wanted = set(map(stretch_of, places.tolist()))
        self._current = max(wanted)
        if any(stretch > self._current for stretch in tuple(self._missing)):
            self._begin()
        new = self._new
        if not (new is not None and new.done()) and not wanted & self._missing:
            try:
                return self._kept.draw(places)
            except DamagedStretchError as error:
                self._owner.damaged(error)
                self._missing.add(error.stretch)
        return self._begin().result().draw(places)

    def _begin(self) -> Future[LaidOut]:
        with self._lock:
            if self._new is None:
                self._new = Future()
                threading.Thread(target=self._fill, args=(self._new,), name="layout", daemon=True).start()
            return self._new

    def _fill(self, new: Future[LaidOut]) -> None:
        try:
            laid_out = self._lay_out()
        except BaseException as error:
            with self._lock:
                self._new = None
            new.set_exception(error)
            return
        self._owner.write(lambda: self._keep_next(laid_out))
        new.set_result(laid_out)

    def _keep_next(self, laid_out: LaidOut) -> None:
        """Write the stretch that is read, or the next one that is missing; others have their turn before the one after
        it."""
        if self._missing:
            stretch = min(tuple(self._missing), key=lambda number: (number < self._current, number))
            self._write(laid_out, stretch)
            self._missing.discard(stretch)
            self._owner.write(lambda: self._keep_next(laid_out))


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
