"""Evaluation sets of questions and of pairs of sentences on which no task here is trained: WiC and XQuAD."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.finetune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.finetune.files.lines import read_objects, text_of, wrong_line
from pipeline.finetune.files.squad import read_squad_texts

_WIC_TEXTS = re.compile(r"Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


def read_wic(path: Path) -> Iterator[NamedText]:
    """Both sentences: as SuperGLUE has them, or joined in one field `text`."""
    for name, found in read_objects(path):
        if "text" not in found:
            yield from ((name, text_of(path, name, found, key)) for key in ("sentence1", "sentence2"))
        elif match := _WIC_TEXTS.search(text_of(path, name, found, "text")):
            yield from ((name, text) for text in match.groups())
        else:
            raise wrong_line(path, name, "there are no two sentences in `text`")


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
    EvaluationSet(
        "wic",
        (Files(("wic/*.jsonl", "WiC/*.jsonl"), read_wic),),
        "WiC of the SuperGLUE benchmark",
    ),
)
