"""`cloze support-bundle`: a run in one file that may be given to others, in any state, also a damaged one.

A part that cannot be made is replaced by the reason. Weights, data and caches are listed and never copied. Every text
goes through the redaction, one by one. The same texts give the same bytes: entries are in the order of their names,
without times and owners.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.credentials import Redactor, known_secrets
from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.manifest import cloze_version, write_durably
from cluster.artefacts.owner import is_in_use
from cluster.artefacts.storage import storage_errors
from pipeline.run.directory import CONFIG_FILE, RUN_FILE, RunDirectory
from pipeline.run.history import environment
from pipeline.run.log.lines import lines_backwards
from pipeline.watch.description import describe
from pipeline.watch.run_status import LogTail, RunReader

LOG_LINES = 1000
_MOST_BYTES = 1 << 20
"""Most bytes of one file; its end is taken."""
_MOST_FILES = 200
"""Most files of one folder; the first by name are taken."""
_LISTED_FILES = 5000
_FILES = (
    *(RUN_FILE, "events.jsonl", "skipped.json", "owner.json", "stop.json"),
    *("log.errors", "log.status", "log.sent", ".log.sender", ".lock"),
)
_FOLDERS = ("heartbeats", "stacks")

Part = tuple[str, Callable[[], str]]
"""Name of a file in the bundle, and what makes its text."""


def was_a_run(directory: Path) -> bool:
    """Whether a directory has any file of a run: nothing about other directories is to be collected."""
    return any((directory / name).is_file() for name in (RUN_FILE, CONFIG_FILE, "events.jsonl", "log.jsonl"))


def parts_of_run(run: RunDirectory, job: Any) -> list[Part]:
    """Everything about a run.

    Args:
        job: the job that drives or drove it, as Ray's client gives it; None without one.
    """
    files = [run.path / name for name in _FILES]
    files += sorted(run.path.glob(f"{CONFIG_FILE}*"))
    for folder in _FOLDERS:
        files += islice(sorted((run.path / folder).glob("*")), _MOST_FILES)
    copies = [(f"run/{path.relative_to(run.path)}", _copy_of(path)) for path in files if _is_plain(path)]
    return [
        ("description.json", lambda: _json(asdict(describe(str(run.path), run.path.parent, job)))),
        ("status.json", lambda: _json(asdict(RunReader(run).read()) | {"in_use": is_in_use(run.path)})),
        ("last-metrics.json", lambda: _json(dict(LogTail(run).read()))),
        ("run/log-tail.jsonl", lambda: _last_lines(run.log, LOG_LINES)),
        ("run/files.txt", lambda: "".join(_listing(run.path))),
        *copies,
    ]


def parts_of_machine(runs_dir: Path) -> list[Part]:
    """Versions, and the checks of `cloze doctor` on this machine."""

    def versions() -> str:
        installed = {str(one.metadata["Name"]): one.version for one in distributions()}
        by_name = dict(sorted(installed.items(), key=lambda pair: pair[0].lower()))
        return _json(environment() | {"installed": by_name})

    def doctor() -> str:
        from cluster.checks.machine import Places, run_checks
        from cluster.connecting import named_address

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        checks = run_checks(Places(runs_dir, None, named_address(None), uri))
        return _json([asdict(check) for check in checks])

    return [
        ("versions.json", versions),
        ("doctor.json", doctor),
    ]


def part_of_plan(run: RunDirectory) -> Part:
    """Memory, disk and hours of the run by `cloze plan`; takes seconds, and needs its token stores."""

    def make() -> str:
        from pipeline.engine.gpus import CPU, find_gpu
        from pipeline.plan.plan import make_plan, to_json

        workers = RunReader(run).read().workers
        card = next((find_gpu(str(one["gpu"])) for one in workers if "gpu" in one), None) or CPU
        hosts = [worker.get("host") for worker in workers]
        nodes = max(1, len(set(hosts)))
        settings = run.config(("cluster.workers=1",))
        if any(isinstance(store.path, str) for store in settings.data.stores):
            raise MissingInputError("A bundle opens no addresses, and the run names some as its stores.")
        return _json(to_json(make_plan(settings, card, nodes, max(1, len(hosts) // nodes))))

    return "plan.json", make


def _copy_of(path: Path) -> Callable[[], str]:
    def make() -> str:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _MOST_BYTES))
            text = stream.read(_MOST_BYTES).decode(errors="replace")
        left_out = size - _MOST_BYTES
        return f"[the first {left_out:,} bytes are left out]\n{text}" if left_out > 0 else text

    return make


def _is_plain(path: Path) -> bool:
    """Whether it is a file of its own: a link may lead to what is not the run's, and a pipe blocks."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _last_lines(path: Path, number: int) -> str:
    if not _is_plain(path):
        return ""
    lines = list(islice(lines_backwards(path), number))
    text = b"".join(line + b"\n" for line in reversed(lines)).decode(errors="replace")
    return text[-2 * _MOST_BYTES :]


def _listing(directory: Path) -> Iterator[str]:
    """Size in bytes and path of every file, by path."""
    count = 0
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > _LISTED_FILES:
                yield "... and more\n"
                return
            path = Path(folder, name)
            try:
                size = f"{path.lstat().st_size:>15,}"
            except OSError as error:
                size = f"{error.strerror!s:>15}"
            yield f"{size}  {path.relative_to(directory)}\n"


def _json(value: Any) -> str:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(value, option=options, default=str).decode() + "\n"


_README = """Support bundle of the run {name}, made by cloze {version}.

{removed} secrets were removed: passwords and tokens of the machine that made it, of URIs and of settings. It names
hosts, users, paths and source files. Read it before you give it away; weights, texts and caches are not in it.

{listing}
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A written bundle."""

    file: Path
    size_bytes: int
    names: tuple[str, ...]
    """Its entries."""
    problems: tuple[str, ...]
    """`NAME: why` of the parts that could not be made."""
    removed: int
    """Secrets that were removed."""


def write_bundle(run: RunDirectory, parts: Sequence[Part], file: Path) -> Bundle:
    """Write the parts as `support-RUN/...` into a compressed archive; an earlier file is replaced.

    Raises:
        StorageError: the file system refuses.
    """
    redact = Redactor(
        known_secrets(os.environ, Path.cwd(), run.path, run.path.parent, run.path.parent.parent)
    )
    texts: dict[str, str] = {}
    problems = []
    for name, make in parts:
        try:
            texts[name] = redact(make())
        # Whatever is damaged must not keep the other parts from those who are to repair it.
        except Exception as error:
            problem = str(error) if isinstance(error, ClozeError) else f"{type(error).__name__}: {error}"
            problems.append(redact(f"{name}: {problem}"))
    if problems:
        texts["problems.txt"] = "\n\n".join(problems) + "\n"
    listing = "\n".join(f"{len(text.encode()):>12,}  {name}" for name, text in sorted(texts.items()))
    name = redact(run.path.resolve().name)
    texts["README.txt"] = _README.format(
        name=name, version=cloze_version(), removed=redact.count, listing=listing
    )
    data = _archive(f"support-{name}", texts)
    with storage_errors(file):
        write_durably(file, data)
    return Bundle(file, len(data), tuple(sorted(texts)), tuple(problems), redact.count)


def _archive(top: str, texts: dict[str, str]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, text in sorted(texts.items()):
            data = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)
