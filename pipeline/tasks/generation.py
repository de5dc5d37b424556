"""Published texts to write for others: summaries of news articles, and translations.

XSum: what is the article about, in one sentence? (Narayan et al. 2018; Lewis et al. 2020, section 5.3). 204,045
training, 11,332 validation and 11,334 test documents in the official split.

CNN/DailyMail: what are the highlights of the article? (Hermann et al. 2015; See et al. 2017, version without anonymised
names; Lewis et al. 2020, section 5.3). 287,113 training, 13,368 validation and 11,490 test articles in the released
version 3.0.

Translation of parallel files, a sentence in each line, as of WMT (Liu et al. 2020, section 3). WMT16 English to
Romanian has 610,320 training and 1,999 development and test pairs each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from cluster.artefacts.errors import MissingInputError
from cluster.artefacts.manifest import InputEntry
from pipeline.samples.noise import Noise
from pipeline.tasks.files.lines import read_lines, require_file, wrong_file
from pipeline.tasks.files.rows import read_rows
from pipeline.tasks.forms import GenerationTaskConfig, TextPair
from pipeline.tasks.metrics.texts import translation_metrics
from pipeline.tasks.task import EvaluationSet, TaskData, file_input, folder_input, texts_of

XSUM_ORIGIN = "XSum's documents as JSON lines, CSV or Parquet with id, document and summary"
PAGE_NOTES = {
    "Media playback is not supported on this device",
    "Media playback is unsupported on your device",
}
"""Lines of the BBC's pages before the first sentence of many documents."""


def _read_pairs(path: Path, text: str, summary: str) -> Iterator[TextPair]:
    """Stream the pairs of a file of rows with columns of texts and summaries, named by their `id`, if there is one."""
    for row in read_rows(path):
        texts = [row.official_text(column).strip() for column in (text, summary)]
        yield TextPair(str(row.values.get("id", row.name)), *texts)


def read_xsum(path: Path) -> Iterator[TextPair]:
    """Stream the documents of a file of rows with their summaries."""
    return _read_pairs(path, "document", "summary")


class XsumConfig(GenerationTaskConfig):
    """Extreme summarisation."""

    kind: Literal["xsum"] = "xsum"
    evaluation: Path
    """JSON lines, CSV or Parquet with `id`, `document` and `summary` to score on."""
    train: Path | None = None
    """The same to learn from; null learns from a share of `evaluation` and scores on the rest of it."""
    train_share: float = Field(default=0.9, gt=0, lt=1)
    """Without `train`: the share of the documents to learn from, drawn by a hash of their ids."""

    num_lead = 1
    metrics = ("rouge1", "rouge2", "rouge_l")
    evaluation_sets = (EvaluationSet("xsum", XSUM_ORIGIN, texts_of(read_xsum), ("xsum/test*.jsonl",)),)

    def load(self) -> TaskData[TextPair]:
        """Read the files, and split a single file into documents to learn from and documents to score on."""
        paths = [path for path in (self.evaluation, self.train) if path is not None]
        evaluation, *train = (
            [*read_xsum(require_file(path, XSUM_ORIGIN, "`train` and `evaluation`"))] for path in paths
        )
        if train:
            return TaskData.of_files(train[0], evaluation, paths[::-1])
        sides: tuple[list[TextPair], list[TextPair]] = ([], [])
        for pair in evaluation:
            is_learnt = float(Noise.of("xsum-split", pair.id).uniform()) < self.train_share
            sides[not is_learnt].append(pair)
        return TaskData.of_files(*sides, paths)

    def lead(self, source: str) -> str:
        """The document without the notes of its web page, which are no sentences of it."""
        return "\n".join(line for line in source.split("\n") if line.strip() not in PAGE_NOTES)


CNN_ORIGIN = (
    "CNN/DailyMail's articles as CSV, JSON lines or Parquet with id, article and highlights,"
    " or its .story files"
)
_HIGHLIGHT = "@highlight"
_SENTENCE_ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")


def read_articles(path: Path) -> Iterator[TextPair]:
    """Stream the articles of a file of rows with their highlights."""
    return _read_pairs(path, "article", "highlights")


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
    """Stream the articles, in one line each, with the highlights, in a line each after lines `@highlight`.
    Sentences without an end get ` .`, as in the released processing of See et al. 2017.

    Raises:
        ConfigError: a story has no article or no highlight.
    """
    for path in paths:
        lines = [text for _, line in read_lines(path) if (text := line.strip())]
        ended = (
            each if each == _HIGHLIGHT or each.endswith(_SENTENCE_ENDS) else f"{each} ." for each in lines
        )
        article, *highlights = "\n".join(ended).split(_HIGHLIGHT)
        texts = [" ".join(article.split("\n")).strip(), "\n".join(each.strip() for each in highlights)]
        if not all(texts):
            raise wrong_file(f"{path} has no {'highlight' if texts[0] else 'article'}")
        yield TextPair(path.stem, *texts)


