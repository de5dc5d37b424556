"""The evaluation texts as an artefact: read once, named by a digest, indexed for the tasks that search the corpus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import InputEntry, hash_file
from cluster.shards import ShardResult
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText, EvaluationTexts
from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.text.words import split_words

TEXTS_FILE = "texts.parquet"
_SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("example", pa.string()),
        ("text", pa.string()),
        ("words", pa.uint32()),
        ("searched", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class TextsSplit:
    """Place that the evaluation texts are read from."""

    texts: EvaluationTexts
    settings: DecontaminationConfig


def check_evaluation_texts(settings: DecontaminationConfig, texts: EvaluationTexts | None) -> None:
    """Refuse what cannot be decontaminated, before anything is done.

    Raises:
        ConfigError: tasks are named, but there is nothing that gives their texts, or it does not know a name.
        MissingInputError: an evaluation set is not there.
    """
    if not settings.tasks:
        return
    if texts is None:
        raise ConfigError(
            f"`decontaminate` names {', '.join(settings.tasks)}, but nothing gives their texts.",
            next_step="hand `evaluation_texts` to `prepare`, as the command line does",
        )
    texts(settings)


def identify(texts: Iterable[EvaluationText]) -> tuple[str, list[InputEntry]]:
    """A digest of all evaluation texts with their names, and the files that they were read from."""
    digest = xxhash.xxh3_128()
    files: dict[Path, None] = {}
    for text in texts:
        for part in (text.task, text.example, text.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        if text.file is not None:
            files[text.file] = None
    entries = [
        InputEntry(kind="evaluation-file", uri=str(file), fingerprint=hash_file(file)[0]) for file in files
    ]
    return digest.hexdigest(), entries


def write_texts(split: TextsSplit, path: Path) -> ShardResult:
    """Write the evaluation texts; `searched` says whether a text has enough words to be searched for."""
    texts = list(split.texts(split.settings))
    words = split_words([text.text for text in texts]).counts
    searched = words >= split.settings.shortest
    columns = [[getattr(text, name) for text in texts] for name in ("task", "example", "text")]
    table = pa.table([*columns, words, searched], names=_SCHEMA.names).cast(_SCHEMA)
    pq.write_table(table, str(path), compression="zstd", write_statistics=False)
    num_searched = int(searched.sum())
    stats = {"texts_searched": num_searched, "texts_too_short": len(texts) - num_searched}
    return ShardResult(rows=len(texts), stats=stats)


def read_texts(directory: Path) -> pa.Table:
    """The result of `write_texts`, without the texts themselves."""
    return pq.read_table(str(directory / TEXTS_FILE), columns=["task", "example", "searched"])


def build_index(directory: Path, settings: DecontaminationConfig) -> int:
    """Index the texts in `directory` and write the index beside them; returns the number of different n-grams."""
    texts = pq.read_table(str(directory / TEXTS_FILE), columns=["text"])["text"].to_pylist()
    index = NgramIndex.build(texts, settings.ngram, settings.shortest)
    index.save(directory)
    return len(index.ngrams)
