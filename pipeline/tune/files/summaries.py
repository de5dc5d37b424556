"""Texts with their summaries: rows with a column of each, and CNN/DailyMail's stories, with highlights after lines
`@highlight` (Hermann et al. 2015)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.artefacts.errors import MissingInputError
from pipeline.tune.files.evaluation_set import ReadTexts, texts_of
from pipeline.tune.files.lines import read_lines, wrong_file
from pipeline.tune.files.rows import read_rows
from pipeline.tune.forms.generation.settings import TextPair

_HIGHLIGHT = "@highlight"
_SENTENCE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


def read_summaries(path: Path, text: str, summary: str) -> Iterator[TextPair]:
    """Stream the pairs of a file of rows, named by their `id`, where there is one.

    Args:
        text: the column of the texts.
        summary: the column of their summaries.

    Raises:
        ConfigError: a row lacks one of them.
    """
    for row in read_rows(path):
        texts = row.values.get(text), row.values.get(summary)
        for column, found in zip((text, summary), texts, strict=True):
            if not isinstance(found, str):
                raise row.error(f"there is no text `{column}` among {list(row.values)}")
        yield TextPair(str(row.values.get("id", row.name)), *(str(found).strip() for found in texts))


def summary_texts(text: str, summary: str) -> ReadTexts:
    """A reader of both texts of every pair, by their columns."""
    return texts_of(
        lambda path: ((each.id, (each.source, each.target)) for each in read_summaries(path, text, summary))
    )


def stories_in(folder: Path) -> list[Path]:
    """The stories anywhere below a folder, by name."""
    return sorted(folder.rglob("*.story"), key=lambda path: path.name)


def stories_of(addresses: Path, folder: Path) -> list[Path]:
    """The stories of a file of web addresses, such as all_train.txt of See et al. 2017, which are named by the SHA-1 of
    their addresses.

    Raises:
        MissingInputError: a story is not below the folder.
    """
    places = {path.stem: path for path in stories_in(folder)}
    names = [
        hashlib.sha1(line.strip().encode()).hexdigest() for _, line in read_lines(addresses) if line.strip()
    ]
    if missing := [name for name in names if name not in places]:
        raise MissingInputError(
            f"{len(missing)} of the {len(names)} stories of {addresses} are not below {folder}, such as"
            f" {missing[0]}.story.",
            next_step="unpack the stories of both CNN and DailyMail there, or correct the task's `stories`",
        )
    return [places[name] for name in names]


def read_stories(paths: Iterable[Path]) -> Iterator[TextPair]:
    """Stream the articles, in one line each, with their highlights, in a line each. Sentences without an end get ` .`,
    as in the released processing of See et al. 2017.

    Raises:
        ConfigError: a story has no article or no highlight.
    """
    for path in paths:
        article, *highlights = "\n".join(_lines(path)).split(_HIGHLIGHT)
        texts = [" ".join(article.split("\n")).strip(), "\n".join(each.strip() for each in highlights)]
        if not all(texts):
            raise wrong_file(f"{path} has no {'highlight' if texts[0] else 'article'}")
        yield TextPair(path.stem, *texts)


def _lines(path: Path) -> Iterator[str]:
    """The lines that are not blank, each with its end."""
    for _, line in read_lines(path):
        if text := line.strip():
            yield text if text == _HIGHLIGHT or text.endswith(_SENTENCE_ENDS) else f"{text} ."
