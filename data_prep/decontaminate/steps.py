"""The steps of decontamination: the n-grams of the evaluation texts, and their occurrences in the documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cluster.artefacts.manifest import InputEntry, Manifest, hash_file
from cluster.artefacts.shard_records import ShardRecord
from cluster.shards import ShardResult, WriteShard, run_in_task
from data_prep.decontaminate.config import DecontaminationConfig, EvaluationText, EvaluationTexts
from data_prep.decontaminate.hits import count_documents, find_hits, load_hits
from data_prep.decontaminate.ngrams import NgramIndex, num_ngrams, save_array
from data_prep.layout import HIT_FILES, WORK
from data_prep.text.words import split_words
from data_prep.workspace import Workspace

VERSION = 2
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""
EVALUATION, HITS = "evaluation-ngrams", "decontamination-hits"
_COUNTS_FILE = "document_counts.npy"


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of both steps: what tasks need of a preparation, whose list of source files may be long."""

    work: Path
    num_shards: int
    settings: DecontaminationConfig

    @property
    def evaluation(self) -> Path:
        """Directory of the evaluation texts and the index of their n-grams."""
        return self.work / EVALUATION

    @property
    def counts(self) -> Path:
        """`.npy` of [n-grams] uint32: the documents that hold each n-gram."""
        return self.work / HITS / _COUNTS_FILE

    def hits(self, shard: int) -> Path:
        """The hits in a document shard."""
        return self.work / HITS / HIT_FILES.file(shard, self.num_shards)

    def load_index(self) -> NgramIndex:
        """The n-grams, once they are made."""
        return NgramIndex.load(self.evaluation, self.settings.shortest)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one decontamination, as artefacts in `work/`."""

    job: Workspace
    documents: Manifest
    selection: Manifest
    texts: EvaluationTexts
    digest: str
    """Hash of all evaluation texts."""

    @property
    def places(self) -> Places:
        """Paths of both steps."""
        return Places(self.job.out / WORK, self.job.num_shards, self.job.config.decontaminate)

    def make(self) -> None:
        """Make, continue, repair or confirm both steps."""
        self._find_hits(self._index_texts())

    def _index_texts(self) -> Manifest:
        settings = self.job.config.decontaminate.located()
        config = {
            "version": VERSION,
            "evaluation_texts": self.digest,
            "ngram": settings.ngram,
            "min_words": settings.shortest,
        }

        def finish(directory: Path, _: Sequence[ShardRecord]) -> Mapping[str, Any]:
            return {"ngrams": run_in_task(build_index, directory, settings)}

        return self.job.build(
            EVALUATION,
            [TEXTS_FILE],
            lambda _: partial(write_texts, self.texts, settings),
            lambda _: config,
            config=config,
            inputs=[],
            finish=finish,
        )

    def _find_hits(self, evaluation: Manifest) -> Manifest:
        job, places = self.job, self.places

        def finish(directory: Path, _: Sequence[ShardRecord]) -> Mapping[str, Any]:
            shards = (load_hits(directory / file) for file in HIT_FILES.files(places.num_shards))
            counts = count_documents(num_ngrams(places.evaluation), shards)
            save_array(directory / _COUNTS_FILE, counts)
            return {}

        def make(shard: int) -> WriteShard:
            return partial(
                find_hits,
                documents=job.documents_path(self.documents, shard),
                selection=job.selection_path(self.selection, shard),
                index=places.evaluation,
                index_fingerprint=evaluation.fingerprint,
                min_words=job.config.decontaminate.shortest,
            )

        content = [VERSION, self.documents.fingerprint, self.selection.fingerprint, evaluation.fingerprint]
        return job.build(
            HITS,
            HIT_FILES.files(job.num_shards),
            make,
            lambda shard: [*content, shard],
            [entry.size_bytes for entry in self.documents.files],
            config={"version": VERSION},
            inputs=[job.entry(each) for each in (self.documents, self.selection, evaluation)],
            finish=finish,
        )


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


def write_texts(read: EvaluationTexts, settings: DecontaminationConfig, path: Path) -> ShardResult:
    """Write the evaluation texts; `searched` says whether a text has enough words to be searched for."""
    texts = list(read(settings))
    words = split_words([text.text for text in texts]).counts
    searched = words >= settings.shortest
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
