"""Tab-separated files and JSON lines, of which some columns are texts: GLUE, WiC and XSum."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from pipeline.finetune.evaluation_sets.base import EvaluationSet, Files, Named, Read, read_lines, wrong

_GLUE = "the archive of the GLUE benchmark (gluebenchmark.com/tasks)"
_LABEL_AT_END = re.compile(r"\s+[01]$")
_WIC_TEXTS = re.compile(r"Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


def tab_separated(*columns: str, header: Sequence[str] = ()) -> Read:
    """Reads the named columns; the first line names them, or `header` does where the file has no such line."""

    def read(path: Path) -> Iterator[Named]:
        places: list[int] = [header.index(column) for column in columns] if header else []
        for name, line in read_lines(path):
            fields = line.split("\t")
            number = name.rpartition("-")[2]
            if not places:
                missing = [column for column in columns if column not in fields]
                if missing:
                    raise wrong(path, number, f"there is no column `{missing[0]}` among {fields}")
                places = [fields.index(column) for column in columns]
            elif len(fields) <= max(places):
                raise wrong(path, number, f"{len(fields)} columns, at least {max(places) + 1} are needed")
            else:
                yield from ((name, fields[place].strip()) for place in places)

    return read


def read_qqp(path: Path) -> Iterator[Named]:
    """Question pairs, with or without a header; a label may be glued to the last question by a space."""
    for name, line in read_lines(path):
        fields = line.split("\t")
        if fields[0] == "id":
            continue
        if len(fields) < 5:
            raise wrong(path, name.rpartition("-")[2], f"{len(fields)} columns, at least 5 are needed")
        yield name, fields[3].strip()
        yield name, (_LABEL_AT_END.sub("", fields[4]) if len(fields) == 5 else fields[4]).strip()


def read_mnli(path: Path) -> Iterator[Named]:
    """Premises and hypotheses: GLUE's tab-separated files, or JSON lines."""
    if path.suffix == ".tsv":
        yield from tab_separated("sentence1", "sentence2")(path)
        return
    for name, record in _records(path):
        yield from ((name, _text(path, name, record, key)) for key in ("premise", "hypothesis"))


def read_wic(path: Path) -> Iterator[Named]:
    """Both sentences: as SuperGLUE has them, or joined in one field `text`."""
    for name, record in _records(path):
        if "text" not in record:
            yield from ((name, _text(path, name, record, key)) for key in ("sentence1", "sentence2"))
        elif match := _WIC_TEXTS.search(_text(path, name, record, "text")):
            yield from ((name, text) for text in match.groups())
        else:
            raise wrong(path, name.rpartition("-")[2], "there are no two sentences in `text`")


def read_xsum(path: Path) -> Iterator[Named]:
    """Documents and summaries, named by their BBC numbers."""
    for name, record in _records(path):
        example = str(record.get("id", name))
        yield from ((example, _text(path, name, record, key)) for key in ("document", "summary"))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, line in read_lines(path):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise wrong(path, name.rpartition("-")[2], f"no valid JSON: {error}") from None
        if not isinstance(record, dict):
            raise wrong(path, name.rpartition("-")[2], "no JSON object")
        yield name, record


def _text(path: Path, name: str, record: dict[str, Any], key: str) -> str:
    if not isinstance(record.get(key), str):
        raise wrong(path, name.rpartition("-")[2], f"there is no text `{key}`")
    return record[key]


def _glue(folder: str, *columns: str) -> EvaluationSet:
    """A task of GLUE with dev.tsv and, where it is there, test.tsv."""
    read = tab_separated(*columns)
    dev, held_back = (f"glue/{folder}/dev.tsv",), (f"glue/{folder}/test.tsv",)
    return EvaluationSet((Files(dev, read), Files(held_back, read, optional=True)), _GLUE)


COLA = EvaluationSet(
    (
        Files(
            ("glue/CoLA/dev.tsv",),
            tab_separated("sentence", header=("source", "label", "original judgment", "sentence")),
        ),
        Files(("glue/CoLA/test.tsv",), tab_separated("sentence"), optional=True),
    ),
    _GLUE,
)
SST2 = _glue("SST-2", "sentence")
MRPC = _glue("MRPC", "#1 String", "#2 String")
STSB = _glue("STS-B", "sentence1", "sentence2")
RTE = _glue("RTE", "sentence1", "sentence2")
WNLI = _glue("WNLI", "sentence1", "sentence2")
QNLI = _glue("QNLI", "question", "sentence")
QQP = EvaluationSet(
    (
        Files(("glue/QQP/dev*.tsv",), read_qqp),
        Files(("glue/QQP/test.tsv",), tab_separated("question1", "question2"), optional=True),
    ),
    _GLUE,
)
MNLI = EvaluationSet(
    (
        Files(("glue/MNLI/dev_*.tsv", "glue/MNLI/dev_*.jsonl"), read_mnli),
        Files(("glue/MNLI/test_*.tsv",), read_mnli, optional=True),
    ),
    _GLUE,
)
DIAGNOSTIC = EvaluationSet(
    (Files(("glue/diagnostic/diagnostic*.tsv", "glue/AX/*.tsv"), tab_separated("sentence1", "sentence2")),),
    _GLUE,
)
WIC = EvaluationSet((Files(("wic/*.jsonl", "WiC/*.jsonl"), read_wic),), "WiC of the SuperGLUE benchmark")
XSUM = EvaluationSet((Files(("xsum/test*.jsonl",), read_xsum),), "XSum's test documents as JSON lines")
