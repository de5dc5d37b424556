"""Task files in the layout of the published releases, and the examples that are read from them: `excerpts.yaml`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from pipeline.config.loading import validate
from pipeline.tasks import TASKS
from pipeline.tasks.forms import Choices, Example, Question, TaggedSentence, TextPair
from pipeline.tasks.task import TaskConfig
from pipeline.tune.config import FinetuneConfig

PATHS = {"path", "train", "evaluation", "diagnostic", "stories"}
PATHS |= {"train_source", "train_target", "source", "target"}
"""Settings that name files or folders."""
ROWS: Mapping[str, TypeAdapter[Any]] = {
    "classification": TypeAdapter(list[Example]),
    "choices": TypeAdapter(list[Choices]),
    "spans": TypeAdapter(list[Question]),
    "generation": TypeAdapter(list[TextPair]),
    "tags": TypeAdapter(list[TaggedSentence]),
}
"""By form."""


@dataclass(frozen=True)
class Excerpt:
    """A few lines of a task's files."""

    kind: str
    files: Mapping[str, bytes]
    """By names relative to the task's folder."""
    settings: Mapping[str, Any]
    """Of the task; paths relative to its folder."""
    train: Sequence[Any]
    """The examples to learn from, in order."""
    evaluation: Sequence[Any] | None
    """The examples to score on; None where only their number matters."""
    labels: tuple[str, ...] | None

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Excerpt:
        """One of the entries of `excerpts.yaml`."""
        files = {name: text.encode() for names, text in plain["files"].items() for name in names.split()}
        rows = {side: plain.get(side) for side in ("train", "evaluation")}
        form = TASKS[plain["kind"]].form
        if form == "classification":
            rows = {side: own and [{"text_b": None} | row for row in own] for side, own in rows.items()}
        return cls(
            plain["kind"],
            {name: gzip.compress(data) if name.endswith(".gz") else data for name, data in files.items()},
            plain.get("settings", {"path": "."}),
            **{side: own and ROWS[form].validate_python(own) for side, own in rows.items()},
            labels=tuple(plain["labels"]) if "labels" in plain else None,
        )

    def text(self, name: str) -> str:
        """The content of a file, without a mark in front."""
        return self.files[name].decode("utf-8-sig")


EXCERPTS: Mapping[str, Excerpt] = {
    name: Excerpt.read(plain)
    for name, plain in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def task_of(folder: Path, excerpt: Excerpt, **settings: Any) -> TaskConfig:
    """The task on the files of an excerpt, which are written to `folder`."""
    write(folder, excerpt.files)
    named = {**excerpt.settings, **settings}
    located = {name: folder / value if name in PATHS else value for name, value in named.items()}
    task = {"kind": excerpt.kind, **located}
    return validate(FinetuneConfig, {"tasks": {"own": task}}, "here").tasks["own"]


def objects(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
