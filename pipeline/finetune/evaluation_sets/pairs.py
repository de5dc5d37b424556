"""Evaluation sets of questions, sentences and pairs of them on which no task here is trained: the rest of GLUE, WiC,
SQuAD 2.0 and XQuAD."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.finetune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.finetune.files.lines import read_lines, read_objects, text_of, wrong_line
from pipeline.finetune.files.squad import read_squad_texts, squad_evaluation_set
from pipeline.finetune.files.tables import GlueFiles, read_texts

_LABEL_AT_END = re.compile(r"\s+[01]$")
_WIC_TEXTS = re.compile(r"Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


def read_sentence_pairs(path: Path) -> Iterator[NamedText]:
    """Pairs of sentences in tab-separated files of GLUE."""
    return read_texts(path, ("sentence1", "sentence2"))


def read_qqp(path: Path) -> Iterator[NamedText]:
    """Question pairs, with or without a header; a label may be glued to the last question by a space."""
    for name, line in read_lines(path):
        fields = line.split("\t")
        if fields[0] == "id":
            continue
        if len(fields) < 5:
            raise wrong_line(path, name, f"{len(fields)} columns, at least 5 are needed")
        yield name, fields[3].strip()
        yield name, (_LABEL_AT_END.sub("", fields[4]) if len(fields) == 5 else fields[4]).strip()


def read_qqp_test(path: Path) -> Iterator[NamedText]:
    """Question pairs without labels."""
    return read_texts(path, ("question1", "question2"))


def read_mnli(path: Path) -> Iterator[NamedText]:
    """Premises and hypotheses: GLUE's tab-separated files, or JSON lines."""
    if path.suffix == ".tsv":
        yield from read_sentence_pairs(path)
        return
    for name, found in read_objects(path):
        yield from ((name, text_of(path, name, found, key)) for key in ("premise", "hypothesis"))


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


_GLUE = "the archive of the GLUE benchmark (gluebenchmark.com/tasks)"
SETS = (
    GlueFiles("STS-B", ("sentence1", "sentence2")).evaluation_set("stsb"),
    GlueFiles("WNLI", ("sentence1", "sentence2")).evaluation_set("wnli"),
    GlueFiles("QNLI", ("question", "sentence")).evaluation_set("qnli"),
    EvaluationSet(
        "qqp",
        (
            Files(("glue/QQP/dev*.tsv",), read_qqp),
            Files(("glue/QQP/test.tsv",), read_qqp_test, optional=True),
        ),
        _GLUE,
    ),
    EvaluationSet(
        "mnli",
        (
            Files(("glue/MNLI/dev_*.tsv", "glue/MNLI/dev_*.jsonl"), read_mnli),
            Files(("glue/MNLI/test_*.tsv",), read_mnli, optional=True),
        ),
        _GLUE,
    ),
    EvaluationSet(
        "ax",
        (Files(("glue/diagnostic/diagnostic*.tsv", "glue/AX/*.tsv"), read_sentence_pairs),),
        _GLUE,
    ),
    squad_evaluation_set("squad2", "squad/dev-v2.0*.json"),
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
