"""Sentences whose words carry labels: WNUT-17 (CoNLL columns), UD English EWT (CoNLL-U), SST-5 (trees)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.finetune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.finetune.files.lines import read_lines, wrong_line

_LEAF = re.compile(r"\([0-4] ([^()\s]+)\)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def read_columns(path: Path) -> Iterator[NamedText]:
    """Sentences of a CoNLL file: a word in the first column of each line, a blank line after each sentence."""
    words: list[str] = []
    name = ""
    for line_name, line in read_lines(path):
        if word := line.partition("\t")[0].strip():
            name = name if words else line_name
            words.append(word)
        elif words:
            yield name, " ".join(words)
            words = []
    if words:
        yield name, " ".join(words)


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
    for name, line in read_lines(path):
        if not line:
            continue
        leaves = [str(leaf) for leaf in _LEAF.findall(line)]
        if not leaves:
            raise wrong_line(path, name, "no tree of labels from 0 to 4")
        yield name, " ".join(_BRACKETS.get(leaf, leaf) for leaf in leaves)


SETS = (
    EvaluationSet(
        "sst5",
        (Files(("sst5/dev.txt",), read_trees), Files(("sst5/test.txt",), read_trees)),
        "the trees of the Stanford Sentiment Treebank (nlp.stanford.edu/sentiment)",
    ),
    EvaluationSet(
        "wnut17",
        (
            Files(("wnut17/emerging.dev.conll*",), read_columns),
            Files(("wnut17/emerging.test*",), read_columns),
        ),
        "WNUT-17's emerging.dev.conll and emerging.test.annotated",
    ),
    EvaluationSet(
        "ud-english-ewt",
        (
            Files(("ud-english-ewt/en_ewt-ud-dev.conllu",), read_conllu),
            Files(("ud-english-ewt/en_ewt-ud-test.conllu",), read_conllu),
        ),
        "UD English EWT (github.com/UniversalDependencies/UD_English-EWT)",
    ),
)
