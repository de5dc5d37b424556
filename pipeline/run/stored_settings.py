"""A run's stored configuration as plain data, for everything that only shows it: lists, comparisons, lineages.

A configuration that another version of cloze wrote may not validate any more; its run is shown all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from cluster.artefacts.storage import contents_of
from pipeline.run.directory import CONFIG_FILE, RunDirectory
from pipeline.run.token_plan import UNBOUNDED_STEPS, TokenPlan

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """A stored configuration."""

    plain: Mapping[str, Any]
    """The contents of the YAML file."""
    token_plan: TokenPlan
    checkpoint_directory: str | None
    """The place of checkpoints; None for the run's directory."""
    stores: tuple[Mapping[str, Any], ...]
    """The token stores, each with its `path`."""

    @classmethod
    def of(cls, run: RunDirectory, name: str = CONFIG_FILE) -> StoredSettings:
        """The configuration in a file of the run.

        Raises:
            CorruptArtefactError: it is not what was written, or lacks settings that every version has.
        """
        plain = run.settings(name)
        with contents_of(run.path / name):
            return cls(
                plain=plain,
                token_plan=TokenPlan.of(plain),
                checkpoint_directory=(plain.get("checkpoint") or {}).get("directory"),
                stores=tuple(plain["data"]["stores"]),
            )

    @property
    def num_steps(self) -> int | None:
        """Updates of the whole run; None where only its time ends it."""
        steps = self.token_plan.num_steps
        return steps if steps < UNBOUNDED_STEPS else None

    @property
    def metric(self) -> str:
        """The metric that decides which of two evaluations is better; `loss` for an objective of another version."""
        if chosen := (self.plain.get("evaluation") or {}).get("metric"):
            return chosen
        from pydantic import ValidationError

        from pipeline.objectives.base import TOTAL, deciding_metric
        from pipeline.objectives.registry import OBJECTIVES

        try:
            objective = _objectives().validate_python(self.plain.get("objective"))
        except ValidationError:
            return TOTAL
        return deciding_metric(OBJECTIVES[objective.kind].terms(objective))


@cache
def _objectives() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    from pipeline.objectives.registry import ObjectiveChoice

    return TypeAdapter(ObjectiveChoice)
