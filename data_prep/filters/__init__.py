"""The filters that clean and choose documents, one per file.

A filter is a module with a frozen config class and `build(config)`; see `base.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from data_prep.filters import length
from data_prep.filters.base import Dropped, Filter, FilterConfig, Passed
from data_prep.filters.length import LengthConfig

FILTERS: Mapping[str, Filter] = MappingProxyType({"length": length})
"""Every filter by its config's `kind`."""

AnyFilter = Annotated[LengthConfig, Field(discriminator="kind")]
"""Type of a config field that takes any filter."""

__all__ = ["FILTERS", "AnyFilter", "Dropped", "Filter", "FilterConfig", "Passed"]
