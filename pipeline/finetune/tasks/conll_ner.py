"""Named entities in CoNLL columns, such as CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and WNUT-17.

14,041 training and 3,250 development sentences in CoNLL-2003 (English); 3,394 and 1,009 in WNUT-17.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.finetune.files.annotated import LabelledWord, read_columns, read_tagged
from pipeline.finetune.files.evaluation_set import EvaluationSet, Files
from pipeline.finetune.files.lines import require_file, wrong_line
from pipeline.finetune.forms.tags.settings import TaggedSentence, TagsTaskConfig
from pipeline.finetune.metrics.entities import OUTSIDE, entity_metrics, prefix_of, type_of
from pipeline.finetune.task import TaskData

Scheme = Literal["bio", "bioes", "iob1"]
ORIGIN = "a file of CoNLL columns, such as eng.train of CoNLL-2003 or wnut17train.conll"

_MAY_FOLLOW: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {
        # I goes on with an entity of its type; all else begins one, or is outside.
        "bio": lambda before, tag: prefix_of(tag) != "I" or _is_inside(before, tag, "BI"),
        "iob1": lambda before, tag: prefix_of(tag) != "B" or _is_inside(before, tag, "BI"),
        "bioes": lambda before, tag: (
            _is_inside(before, tag, "BI") if prefix_of(tag) in "IE" else prefix_of(before) not in "BI"
        ),
    }
)
"""By scheme: (tag before, tag) to whether one may follow the other."""
_PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bio": ("B", "I"), "iob1": ("B", "I"), "bioes": ("B", "I", "E", "S")}
)


class ConllNerConfig(TagsTaskConfig):
    """Named entity recognition, scored by whole entities."""

    kind: Literal["conll_ner"] = "conll_ner"
    train: Path
    """The file to learn from."""
    evaluation: Path
    """The file to score on."""
    word_column: int = 0
    """Column of the words, from 0; -1 is the last one."""
    tag_column: int = -1
    """Column of the tags, likewise."""
    scheme: Scheme = "bio"
    """How tags mark entities: `bio` begins each with B; `bioes` also marks the last word E and single words S; `iob1`,
    as in the original files of CoNLL-2003, has B only between neighbours of one type, and is turned into `bio`."""

    metrics = ("f1", "precision", "recall", "accuracy")
    evaluation_sets = (
        EvaluationSet(
            "wnut17",
            (
                Files(("wnut17/emerging.dev.conll*",), read_columns),
                Files(("wnut17/emerging.test*",), read_columns),
            ),
            "WNUT-17's emerging.dev.conll and emerging.test.annotated",
        ),
    )

    @property
    def outside(self) -> str | None:
        """`O`."""
        return OUTSIDE

    def load(self) -> TaskData[TaggedSentence]:
        """Read both files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a line has other columns than the others, or a tag that its scheme does not allow there, or a
            type
                of entity that training does not have.
        """
        train = [*self._sentences(self.train)]
        types = sorted({type_of(tag) for each in train for tag in each.tags} - {""})
        prefixes = _PREFIXES["bio" if self.scheme == "iob1" else self.scheme]
        labels = (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in prefixes))
        evaluation = [*self._sentences(self.evaluation, frozenset(types))]
        return TaskData.of_files(train, evaluation, [self.train, self.evaluation], labels)

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """F1, precision and recall of entities, and accuracy of tags."""
        return entity_metrics([sentence.tags for sentence in sentences], predictions)

    def _sentences(self, path: Path, types: frozenset[str] | None = None) -> Iterator[TaggedSentence]:
        require_file(path, ORIGIN, "`train` and `evaluation`")
        for found in read_tagged(path, self.word_column, self.tag_column):
            check_scheme(path, found, self.scheme, types)
            names, words, tags = zip(*found, strict=True)
            yield TaggedSentence(names[0], words, _as_bio(tags) if self.scheme == "iob1" else tags)


def check_scheme(
    path: Path, sentence: Sequence[LabelledWord], scheme: Scheme, types: frozenset[str] | None = None
) -> None:
    """Check the tags of a sentence.

    Args:
        types: the types of entities that may occur; None allows all.

    Raises:
        ConfigError: a tag is no tag of the scheme, or may not follow the one before; file and line are named.
    """
    before = OUTSIDE
    for name, word, tag in sentence:
        kind = type_of(tag)
        if tag != OUTSIDE and (prefix_of(tag) not in _PREFIXES[scheme] or not kind):
            known = ", ".join((OUTSIDE, *(f"{prefix}-TYPE" for prefix in _PREFIXES[scheme])))
            raise wrong_line(path, name, f"the tag of {word!r} is {tag!r}, not one of {known}")
        if types is not None and kind and kind not in types:
            known = ", ".join(sorted(types))
            raise wrong_line(path, name, f"the type of {tag!r} does not occur in training; there are {known}")
        if not _MAY_FOLLOW[scheme](before, tag):
            problem = f"the tag {tag!r} of {word!r} may not follow {before!r} in the scheme {scheme}"
            raise wrong_line(path, name, f"{problem}; set `scheme` to the one of the file")
        before = tag
    if scheme == "bioes" and prefix_of(before) in "BI":
        raise wrong_line(path, sentence[-1][0], f"the entity of {before!r} has no end in the scheme bioes")


def _is_inside(before: str, tag: str, prefixes: str) -> bool:
    return before != OUTSIDE and prefix_of(before) in prefixes and type_of(before) == type_of(tag)


def _as_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in IOB1 as BIO: the first word of every entity gets B."""
    pairs = zip((OUTSIDE, *tags), tags, strict=False)
    return tuple(
        f"B-{type_of(tag)}" if tag != OUTSIDE and type_of(before) != type_of(tag) else tag
        for before, tag in pairs
    )
