"""Which evaluation sets are kept out of a corpus, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DecontaminationConfig(BaseModel):
    """Decontamination by shared n-grams of words (Brown et al. 2020, appendix C)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tasks: tuple[str, ...] = ()
    """Tasks, or groups of tasks such as `glue`, whose evaluation texts are kept out; empty for none."""
    data: Path | None = None
    """Folder of the evaluation sets; None takes the one that the environment variable CLOZE_DATA names."""
    ngram: int = Field(default=13, ge=2, le=64)
    """Words in a row that count as an overlap."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"tasks": value} if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """A text that a task evaluates on."""

    task: str
    example: str
    """Names the example in the task, such as `dev-17`."""
    text: str


EvaluationTexts = Callable[[DecontaminationConfig], Iterator[EvaluationText]]
"""Gives the texts of the tasks that a configuration names; the layer that knows tasks hands it down."""
