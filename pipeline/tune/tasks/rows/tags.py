"""One's own rows with a tag for every word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pipeline.config.loading import Config
from pipeline.tune.files.tag_schemes import OUTSIDE
from pipeline.tune.forms.tags.settings import TaggedSentence, TagsTaskConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.rows.base import RowsTaskConfig, list_in, name_of, rows_of


class TagColumns(Config):
    """Names of the columns."""

    words: str = "tokens"
    """The words: a list, or a text with spaces between them."""
    tags: str = "tags"
    """As many tags, likewise."""
    id: str | None = None
    """Names of sentences in the predictions; null takes file and line."""


class RowsTagsConfig(RowsTaskConfig, TagsTaskConfig):
    """Tagging of one's own sentences."""

    kind: Literal["rows_tags"] = "rows_tags"
    columns: TagColumns = TagColumns()
    """Names of the columns."""
    labels: tuple[str, ...] | None = None
    """All tags, in the order of their numbers; null takes those of the training file, sorted, `O` first."""

    metrics = ("accuracy",)

    @property
    def outside(self) -> str | None:
        """`O`."""
        return OUTSIDE

    def load(self) -> TaskData[TaggedSentence]:
        """Read the files; a tag that training does not have is refused."""
        found = {tag for sentence in self._sentences(self.train, self.labels) for tag in sentence.tags}
        labels = self.labels or tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))
        train, evaluation = self.sides(lambda path: self._sentences(path, labels))
        return TaskData.of_files(train, evaluation, self.files, labels)

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Accuracy; where tags mark entities (`B-TYPE`), also precision, recall and F1 of entities."""
        from pipeline.tune.metrics.entities import entity_metrics

        found = super().measure(sentences, predictions)
        right = [sentence.tags for sentence in sentences]
        marked = any(tag.startswith("B-") for tags in right for tag in tags)
        return found | (entity_metrics(right, predictions) if marked else {})

    def _sentences(self, path: Path, labels: tuple[str, ...] | None) -> Iterator[TaggedSentence]:
        for row in rows_of(path):
            words, tags = list_in(row, "words", self.columns.words), list_in(row, "tags", self.columns.tags)
            if len(words) != len(tags) or not words:
                remedy = "give every word one tag"
                raise row.error(f"there are {len(words)} words and {len(tags)} tags", remedy)
            if unknown := [tag for tag in tags if labels is not None and tag not in labels]:
                known = ", ".join(labels or ())
                raise row.error(
                    f"the tag {unknown[0]!r} is none of {known}",
                    "correct the row, or name all tags in `labels`",
                )
            yield TaggedSentence(name_of(row, self.columns.id), tuple(words), tuple(tags))
