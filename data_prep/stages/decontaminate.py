"""Selected documents to those parts of them that no evaluation set holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.manifest import InputEntry, Manifest, hash_json
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Shard, ShardRecord
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.decontaminate.decide import COUNTS_FILE, DecisionSplit, decide, overlaps
from data_prep.decontaminate.evaluation import (
    TEXTS_FILE,
    TextsSplit,
    build_index,
    identify,
    read_texts,
    write_texts,
)
from data_prep.decontaminate.hits import HitsSplit, find_hits, hit_files, load_hits
from data_prep.decontaminate.ngrams import NgramIndex
from data_prep.decontaminate.report import REPORT_FILE, Tally, count_documents, most_frequent
from data_prep.layout import DECONTAMINATION, WORK
from data_prep.selection import load_selection, selection_files
from data_prep.workspace import Workspace

VERSION = 1
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""
EVALUATION, HITS = "evaluation-ngrams", "decontamination-hits"
"""Artefacts in `work/`."""


def decontaminate(
    job: Workspace, documents: Manifest, selection: Manifest, texts: EvaluationTexts
) -> Manifest:
    """Make the `decontamination` artefact: the selection of every document shard, and `report.jsonl`.

    Raises:
        ConfigError: a task is unknown, or one of its files is not what its name says.
        MissingInputError: an evaluation set is not there.
    """
    evaluation = _index_evaluation_texts(job, texts)
    hits = _find_hits(job, documents, selection, evaluation)
    return _decide(job, documents, selection, evaluation, hits)


def _index_evaluation_texts(job: Workspace, texts: EvaluationTexts) -> Manifest:
    """`work/evaluation-ngrams`: the evaluation texts and the index of their n-grams."""
    settings = job.config.decontaminate
    digest, inputs = identify(texts(settings))
    config = {"version": VERSION, **settings.model_dump(mode="json", include={"tasks", "ngram", "min_words"})}

    def finish(directory: Path, _: Sequence[ShardRecord]) -> Mapping[str, Any]:
        return {"ngrams": len(build_index(directory, settings).ngrams)}

    return build_sharded_artefact(
        job.out / WORK / EVALUATION,
        EVALUATION,
        function=write_texts,
        shards=[Shard(TEXTS_FILE, TextsSplit(texts, settings), hash_json([config, digest]))],
        config=config,
        inputs=inputs,
        finish=finish,
        replace=job.replace,
    )


def _find_hits(job: Workspace, documents: Manifest, selection: Manifest, evaluation: Manifest) -> Manifest:
    """`work/decontamination-hits`: per document shard where the n-grams are, and in how many documents each is."""
    files, index = hit_files(job.num_shards), job.out / WORK / EVALUATION
    shortest = job.config.decontaminate.shortest

    def finish(directory: Path, _: Sequence[ShardRecord]) -> Mapping[str, Any]:
        ngrams = NgramIndex.load(index, shortest)
        counts = count_documents(len(ngrams.ngrams), (load_hits(directory / file) for file in files))
        with (directory / COUNTS_FILE).open("wb") as stream:
            np.save(stream, counts)
        return {"ngrams_found": int((counts > 0).sum()), "most_frequent": most_frequent(ngrams, counts)}

    hashes = zip(documents.files, job.selection_hashes(selection), strict=True)
    shards = []
    for shard, (file, (entry, selection_hash)) in enumerate(zip(files, hashes, strict=True)):
        split = HitsSplit(
            documents=job.documents_path(documents, shard),
            selection=job.selection_path(selection, shard),
            index=index,
            index_fingerprint=evaluation.fingerprint,
            min_words=shortest,
        )
        identity = hash_json([VERSION, entry.xxh3_128, selection_hash, evaluation.fingerprint])
        shards.append(Shard(file, split, identity, entry.size_bytes))
    return build_sharded_artefact(
        job.out / WORK / HITS,
        HITS,
        function=find_hits,
        shards=shards,
        config={"version": VERSION},
        inputs=[job.entry(documents), job.entry(selection), _work_entry(job, evaluation)],
        finish=finish,
        replace=job.replace,
    )


def _decide(
    job: Workspace, documents: Manifest, selection: Manifest, evaluation: Manifest, hits: Manifest
) -> Manifest:
    """`decontamination`: what is kept, and the report."""
    settings = job.config.decontaminate
    files, results = hit_files(job.num_shards), selection_files(job.num_shards)
    place = job.out / WORK / HITS
    least = job.config.min_characters
    config = {
        "version": VERSION,
        **settings.model_dump(mode="json", exclude={"data"}),
        "min_characters": least,
    }

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        index = NgramIndex.load(job.out / WORK / EVALUATION, settings.shortest)
        counts = np.load(place / COUNTS_FILE)
        tally = Tally(read_texts(job.out / WORK / EVALUATION))
        num_overlaps = 0
        with (directory / REPORT_FILE).open("wb") as report:
            for file, result in zip(files, results, strict=True):
                found = overlaps(load_hits(place / file), counts, settings.max_documents)
                for overlap in tally.overlaps(index, found, load_selection(directory / result)):
                    report.write(orjson.dumps(asdict(overlap), option=orjson.OPT_APPEND_NEWLINE))
                    num_overlaps += 1
        ignored = 0 if settings.max_documents is None else int((counts > settings.max_documents).sum())
        return {
            "overlaps": num_overlaps,
            "ngrams_ignored": ignored,
            "most_frequent": hits.stats["most_frequent"],
            "tasks": tally.summary(),
            "sources": job.by_source(records),
        }

    by_name = {entry.path: entry.xxh3_128 for entry in hits.files}
    hashes = zip(documents.files, job.selection_hashes(selection), files, strict=True)
    shards = []
    for shard, (result, (entry, selection_hash, file)) in enumerate(zip(results, hashes, strict=True)):
        split = DecisionSplit(
            documents=job.documents_path(documents, shard),
            selection=job.selection_path(selection, shard),
            hits=place / file,
            counts=place / COUNTS_FILE,
            settings=settings,
            min_characters=least,
        )
        content = [entry.xxh3_128, selection_hash, by_name[file], by_name[COUNTS_FILE]]
        shards.append(Shard(result, split, hash_json([config, content]), entry.size_bytes))
    return build_sharded_artefact(
        job.out / DECONTAMINATION,
        DECONTAMINATION,
        function=decide,
        shards=shards,
        config=config,
        inputs=[
            job.entry(documents),
            job.entry(selection),
            _work_entry(job, evaluation),
            _work_entry(job, hits),
        ],
        finish=finish,
        replace=job.replace,
    )


def _work_entry(job: Workspace, manifest: Manifest) -> InputEntry:
    uri = str(job.out / WORK / manifest.kind)
    return InputEntry(kind=manifest.kind, uri=uri, fingerprint=manifest.fingerprint)
