"""The sources of text, one per file.

A source is a module with a frozen config class, `list_files`, `split` and `read`; see `base.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from data_prep.sources import (
    books_epub,
    books_tei,
    books_text,
    common_crawl,
    hf_datasets,
    json_lines,
    parquet,
    python_docs,
    text_files,
    wikipedia_dump,
    wikipedia_extracted,
    wikipedia_html,
)
from data_prep.sources.base import FilePart, Skipped, Source, SourceConfig, SourceFile
from data_prep.sources.books_epub import BooksEpubConfig
from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.sources.books_text import BooksTextConfig
from data_prep.sources.common_crawl import CommonCrawlConfig
from data_prep.sources.hf_datasets import HfDatasetsConfig
from data_prep.sources.json_lines import JsonLinesConfig
from data_prep.sources.parquet import ParquetConfig
from data_prep.sources.python_docs import PythonDocsConfig
from data_prep.sources.text_files import TextFilesConfig
from data_prep.sources.wikipedia_dump import WikipediaDumpConfig
from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig
from data_prep.sources.wikipedia_html import WikipediaHtmlConfig

SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "books_epub": books_epub,
        "books_tei": books_tei,
        "books_text": books_text,
        "common_crawl": common_crawl,
        "hf_datasets": hf_datasets,
        "json_lines": json_lines,
        "parquet": parquet,
        "python_docs": python_docs,
        "text_files": text_files,
        "wikipedia_dump": wikipedia_dump,
        "wikipedia_extracted": wikipedia_extracted,
        "wikipedia_html": wikipedia_html,
    }
)
"""Every source by its config's `kind`."""

AnySource = Annotated[
    BooksEpubConfig
    | BooksTeiConfig
    | BooksTextConfig
    | CommonCrawlConfig
    | HfDatasetsConfig
    | JsonLinesConfig
    | ParquetConfig
    | PythonDocsConfig
    | TextFilesConfig
    | WikipediaDumpConfig
    | WikipediaExtractedConfig
    | WikipediaHtmlConfig,
    Field(discriminator="kind"),
]
"""Type of a config field that takes any source."""

__all__ = ["SOURCES", "AnySource", "FilePart", "Skipped", "Source", "SourceConfig", "SourceFile", "source_of"]


def source_of(config: SourceConfig) -> Source:
    """The module that reads what a source's config describes."""
    return SOURCES[config.kind]
