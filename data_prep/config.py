"""The configuration of one preparation: sources, filters, deduplication, decontamination, tokenizer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cluster.artefacts.places import UriSetting
from data_prep.decontaminate.config import DecontaminationConfig
from data_prep.dedup.config import DedupConfig
from data_prep.filters import AnyFilter
from data_prep.layout import DECONTAMINATION, STAGES, TAKEDOWN
from data_prep.sources import AnySource
from data_prep.tokenizers import AnyTokenizer, ByteLevelBPE, TrainedTokenizer


class PreparationConfig(BaseModel):
    """One `cloze data prepare`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    """Name of this data, for people."""
    out: Path
    """Directory that will hold `documents/`, `dedup/`, `tokenizer/`, `tokens/` and what leads to them, on a file system
    that all workers share."""
    publish: UriSetting | None = None
    """An fsspec URI, such as s3://bucket/corpus, that the finished artefacts are copied to; null copies nothing. Holds
    no credentials."""
    sources: tuple[AnySource, ...] = Field(min_length=1)
    """Sources of the text, in storage order."""
    min_characters: int = Field(default=200, ge=0)
    """Documents with fewer characters of text are dropped."""
    filters: tuple[AnyFilter, ...] = ()
    """Filters that documents pass through, in order; a source may have its own."""
    dedup: DedupConfig = DedupConfig()
    """Duplicates to remove. `exact` and `none` are short for the usual cases."""
    repeated_ids: Literal["tell_apart", "reject"] = "tell_apart"
    """Treatment of a document whose id an earlier one has: its id is followed by the place of its record (such as
    `wiki:12 @ dump.xml:4711`), or it is rejected, which counts against `max_rejects`."""
    decontaminate: DecontaminationConfig = DecontaminationConfig()
    """Evaluation sets whose texts must not be trained on. `[glue, squad]` is short for their names alone."""
    takedown: Path | None = None
    """Text file with the ids of documents that must not be trained on, one a line; lines with `#` are comments. They
    are left out after deduplication and the tokenizer, so that no copy comes in for them and all other tokens stay."""
    tokenizer: AnyTokenizer = ByteLevelBPE()
    """How text becomes ids."""
    sentences: Literal["blingfire", "sentencex", "none"] = "blingfire"
    """Sentence boundaries, for objectives that need them. `blingfire` leaves languages that BlingFire is wrong for,
    such as Chinese and Hindi, to sentencex; with `none` a document is one sentence."""
    shard_bytes: int = Field(default=64 << 20, gt=0)
    """Bytes of source files, as they are stored, that make one shard. A bigger file is split where its format
    allows, and is a shard by itself where it does not."""
    max_rejects: int = Field(default=0, ge=0)
    """How many unreadable inputs are tolerated before the preparation fails."""

    @field_validator("sources")
    @classmethod
    def _distinct_names(cls, sources: tuple[AnySource, ...]) -> tuple[AnySource, ...]:
        repeated = [name for name, count in Counter(s.name for s in sources).items() if count > 1]
        if repeated:
            raise ValueError(f"two sources are named {repeated[0]}; names must differ")
        return sources

    @model_validator(mode="after")
    def _weights_name_the_sources(self) -> PreparationConfig:
        weights = self.tokenizer.weights if isinstance(self.tokenizer, TrainedTokenizer) else None
        names = [source.name for source in self.sources]
        if weights is not None and set(weights) != set(names):
            raise ValueError(
                f"tokenizer.weights names {', '.join(sorted(weights))}; the sources are {', '.join(names)}."
                " Give every source a weight (0 leaves it out)"
            )
        return self

    @property
    def stages(self) -> list[str]:
        """Names of the stages that it makes, in order."""
        left_out = {DECONTAMINATION: not self.decontaminate.tasks, TAKEDOWN: self.takedown is None}
        return [name for name in STAGES if not left_out.get(name)]
