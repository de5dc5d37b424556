"""The filters that clean and choose documents, one per file.

A filter is a module with a frozen config class and `build(config)`; see `base.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from data_prep.filters import (
    boilerplate_lines,
    c4,
    fineweb,
    gopher_quality,
    gopher_repetition,
    language,
    length,
    pii,
    unicode,
)
from data_prep.filters.base import Dropped, Filter, FilterConfig, Passed
from data_prep.filters.boilerplate_lines import BoilerplateLinesConfig
from data_prep.filters.c4 import C4Config
from data_prep.filters.fineweb import FinewebConfig
from data_prep.filters.gopher_quality import GopherQualityConfig
from data_prep.filters.gopher_repetition import GopherRepetitionConfig
from data_prep.filters.language import LanguageConfig
from data_prep.filters.length import LengthConfig
from data_prep.filters.pii import PiiConfig
from data_prep.filters.unicode import UnicodeConfig

FILTERS: Mapping[str, Filter] = MappingProxyType(
    {
        "boilerplate_lines": boilerplate_lines,
        "c4": c4,
        "fineweb": fineweb,
        "gopher_quality": gopher_quality,
        "gopher_repetition": gopher_repetition,
        "language": language,
        "length": length,
        "pii": pii,
        "unicode": unicode,
    }
)
"""Every filter by its config's `kind`."""

AnyFilter = Annotated[
    BoilerplateLinesConfig
    | C4Config
    | FinewebConfig
    | GopherQualityConfig
    | GopherRepetitionConfig
    | LanguageConfig
    | LengthConfig
    | PiiConfig
    | UnicodeConfig,
    Field(discriminator="kind"),
]
"""Type of a config field that takes any filter."""

__all__ = ["FILTERS", "AnyFilter", "Dropped", "Filter", "FilterConfig", "Passed"]
