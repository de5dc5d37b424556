"""Sentences whose words carry labels: CoNLL columns, CoNLL-U, and the trees of the Stanford Sentiment Treebank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.tune.files.evaluation_set import NamedText
from pipeline.tune.files.lines import read_lines, wrong_line

DOCUMENT_START = "-DOCSTART-"
"""The word of lines between documents, which is no text."""

LabelledWord = tuple[str, str, str]
"""The name of a line, a word and its tag."""
_CONLLU_COLUMNS = 10
_LEAF = re.compile(r"\([0-4] ([^()\s]+)\)")
_ROOT = re.compile(r"\s*\(([0-4]) ")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def read_sentences(path: Path) -> Iterator[NamedText]:
    """Sentences of a CoNLL file whose first column holds the words, named by their first lines."""
    for sentence in read_tagged(path, 0, -1):
        yield sentence[0][0], " ".join(word for _, word, _ in sentence)


def read_conllu(path: Path) -> Iterator[NamedText]:
    """Sentences of a CoNLL-U file as they were written, named by their `sent_id`."""
    sentence = ""
    for name, line in read_lines(path):
        if line.startswith("# sent_id = "):
            sentence = line.partition(" = ")[2]
        elif line.startswith("# text = "):
            yield sentence or name, line.partition(" = ")[2]


def read_trees(path: Path) -> Iterator[NamedText]:
    """Sentences of the Stanford Sentiment Treebank: the leaves of the tree on each line."""
    yield from ((name, text) for name, text, _ in read_labelled_trees(path))


def read_labelled_trees(path: Path) -> Iterator[tuple[str, str, int]]:
    """(name, sentence, label from 0 to 4) of the tree on each line.

    Raises:
        ConfigError: a line holds no tree.
    """
    for name, line in read_lines(path):
        if not line:
            continue
        leaves = [str(leaf) for leaf in _LEAF.findall(line)]
        label = _ROOT.match(line)
        if not leaves or not label:
            raise wrong_line(path, name, "no tree of labels from 0 to 4")
        yield name, " ".join(_BRACKETS.get(leaf, leaf) for leaf in leaves), int(label[1])


def read_tagged(path: Path, word_column: int, tag_column: int) -> Iterator[list[LabelledWord]]:
    """Stream the sentences of a CoNLL file: a word in each line, its columns separated by tabs or spaces, and a blank
    line after each sentence.

    Args:
        word_column: the column of the word, from 0; -1 is the last one.
        tag_column: the column of its tag, likewise.

    Raises:
        ConfigError: a line has another number of columns than the first, or lacks one of the two.
    """
    sentence: list[LabelledWord] = []
    width = 0
    for name, line in read_lines(path):
        columns = line.split("\t") if "\t" in line else line.split(" ")
        columns = [column for column in columns if column.strip()]
        if not columns or columns[0] == DOCUMENT_START:
            if sentence:
                yield sentence
            sentence = []
            continue
        width = width or len(columns)
        needed = max(1 + word_column, -word_column, 1 + tag_column, -tag_column, 2)
        if len(columns) != width or len(columns) < needed:
            expected = f"{width} as before" if width >= needed else f"at least {needed}"
            raise wrong_line(path, name, f"{len(columns)} columns, {expected} are needed")
        sentence.append((name, columns[word_column].strip(), columns[tag_column].strip()))
    if sentence:
        yield sentence


def read_parts_of_speech(path: Path) -> Iterator[list[LabelledWord]]:
    """Stream the sentences of a CoNLL-U file: syntactic words with their universal part of speech (UPOS).

    Lines of several words ("1-2") and of words that are not in the text ("8.1") are left out.

    Raises:
        ConfigError: a line does not have ten columns.
    """
    sentence: list[LabelledWord] = []
    for name, line in read_lines(path):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
            continue
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != _CONLLU_COLUMNS:
            raise wrong_line(path, name, f"{len(columns)} columns, {_CONLLU_COLUMNS} are needed")
        if columns[0].isdigit():
            sentence.append((name, columns[1], columns[3]))
    if sentence:
        yield sentence
