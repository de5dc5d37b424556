"""What was laid out for a run, kept on disk: whoever continues the run need not look at each document again.

    layout/KEY/outline.json          what is known of a dataset's stocks
    layout/KEY/part-P-epoch-E/       the epoch that is read, and the next one once it was laid out ahead

KEY is a hash of the dataset's fingerprint and of the code that lays it out. One process writes, in a thread of low
priority; all read. What is missing, or is not what was written, is laid out anew.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.errors import ClozeError, ConfigError, CorruptArtefactError
from cluster.manifest import hash_json, seal, unseal, write_durably
from cluster.storage import is_committed, staging_directory
from pipeline.batches.kept_epoch import KeptEpoch, write_epoch
from pipeline.batches.kernel_cache import digest_of
from pipeline.batches.laid_out import Drawn, Epoch, LaidOut
from pipeline.batches.stocks import Outline

FROM_TOKENS = 1 << 23
"""Smaller stores are laid out as fast as a layout of theirs is read."""
_OUTLINE = "outline.json"
_NICENESS = 19
_CODE = tuple(
    Path(__file__).parents[2] / name
    for name in (
        "pipeline/batches",
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
        self._writer = ThreadPoolExecutor(1, "layouts", initializer=_step_back) if writes else None
        self._pending: list[Future[None]] = []
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
            _delete(
                path for one in kept for path in _entries(one) if path.name.endswith((".partial", ".tmp"))
            )

        self.write(delete)

    def write(self, work: Callable[[], None]) -> None:
        """Do it in the background, in the order of the calls, where this process is the one that writes."""
        if self._writer is not None and not self._closing.is_set():
            self._pending = [one for one in self._pending if not one.done()]
            self._pending.append(self._writer.submit(self._attempt, work))

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
        wait(self._pending, timeout_s)
        self._closing.set()
        if self._writer is not None:
            self._writer.shutdown(wait=False, cancel_futures=True)

    def _attempt(self, work: Callable[[], None]) -> None:
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

    def epoch(self, part: int, number: int, lay_out: Callable[[], LaidOut], num_documents: int) -> Epoch:
        """An epoch of a part, as it was kept; else as it is laid out now, and kept.

        Args:
            num_documents: documents of the part's store.
        """

        def anew() -> LaidOut:
            laid_out = lay_out()
            self._owner.write(lambda: self._write(part, number, laid_out, num_documents))
            return laid_out

        def mend(error: Exception) -> LaidOut:
            self._owner.damaged(error)
            return anew()

        directory = self._directory(part, number)
        if not is_committed(directory):
            return anew()
        try:
            return _Mended(KeptEpoch(directory, self._identity(part, number)), mend)
        except (ClozeError, OSError, ValueError) as error:
            return mend(error)

    def _directory(self, part: int, number: int) -> Path:
        return self._path / f"part-{part}-epoch-{number}"

    def _identity(self, part: int, number: int) -> dict[str, Any]:
        return {"layout": self._key, "part": part, "epoch": number}

    def _keep_outline(self, **contents: Any) -> None:
        def write() -> None:
            self._path.mkdir(parents=True, exist_ok=True)
            write_durably(self._path / _OUTLINE, orjson.dumps(seal({"layout": self._key, **contents})))

        self._owner.write(write)

    def _write(self, part: int, number: int, laid_out: LaidOut, num_documents: int) -> None:
        directory = self._directory(part, number)
        staging = staging_directory(directory, self._key)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            identity = self._identity(part, number)
            write_epoch(staging, directory, identity, laid_out, num_documents, self._owner.go_on)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        epochs = {path: int(path.name.rpartition("-")[2]) for path in self._path.glob(f"part-{part}-epoch-*")}
        # The one before may be wanted once more, by a run that goes back to a checkpoint of it.
        _delete(path for path, epoch in epochs.items() if abs(epoch - number) > 1)


class _Mended:
    """An epoch on disk for as long as it is what was written; then one that is laid out anew."""

    def __init__(self, kept: KeptEpoch, mend: Callable[[Exception], LaidOut]) -> None:
        self._kept, self._mend = kept, mend
        self._laid_out: LaidOut | None = None
        self._lock = threading.Lock()

    def draw(self, places: np.ndarray) -> Drawn:
        if self._laid_out is None:
            try:
                return self._kept.draw(places)
            except (CorruptArtefactError, OSError) as error:
                with self._lock:
                    if self._laid_out is None:
                        self._laid_out = self._mend(error)
        return self._laid_out.draw(places)


@cache
def _code_version() -> str:
    return digest_of(_CODE)


def _step_back() -> None:
    """Let all other threads compute first."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _entries(directory: Path) -> Sequence[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else ()


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
