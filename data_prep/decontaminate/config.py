"""Settings of decontamination: the evaluation sets that are kept out of a corpus, and how."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.artefacts.errors import ConfigError
from data_prep.short_forms import also_written


class DecontaminationConfig(BaseModel):
    """Decontamination by shared n-grams of words (Brown et al. 2020, appendix C)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra=also_written({"type": "array", "items": {"type": "string"}}),
    )

    tasks: tuple[str, ...] = ()
    """Tasks, or groups of tasks such as `glue`, whose evaluation texts are kept out; empty for none."""
    data: Path | None = None
    """Folder of the evaluation sets; None takes the one that the environment variable CLOZE_DATA names."""
    ngram: int = Field(default=13, ge=2, le=64)
    """Words in a row that count as an overlap. Of scripts without spaces, a word is one character."""
    min_words: int = Field(default=8, ge=1)
    """An evaluation text of fewer than `ngram` words counts as a whole, if it has this many; a shorter one is left
    out, because it would be found by chance. Not above `ngram`, which takes its place when it is lower. (Brown et
    al. used 8 to 13 words.)"""
    action: Literal["drop", "cut"] = "drop"
    """`drop` leaves out every document with an overlap. `cut` leaves out the overlaps with what surrounds them,
    which loses less where documents are long, such as books."""
    max_documents: int | None = Field(default=None, ge=1)
    """N-grams in more documents than this are ignored; None ignores none. Brown et al. ignored those in more than 10,
    mostly common phrases and legal boilerplate; but then an evaluation text with more copies in the corpus stays
    in."""
    window_characters: int = Field(default=200, ge=0)
    """`cut` takes this many characters with it on each side of an overlap, and the words that they end in."""
    min_piece_characters: int = Field(default=200, ge=0)
    """Pieces of a document that are shorter after cutting are left out too."""
    max_pieces: int = Field(default=10, ge=1)
    """A document that cutting would leave in more pieces is left out as a whole."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"tasks": value} if isinstance(value, list | tuple) else value

    def located(self) -> DecontaminationConfig:
        """A copy with an absolute `data`, for workers that have another directory and environment than this
        process."""
        named = self.data or os.environ.get("CLOZE_DATA")
        return self.model_copy(update={"data": Path(named).resolve()}) if named else self

    @property
    def shortest(self) -> int:
        """Words of the shortest n-gram."""
        return min(self.min_words, self.ngram)


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """A text that a task evaluates on."""

    task: str
    example: str
    """Names the example in the task, such as `dev-17`. The texts of one example, such as both sentences of a pair,
    have the same name."""
    text: str
    file: Path | None = None
    """The file that it was read from."""


EvaluationTexts = Callable[[DecontaminationConfig], Iterator[EvaluationText]]
"""Gives the texts of the tasks that a configuration names, the same on every call and on every machine; the call
itself refuses unknown names and missing files. The layer that knows tasks hands it down."""


def check_evaluation_texts(settings: DecontaminationConfig, texts: EvaluationTexts | None) -> None:
    """Refuse what cannot be decontaminated, before anything is done.

    Raises:
        ConfigError: tasks are named, but there is nothing that gives their texts, or it does not know a name.
        MissingInputError: an evaluation set does not exist.
    """
    if not settings.tasks:
        return
    if texts is None:
        raise ConfigError(
            f"`decontaminate` names {', '.join(settings.tasks)}, but nothing gives their texts.",
            next_step="hand `evaluation_texts` to `prepare`, as the command line does",
        )
    texts(settings)
