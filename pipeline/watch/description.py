"""One job or run as an operator asks for it: what it is, where it is, how it ended, and the page to read; and a run in
one file that may be given to others, in any state, also a damaged one (`cloze support-bundle`).

A part of a bundle that cannot be made is replaced by the reason. Weights, data and caches are listed and never copied.
Every text goes through the redaction, one by one. The same texts give the same bytes: entries are in the order of their
names, without times and owners.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cluster import signals
from cluster.artefacts.credentials import Redactor, known_secrets
from cluster.artefacts.errors import ClozeError, MissingInputError, ReferenceNotFoundError, exit_codes
from cluster.artefacts.manifest import cloze_version, write_durably
from cluster.artefacts.owner import is_in_use
from cluster.artefacts.storage import storage_errors
from pipeline.run.directory import CONFIG_FILE, RUN_FILE, RunDirectory, find_run, list_runs
from pipeline.run.events import Event
from pipeline.run.history import environment
from pipeline.run.log.lines import lines_backwards
from pipeline.run.submission import CONFIG_KEY, VERB_KEY
from pipeline.watch.run_status import LogEnd, changed_s, read_status

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

_OTHERS = {
    0: "success",
    2: "a command line that cannot be read; --help shows how it is typed",
    signals.EXIT_CODES[signal.SIGINT]: "Ctrl-C",
}


def ending_of(exit_code: int) -> dict[str, Any]:
    """The meaning of an exit code; `error`, the name of its class, and `runbook`, its page, are empty for none."""
    error, page = "", ""
    # Shells add 128 to the number of the signal that ended a program.
    number = -exit_code if exit_code < 0 else exit_code - 128
    if kind := exit_codes().get(exit_code):
        error, page = kind.__name__, kind.runbook
        meaning = re.sub(r"\s+", " ", (kind.__doc__ or "").partition("\n\n")[0]).strip()
    elif exit_code in _OTHERS:
        meaning = _OTHERS[exit_code]
    elif number in set(signal.Signals):
        meaning = f"killed by {signal.Signals(number).name}"
        page = "out-of-memory.md" if number == signal.SIGKILL else "resume-after-a-failure.md"
    else:
        meaning = "no documented exit code: a bug of cloze, or of another program"
    runbook = f"runbooks/{page}" if page else ""
    return {"exit_code": exit_code, "error": error, "meaning": meaning, "runbook": runbook}


def describe(name: str, runs_dir: Path, job: JobDetails | None) -> dict[str, Any]:
    """Describe a job or a run as JSON-like data.

    Args:
        name: as it was asked for: a submission id, or a run's name, directory or MLflow run id.
        job: the job of that id, if a cluster knows one.

    Returns:
        `job`, None for a run without one or whose cluster forgot it; `run`, None for verbs that train no run; `ending`,
        None while it runs or if the end was not recorded; `config_hash` of what the job resolved to, else of the run's
        stored configuration; `nodes`, the hosts of driver and workers; `error`, the run's last one as it was reported
        then; and the `command` to continue, or to see more.

    Raises:
        ReferenceNotFoundError: it is neither.
    """
    run = run_of(name, runs_dir, job is not None)
    if run is None:
        status, events, command = None, [], f"cloze logs {name}"
    else:
        status, events = read_status(run), run.events()
        continued = dict.fromkeys(("failed", "preempted", "lost"), f"cloze resume {run.typed}")
        commands = continued | {"finished": f"cloze checkpoints {run.typed}"}
        command = commands.get(status.state, f"cloze top --runs-dir {run.path.parent}")
    ended_badly = status is not None and status.state in ("failed", "preempted")
    failures = [event for event in events if event["event"] == Event.FAILED] if ended_badly else []
    ending = None
    if job is not None:
        ending = None if job.driver_exit_code is None else ending_of(job.driver_exit_code)
    elif status is not None and status.state == "finished":
        ending = ending_of(0)
    elif failures:
        codes = {error.__name__: code for code, error in exit_codes().items()}
        error = str(failures[-1].get("error", ""))
        unknown = {"exit_code": 1, "error": error, "meaning": "", "runbook": ""}
        ending = ending_of(codes[error]) if error in codes else unknown
    metadata = {} if job is None else job.metadata or {}
    drivers = [str(event.get("host")) for event in events if event["event"] == Event.LAUNCHED][-1:]
    workers = [] if status is None else [str(worker.get("host")) for worker in status.workers]
    return {
        "job": None if job is None else job_facts(job),
        "run": None if status is None else asdict(status),
        "ending": ending,
        "config_hash": metadata.get(CONFIG_KEY) or ("" if status is None else status.config_hash),
        "nodes": list(dict.fromkeys([*drivers, *workers])),
        "error": str(failures[-1].get("message", "")) if failures else "",
        "command": command,
    }


def run_of(name: str, runs_dir: Path, is_job: bool) -> RunDirectory | None:
    """The newest run that a job drives or drove, or the run of that name; None for a job without a run.

    Raises:
        ReferenceNotFoundError: there is neither; names the nearest run.
    """
    drives = []
    for run in list_runs(runs_dir):
        with suppress(ClozeError, OSError):
            launches = run.events(Event.LAUNCHED)
            if name in (run.info.submission_id, *(event.get("submission_id") for event in launches)):
                drives.append(run)
    if drives:
        return max(drives, key=changed_s)
    try:
        return find_run(name, runs_dir)
    except ReferenceNotFoundError:
        if is_job:
            return None
        raise


def job_facts(job: JobDetails) -> dict[str, Any]:
    """A job as JSON-like data."""
    return {
        "submission_id": job.submission_id,
        "verb": (job.metadata or {}).get(VERB_KEY),
        "status": job.status.value,
        "message": job.message or "",
        "start_s": job.start_time / 1000 if job.start_time else None,
        "end_s": job.end_time / 1000 if job.end_time else None,
        "exit_code": job.driver_exit_code,
        "entrypoint": job.entrypoint,
    }


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


def find_remains(name: str, runs_dir: Path) -> RunDirectory:
    """The run of that name, or that a job of that id drives; or a damaged directory with any file of a run.

    Raises:
        ReferenceNotFoundError: there is none; nothing about other directories is to be collected.
    """
    try:
        run = run_of(name, runs_dir, is_job=False)
        assert run is not None
        return run
    except ReferenceNotFoundError:
        files = (RUN_FILE, CONFIG_FILE, "events.jsonl", "log.jsonl")
        for path in (Path(name), runs_dir / name):
            if any((path / file).is_file() for file in files):
                return RunDirectory(path)
        raise


def last_lines(text: str) -> str:
    """The end of a log."""
    return "".join(text.splitlines(keepends=True)[-LOG_LINES:])


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
        ("description.json", lambda: _json(describe(str(run.path), run.path.parent, job))),
        ("status.json", lambda: _json(asdict(read_status(run)) | {"in_use": is_in_use(run.path)})),
        ("last-metrics.json", lambda: _json(dict(LogEnd(run).newest()))),
        ("run/log-tail.jsonl", lambda: _tail_of(run.log)),
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

    return [("versions.json", versions), ("doctor.json", doctor)]


def part_of_plan(run: RunDirectory) -> Part:
    """Memory, disk and hours of the run by `cloze plan`; takes seconds, and needs its token stores."""

    def make() -> str:
        from pipeline.engine.gpus import CPU, find_gpu
        from pipeline.plan.plan import make_plan, to_json

        workers = read_status(run).workers
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


def _tail_of(path: Path) -> str:
    if not _is_plain(path):
        return ""
    lines = list(islice(lines_backwards(path), LOG_LINES))
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


def write_bundle(run: RunDirectory, parts: Sequence[Part], file: Path) -> dict[str, Any]:
    """Write the parts as `support-RUN/...` into a compressed archive; an earlier file is replaced.

    Returns:
        `file`, `size_bytes`, `names` of its entries; `problems`, `NAME: why` for each part that could not be made; and
        `removed`, the number of secrets.

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
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry_name, text in sorted(texts.items()):
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"support-{name}/{entry_name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    data = gzip.compress(plain.getvalue(), mtime=0)
    with storage_errors(file):
        write_durably(file, data)
    return {
        "file": str(file),
        "size_bytes": len(data),
        "names": sorted(texts),
        "problems": problems,
        "removed": redact.count,
    }
