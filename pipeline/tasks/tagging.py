"""Tagging of published sentences.

Named entities in CoNLL columns, such as CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), with 14,041 training and 3,250
development sentences in English, and WNUT-17, with 3,394 and 1,009.

Parts of speech in CoNLL-U: which of 17 universal classes is the word? (Nivre et al. 2020; universaldependencies.org).
UD English EWT has 12,544 training and 2,001 development sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from pipeline.tasks.files.lines import read_lines, wrong_line
from pipeline.tasks.forms import TaggedSentence, TagsTaskConfig
from pipeline.tasks.metrics.entities import (
    OUTSIDE,
    PREFIXES,
    LabelledWord,
    Scheme,
    as_bio,
    check_scheme,
    entity_metrics,
    type_of,
)
from pipeline.tasks.task import EvaluationSet, NamedText, TwoFilesTaskConfig

DOCUMENT_START = "-DOCSTART-"
"""The word of lines between documents, which is no text."""
_CONLLU_COLUMNS = 10


def read_conll(path: Path, word_column: int, tag_column: int) -> Iterator[list[LabelledWord]]:
    """Stream the sentences of a CoNLL file: a word in each line, its columns separated by tabs or spaces, and a blank
    line after each sentence.

    Args:
        word_column: the column of the word, from 0; -1 is the last one.
        tag_column: the column of its tag, likewise.

    Raises:
        ConfigError: a line has another number of columns than the first, or lacks one of the two.
    """

    def words() -> Iterator[LabelledWord | None]:
        width = 0
        for name, line in read_lines(path):
            columns = line.split("\t") if "\t" in line else line.split(" ")
            columns = [column for column in columns if column.strip()]
            if not columns or columns[0] == DOCUMENT_START:
                yield None
                continue
            width = width or len(columns)
            needed = max(1 + word_column, -word_column, 1 + tag_column, -tag_column, 2)
            if len(columns) != width or len(columns) < needed:
                expected = f"{width} as before" if width >= needed else f"at least {needed}"
                raise wrong_line(path, name, f"{len(columns)} columns, {expected} are needed")
            yield name, columns[word_column].strip(), columns[tag_column].strip()

    return _sentences(words())


def _sentences(words: Iterable[LabelledWord | None]) -> Iterator[list[LabelledWord]]:
    """Cut words into sentences, at every None."""
    for is_word, group in groupby(words, key=lambda word: word is not None):
        if is_word:
            yield [word for word in group if word is not None]


def _read_conll_texts(path: Path) -> Iterator[NamedText]:
    """Sentences of a CoNLL file whose first column holds the words, named by their first lines."""
    for sentence in read_conll(path, 0, -1):
        yield sentence[0][0], " ".join(word for _, word, _ in sentence)


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
    outside = OUTSIDE
    metrics = ("f1", "precision", "recall", "accuracy")
    evaluation_sets = (
        EvaluationSet(
            "wnut17",
            "WNUT-17's emerging.dev.conll and emerging.test.annotated",
            _read_conll_texts,
            ("wnut17/emerging.dev.conll*", "wnut17/emerging.test*"),
        ),
    )

    def examples(self, path: Path) -> Iterator[TaggedSentence]:
        for found in read_conll(path, self.word_column, self.tag_column):
            check_scheme(path, found, self.scheme)
            names, words, tags = zip(*found, strict=True)
            yield TaggedSentence(names[0], words, as_bio(tags) if self.scheme == "iob1" else tags)

    def labels_of(self, train: Sequence[TaggedSentence]) -> tuple[str, ...]:
        """Tags of the types that training has; entities of other types are never predicted, and count as missed."""
        types = sorted({type_of(tag) for each in train for tag in each.tags} - {""})
        prefixes = PREFIXES["bio" if self.scheme == "iob1" else self.scheme]
        return (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in prefixes))

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """F1, precision and recall of entities, and accuracy of tags."""
        return entity_metrics([sentence.tags for sentence in sentences], predictions)


POS_LABELS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT"),
    *("SCONJ", "SYM", "VERB", "X"),
)
UD_ORIGIN = "UD English EWT (github.com/UniversalDependencies/UD_English-EWT)"


def read_parts_of_speech(path: Path) -> Iterator[list[LabelledWord]]:
    """Stream the sentences of a CoNLL-U file: syntactic words with their universal part of speech (UPOS).

    Lines of several words ("1-2") and of words that are not in the text ("8.1") are left out.

    Raises:
        ConfigError: a line does not have ten columns.
    """

    def words() -> Iterator[LabelledWord | None]:
        for name, line in read_lines(path):
            if not line.strip():
                yield None
            elif not line.startswith("#"):
                columns = line.split("\t")
                if len(columns) != _CONLLU_COLUMNS:
                    raise wrong_line(path, name, f"{len(columns)} columns, {_CONLLU_COLUMNS} are needed")
                if columns[0].isdigit():
                    yield name, columns[1], columns[3]

    return _sentences(words())


def _read_conllu_texts(path: Path) -> Iterator[NamedText]:
    """Sentences of a CoNLL-U file as they were written, named by their `sent_id`."""
    sentence = ""
    for name, line in read_lines(path):
        if line.startswith("# sent_id = "):
            sentence = line.partition(" = ")[2]
        elif line.startswith("# text = "):
            yield sentence or name, line.partition(" = ")[2]


class ConlluPosConfig(TwoFilesTaskConfig, TagsTaskConfig):
    """Part-of-speech tagging of a treebank of Universal Dependencies, in any language, from .conllu files."""

    kind: Literal["conllu_pos"] = "conllu_pos"

    origin = f"a treebank such as {UD_ORIGIN}"
    labels = POS_LABELS
    outside = "X"
    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "ud-english-ewt",
            UD_ORIGIN,
            _read_conllu_texts,
            ("ud-english-ewt/en_ewt-ud-dev.conllu", "ud-english-ewt/en_ewt-ud-test.conllu"),
        ),
    )

    def examples(self, path: Path) -> Iterator[TaggedSentence]:
        for found in read_parts_of_speech(path):
            for name, word, tag in found:
                if tag not in POS_LABELS:
                    problem = f"the class of {word!r} is {tag!r}, not one of {', '.join(POS_LABELS)}"
                    raise wrong_line(path, name, problem)
            names, words, tags = zip(*found, strict=True)
            yield TaggedSentence(names[0], words, tags)
