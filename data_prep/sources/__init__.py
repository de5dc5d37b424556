"""The sources of text, each a settings class that lists, splits and reads its files; see `base.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from data_prep.sources.base import Gap, Skipped, SourceConfig, SourceFile
from data_prep.sources.books import BooksTextConfig, TextFilesConfig
from data_prep.sources.books_epub import BooksEpubConfig
from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.sources.common_crawl import CommonCrawlConfig
from data_prep.sources.hf_datasets import HfDatasetsConfig
from data_prep.sources.parquet import ParquetConfig
from data_prep.sources.python_docs import PythonDocsConfig
from data_prep.sources.records import JsonLinesConfig
from data_prep.sources.wikipedia_dump import WikipediaDumpConfig
from data_prep.sources.wikipedia_extracted import WikipediaExtractedConfig, WikipediaHtmlConfig

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
"""Every source, and the type of a config field that takes any; its `kind` decides."""

__all__ = ["AnySource", "Gap", "Skipped", "SourceConfig", "SourceFile"]
