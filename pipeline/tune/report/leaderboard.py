"""A leaderboard's archive: the predictions of test sets, of one training for each task."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.storage import contents_of
from pipeline.tune.scores import Score, ScoresDirectory

LEADERBOARDS: dict[str, tuple[str, ...]] = {
    "GLUE": (
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"),
        *("QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv"),
    ),
    "SuperGLUE": (
        *("BoolQ.jsonl", "CB.jsonl", "COPA.jsonl", "MultiRC.jsonl", "ReCoRD.jsonl", "RTE.jsonl"),
        *("WiC.jsonl", "WSC.jsonl", "AX-b.jsonl", "AX-g.jsonl"),
    ),
}
"""The files that each leaderboard takes (gluebenchmark.com/faq, super.gluebenchmark.com/faq)."""
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A leaderboard's archive."""

    leaderboard: str
    files: dict[str, str]
    """By name in the archive, the training whose predictions it holds."""
    missing: tuple[str, ...]
    """Files that the leaderboard wants, and that no training has written."""
    content: bytes
    """The zip file; the same scores give the same bytes."""


def make_archive(directories: Sequence[Path], seed: int | None = None) -> Archive:
    """The archive of the leaderboard that most of the files belong to.

    Args:
        directories: of artefacts of scores; of each file, the training with the best main metric on the evaluation
            examples counts, the first one of equals.
        seed: only trainings with this seed; None for all.

    Raises:
        MissingInputError: there is no prediction of a test set.
        CorruptArtefactError: a directory is no artefact of scores, or a file is damaged.
    """
    found: dict[str, tuple[Score, str, Path]] = {}
    known = {name for names in LEADERBOARDS.values() for name in names}
    for opened in map(ScoresDirectory.open, directories):
        for score in opened.scores:
            trial = score.trial
            for name in sorted(known) if seed in (None, score.seed) else ():
                path = opened.path / trial.file(name)
                if path.exists() and (name not in found or score.value > found[name][0].value):
                    found[name] = score, trial.name, path
    if not found:
        raise MissingInputError(
            f"There are no predictions of test sets in {', '.join(map(str, directories))}.",
            next_step="fine-tune with submit: true in the tasks of GLUE and SuperGLUE",
        )
    board = max(LEADERBOARDS, key=lambda name: len(found.keys() & set(LEADERBOARDS[name])))
    wanted = LEADERBOARDS[board]
    chosen = {name: found[name] for name in wanted if name in found}
    return Archive(
        board,
        {name: trial for name, (_, trial, _) in chosen.items()},
        tuple(name for name in wanted if name not in chosen),
        _zipped({name: path for name, (_, _, path) in chosen.items()}),
    )


def _zipped(paths: dict[str, Path]) -> bytes:
    """Stored without compression, whose bytes differ between versions of zlib, and without times and owners."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, path in paths.items():
            entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            with contents_of(path):
                archive.writestr(entry, path.read_bytes())
    return content.getvalue()
