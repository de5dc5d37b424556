"""Settings of deduplication."""

from __future__ import annotations

import math
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from data_prep.short_forms import also_written


class ParagraphDedup(BaseModel):
    """Paragraphs that were there before (Wenzek et al. 2020, section 3.1). A paragraph is a line of the text."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra=also_written({"enum": ["none", "within", "corpus"]}),
    )

    scope: Literal["within", "corpus"] = "corpus"
    """Keep the first of equal paragraphs of every document, or of the whole corpus."""
    min_length: int = Field(default=20, ge=1)
    """Paragraphs with fewer letters and digits than this are left alone: headings repeat by their nature."""
    fold_digits: bool = False
    """Read every digit as 0, as CCNet does: lines that differ in dates and counts are equal then, and so are
    the rows of a table."""
    max_removed: float = Field(default=0.5, gt=0.0, le=1.0)
    """A document that loses more than this share of its characters is dropped as a whole."""


class NearDedup(BaseModel):
    """Documents that are nearly the same: MinHash over word n-grams, and locality-sensitive hashing (Broder 1997;
    Leskovec et al. 2014, chapter 3; Lee et al. 2022, appendix A)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: float = Field(default=0.8, gt=0.0, lt=1.0)
    """Least Jaccard similarity of two documents' sets of n-grams to be found."""
    recall: float = Field(default=0.95, gt=0.0, lt=1.0)
    """Share of the pairs of similarity `threshold` that are to be found, and so of more similar pairs; bands and rows
    are chosen by it."""
    ngram: int = Field(default=5, ge=1)
    """Words in an n-gram; a character is a word in scripts without spaces."""
    fold_digits: bool = False
    """Read every digit as 0 before n-grams are taken. Finds copies that differ in dates and counters, and takes tables,
    reports and stubs that differ in nothing but numbers for copies of each other."""
    verify: bool = True
    """Compare the n-grams of documents that share a band, and link those whose similarity is `threshold` or more. Costs
    a second pass over the texts of these documents, and disk space of about the size of these texts. Without it, pairs
    below `threshold` are linked too, and chains of them join documents that share a form only."""
    num_permutations: int = Field(default=256, ge=2)
    """Values of a signature that the bands may use; with more of them, fewer pairs below `threshold` are found."""
    bands: int | None = Field(default=None, ge=1)
    """Bands of a signature. None takes those that find `recall` of the pairs at `threshold`, and the fewest below it;
    goes with `rows`."""
    rows: int | None = Field(default=None, ge=1)
    """Values in a band: two documents of similarity s meet with probability 1 - (1 - s^rows)^bands."""
    seed: int = Field(default=1, ge=0)
    """Draws the permutations."""

    @model_validator(mode="after")
    def _bands_fit(self) -> NearDedup:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("`bands` and `rows` are given together or not at all")
        # Without bands, this refuses what no shape finds.
        if math.prod(self.shape) > self.num_permutations:
            raise ValueError(f"bands * rows is more than num_permutations = {self.num_permutations}")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """(bands, rows)."""
        if self.bands and self.rows:
            return self.bands, self.rows
        return choose_bands(self.threshold, self.recall, self.num_permutations)

    def describe(self) -> dict[str, Any]:
        """The recall that is to be expected, for people and for `--json`.

        Keys: `threshold`, `bands`, `rows`, `verified` (pairs below the threshold are taken out again); `found`: the
        probability that a pair is found, by its similarity; `false_positives`: the share of found pairs that are
        below the threshold, if all similarities were equally frequent.
        """
        threshold, shape = self.threshold, self.shape
        below, above = _areas(threshold, *shape)
        found = {
            f"{s:g}": 0.0
            if self.verify and s < threshold
            else round(float(meeting_probability(s, *shape)), 4)
            for s in sorted({*SHOWN, threshold})
        }
        return {
            "threshold": threshold,
            "bands": shape[0],
            "rows": shape[1],
            "verified": self.verify,
            "found": found,
            "false_positives": 0.0 if self.verify else round(below / (below + above), 4),
        }


class DedupConfig(BaseModel):
    """Deduplication; every kind can be switched on by itself. They follow each other: equal documents, then
    near-duplicates among the remaining documents, by their whole texts, then paragraphs of the rest."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra=also_written({"enum": ["none", "exact", "full"]}),
    )

    documents: bool = True
    """Keep the first of all documents with the same text."""
    near: NearDedup | None = None
    """Keep the first of all documents that are nearly the same, directly or through others."""
    paragraphs: ParagraphDedup | None = None
    """Remove repeated paragraphs. `within` and `corpus` are short for these scopes, `none` for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in SHORT_NAMES:
                raise ValueError(
                    f"`dedup` is {', '.join(SHORT_NAMES)} or a mapping of settings, not {value!r}"
                )
            value = SHORT_NAMES[value]
        if isinstance(value, dict) and isinstance(scope := value.get("paragraphs"), str):
            value = value | {"paragraphs": None if scope == "none" else {"scope": scope}}
        return value


SHORT_NAMES: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "none": {"documents": False},
        "exact": {"documents": True},
        "full": {"documents": True, "paragraphs": "corpus", "near": {}},
    }
)
"""Names for the usual cases."""


STEP = 0.001
"""Width of the intervals over which the curve is integrated."""
SHOWN = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Similarities reported from the curve."""


def meeting_probability(similarity: np.ndarray | float, bands: int, rows: int) -> np.ndarray:
    """Probability that documents of this Jaccard similarity share a bucket: 1 - (1 - s^rows)^bands
    (Leskovec et al. 2014, section 3.4.2)."""
    return 1 - (1 - np.asarray(similarity) ** rows) ** bands


@lru_cache
def choose_bands(threshold: float, recall: float, num_permutations: int) -> tuple[int, int]:
    """(bands, rows) that find pairs of similarity `threshold` with probability `recall`, and the fewest below it.

    Of all shapes with at most `num_permutations` values in a signature that find enough, the one with the least area
    under the S-curve left of `threshold`. More values make a steeper curve.

    Raises:
        ValueError: no shape finds enough; the message says how many values would do.
    """
    shapes = []
    for rows in range(1, num_permutations + 1):
        bands = _bands_needed(threshold, recall, rows)
        if bands * rows <= num_permutations:
            shapes.append((bands, rows))
    if not shapes:
        raise ValueError(
            f"num_permutations = {num_permutations} cannot find {recall:g} of the pairs of similarity {threshold:g};"
            f" {_bands_needed(threshold, recall, 1)} can"
        )
    return min(shapes, key=lambda shape: _areas(threshold, *shape)[0])


def _bands_needed(threshold: float, recall: float, rows: int) -> int:
    """The fewest bands of `rows` values that find pairs of similarity `threshold` with probability `recall`."""
    band = threshold**rows
    # 1 - band rounds to 1 if a band hardly ever agrees.
    bands = math.log1p(-recall) / math.log1p(-band) if band > 1e-12 else math.inf
    return math.ceil(min(bands, 1e12))


def _areas(threshold: float, bands: int, rows: int) -> tuple[float, float]:
    """Areas under the S-curve left and right of the threshold."""
    left = meeting_probability(np.arange(STEP / 2, threshold, STEP), bands, rows)
    right = meeting_probability(np.arange(threshold + STEP / 2, 1, STEP), bands, rows)
    return float(left.sum() * STEP), float(right.sum() * STEP)
