"""Parts of speech in CoNLL-U: which of 17 universal classes is the word? (Nivre et al. 2020;
universaldependencies.org).

12,544 training and 2,001 development sentences in UD English EWT.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.tune.files.annotated import read_conllu, read_parts_of_speech
from pipeline.tune.files.evaluation_set import EvaluationSet, Files
from pipeline.tune.files.lines import wrong_line
from pipeline.tune.forms.tags.settings import TaggedSentence, TagsTaskConfig
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig

LABELS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT"),
    *("SCONJ", "SYM", "VERB", "X"),
)
ORIGIN = "UD English EWT (github.com/UniversalDependencies/UD_English-EWT)"


class ConlluPosConfig(TwoFilesTaskConfig, TagsTaskConfig):
    """Part-of-speech tagging of a treebank of Universal Dependencies, in any language, from .conllu files."""

    kind: Literal["conllu_pos"] = "conllu_pos"

    origin = f"a treebank such as {ORIGIN}"
    labels = LABELS
    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "ud-english-ewt",
            (
                Files(("ud-english-ewt/en_ewt-ud-dev.conllu",), read_conllu),
                Files(("ud-english-ewt/en_ewt-ud-test.conllu",), read_conllu),
            ),
            ORIGIN,
        ),
    )

    @property
    def outside(self) -> str | None:
        """`X`, the class of words that have none."""
        return "X"

    def examples(self, path: Path) -> Iterator[TaggedSentence]:
        """The sentences of a file."""
        for found in read_parts_of_speech(path):
            for name, word, tag in found:
                if tag not in LABELS:
                    problem = f"the class of {word!r} is {tag!r}, not one of {', '.join(LABELS)}"
                    raise wrong_line(path, name, problem)
            names, words, tags = zip(*found, strict=True)
            yield TaggedSentence(names[0], words, tags)
