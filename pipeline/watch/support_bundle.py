"""`cloze support-bundle`: a run in one file that may be given to others.

Every text goes through the redaction, one by one. The same texts give the same bytes: entries are in the order of their
names, without times and owners.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.manifest import cloze_version, write_durably
from cluster.artefacts.redaction import Redactor, known_secrets
from cluster.artefacts.storage import storage_errors
from pipeline.run.directory import RunDirectory
from pipeline.watch.support_parts import Part, text_of

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
        text, problem = text_of(make)
        if problem:
            problems.append(redact(f"{name}: {problem}"))
        else:
            texts[name] = redact(text)
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
