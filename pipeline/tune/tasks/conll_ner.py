"""Named entities in CoNLL columns, such as CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and WNUT-17.

14,041 training and 3,250 development sentences in CoNLL-2003 (English); 3,394 and 1,009 in WNUT-17.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pipeline.tune.files.annotated import read_sentences, read_tagged
from pipeline.tune.files.evaluation_set import EvaluationSet, Files
from pipeline.tune.files.tag_schemes import OUTSIDE, PREFIXES, Scheme, as_bio, check_scheme, type_of
from pipeline.tune.forms.tags.settings import TaggedSentence, TagsTaskConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig


class ConllNerConfig(TwoFilesTaskConfig, TagsTaskConfig):
    """Named entity recognition, scored by whole entities."""

    kind: Literal["conll_ner"] = "conll_ner"
    word_column: int = 0
    """Column of the words, from 0; -1 is the last one."""
    tag_column: int = -1
    """Column of the tags, likewise."""
    scheme: Scheme = "bio"
    """How tags mark entities: `bio` begins each with B; `bioes` also marks the last word E and single words S; `iob1`,
    as in the original files of CoNLL-2003, has B only between neighbours of one type, and is turned into `bio`."""

    origin = "a file of CoNLL columns, such as eng.train of CoNLL-2003 or wnut17train.conll"
    metrics = ("f1", "precision", "recall", "accuracy")
    evaluation_sets = (
        EvaluationSet(
            "wnut17",
            (
                Files(("wnut17/emerging.dev.conll*",), read_sentences),
                Files(("wnut17/emerging.test*",), read_sentences),
            ),
            "WNUT-17's emerging.dev.conll and emerging.test.annotated",
        ),
    )

    @property
    def outside(self) -> str | None:
        """`O`."""
        return OUTSIDE

    def load(self) -> TaskData[TaggedSentence]:
        """Read both files. Entities of a type that training does not have are never predicted, and count as missed."""
        train = [*self._sentences(self.train)]
        types = sorted({type_of(tag) for each in train for tag in each.tags} - {""})
        prefixes = PREFIXES["bio" if self.scheme == "iob1" else self.scheme]
        labels = (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in prefixes))
        evaluation = [*self._sentences(self.evaluation)]
        return TaskData.of_files(train, evaluation, [self.train, self.evaluation], labels)

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """F1, precision and recall of entities, and accuracy of tags."""
        from pipeline.tune.metrics.entities import entity_metrics

        return entity_metrics([sentence.tags for sentence in sentences], predictions)

    def _sentences(self, path: Path) -> Iterator[TaggedSentence]:
        for found in read_tagged(self.required(path), self.word_column, self.tag_column):
            check_scheme(path, found, self.scheme)
            names, words, tags = zip(*found, strict=True)
            yield TaggedSentence(names[0], words, as_bio(tags) if self.scheme == "iob1" else tags)