class CnnDailymailConfig(GenerationTaskConfig):
    """Summarisation by several sentences."""

    kind: Literal["cnn_dailymail"] = "cnn_dailymail"
    train: Path
    """Articles to learn from: CSV, JSON lines or Parquet with `id`, `article` and `highlights`; a folder of .story
    files; or a file of their web addresses, such as all_train.txt, with `stories`."""
    evaluation: Path
    """Articles to score on, likewise."""
    stories: Path | None = None
    """The folder of the .story files that files of web addresses name."""
    max_target_length: int = Field(default=142, ge=8)
    """Tokens of a target with its special tokens; longer ones are cut, in training and in writing."""
    min_target_length: int = Field(default=56, ge=0)
    """Tokens of the shortest text that is written."""
    num_beams: int = Field(default=4, gt=0)
    """Texts that the search follows at once; 1 always takes the likeliest token."""
    length_penalty: float = 2.0
    """Scores of finished texts are divided by their length to this power."""

    num_lead = 3
    metrics = ("rouge1", "rouge2", "rouge_lsum", "rouge_l")
    evaluation_sets = (
        EvaluationSet(
            "cnn_dailymail",
            CNN_ORIGIN,
            texts_of(read_articles),
            (("cnn_dailymail/test*.parquet", "cnn_dailymail/test*.jsonl"),),
        ),
    )

    def load(self) -> TaskData[TextPair]:
        (train, first), (evaluation, second) = map(self._side, (self.train, self.evaluation))
        return TaskData.of_files(train, evaluation, [first, second])

    def _side(self, path: Path) -> tuple[list[TextPair], InputEntry]:
        """The articles that a setting names, and the entry of their files."""
        if path.is_dir():
            stories = stories_in(path)
        else:
            require_file(path, CNN_ORIGIN, "`train` and `evaluation`")
            if path.suffix != ".txt" or self.stories is None:
                return [*read_articles(path)], file_input(path)
            stories = stories_of(path, self.stories)
        return [*read_stories(stories)], folder_input(path, stories)


class TranslationConfig(GenerationTaskConfig):
    """Translation; defaults are those of mBART's released fine-tuning."""

    kind: Literal["translation"] = "translation"
    train_source: Path
    """Sentences to learn from, one in each line."""
    train_target: Path
    """Their translations, in the same lines."""
    source: Path
    """Sentences to score on."""
    target: Path
    """Their translations."""
    language: str | None = None
    """Language tag of the sources such as `en_XX`, for networks that were pre-trained with language tags (mBART)."""
    target_language: str | None = None
    """Language tag of the targets such as `ro_RO`."""
    prefix: str = ""
    """Written before every source, such as `translate English to Romanian: ` for T5."""
    tokenize: Literal["13a", "intl", "char", "zh"] = "13a"
    """How sacrebleu cuts the texts into words; 13a for most languages, zh for Chinese."""
    max_target_length: int = Field(default=200, ge=8)
    """Tokens of a target with its special tokens; longer ones are cut, in training and in writing."""
    min_target_length: int = Field(default=0, ge=0)
    """Tokens of the shortest text that is written."""
    num_beams: int = Field(default=5, gt=0)
    """Texts that the search follows at once; 1 always takes the likeliest token."""
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    """No sequence of this many tokens is written twice; 0 allows it."""
    label_smoothing: float = Field(default=0.2, ge=0, lt=1)
    """Probability that training gives to all tokens alike (Szegedy et al. 2016, section 7)."""

    carriers = ("encoder_decoder",)
    metrics = ("bleu", "chrf")

    @model_validator(mode="after")
    def _languages(self) -> TranslationConfig:
        if self.target_language is not None and self.language is None:
            raise ValueError("target_language also needs language, the tag of the sources")
        return self

    @property
    def written_language(self) -> str | None:
        return self.target_language

    def load(self) -> TaskData[TextPair]:
        train = self._pairs(self.train_source, self.train_target)
        evaluation = self._pairs(self.source, self.target)
        paths = [self.train_source, self.train_target, self.source, self.target]
        return TaskData.of_files(train, evaluation, paths)

    def measure(self, pairs: Sequence[TextPair], texts: Sequence[str]) -> dict[str, float]:
        """BLEU and chrF of all texts together."""
        return translation_metrics([pair.target for pair in pairs], texts, self.tokenize)[0]

    def signatures(self) -> dict[str, str]:
        """How sacrebleu computed BLEU and chrF."""
        return translation_metrics(["a"], ["a"], self.tokenize)[1]

    def _pairs(self, source: Path, target: Path) -> list[TextPair]:
        """The pairs of two files; those with an empty side are left out, because there is nothing to translate."""
        read, written = (
            list(read_lines(require_file(path, "a file with a sentence in each line", "paths")))
            for path in (source, target)
        )
        if len(read) != len(written):
            raise wrong_file(f"{source} has {len(read)} lines, but {target} has {len(written)}")
        pairs = (
            TextPair(name, self.prefix + text.strip(), translated.strip())
            for (name, text), (_, translated) in zip(read, written, strict=True)
        )
        return [pair for pair in pairs if pair.source.removeprefix(self.prefix) and pair.target]
