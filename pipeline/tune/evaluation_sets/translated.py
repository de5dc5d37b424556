"""Evaluation sets on which no task here is trained: XQuAD."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.tune.files.squad import read_squad_texts


def read_xquad(path: Path) -> Iterator[NamedText]:
    """Like SQuAD; the names begin with the language, because the ids are the same in all of them."""
    language = path.stem.rpartition(".")[2]
    yield from ((f"{language}:{name}", text) for name, text in read_squad_texts(path))


SETS = (
    EvaluationSet(
        "xquad",
        (Files(("xquad/xquad.*.json",), read_xquad),),
        "XQuAD (github.com/google-deepmind/xquad)",
    ),
)
