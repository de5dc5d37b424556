"""Selected documents to those parts of them that no evaluation set holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.artefacts.manifest import Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard, run_in_task
from data_prep.decontaminate.config import EvaluationTexts
from data_prep.decontaminate.decide import DecisionSplit, decide, overlaps
from data_prep.decontaminate.evaluation import identify, read_texts
from data_prep.decontaminate.hits import load_hits
from data_prep.decontaminate.report import REPORT_FILE, Tally, most_frequent
from data_prep.decontaminate.steps import Places, Steps
from data_prep.layout import DECONTAMINATION
from data_prep.selection import load_selection, selection_files
from data_prep.workspace import Workspace

VERSION = 2
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""


def decontaminate(
    job: Workspace, documents: Manifest, selection: Manifest, texts: EvaluationTexts
) -> Manifest:
    """Make the `decontamination` artefact: the selection of every document shard, and `report.jsonl`.

    It depends on the documents, their selection, the evaluation texts and the settings alone; the steps that lead
    to it are made only when one of its files has to be, and may be deleted afterwards.

    Raises:
        ConfigError: a task is unknown, or one of its files is not what its name says.
        MissingInputError: an evaluation set is not there.
    """
    settings, least = job.config.decontaminate, job.config.min_characters
    digest, evaluation_files = identify(texts(settings))
    steps = Steps(job, documents, selection, texts, digest)
    places = steps.places
    config = {"version": VERSION, **settings.model_dump(mode="json", exclude={"data"})}
    config |= {"min_characters": least, "evaluation_texts": digest}

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        steps.make()
        return run_in_task(_write_report, directory, places) | {"sources": job.by_source(records)}

    def split(shard: int) -> DecisionSplit:
        return DecisionSplit(
            documents=job.documents_path(documents, shard),
            selection=job.selection_path(selection, shard),
            hits=places.hits(shard),
            counts=places.counts,
            settings=settings,
            min_characters=least,
        )

    shards = []
    for shard, file in enumerate(selection_files(job.num_shards)):
        identity = hash_json([config, documents.fingerprint, selection.fingerprint, shard])
        shards.append(Shard(file, Deferred(split, (shard,)), identity, documents.files[shard].size_bytes))
    return build_sharded_artefact(
        job.out / DECONTAMINATION,
        DECONTAMINATION,
        function=decide,
        shards=shards,
        config=config,
        inputs=[job.entry(documents), job.entry(selection), *evaluation_files],
        finish=finish,
        replace=job.replace,
        before=steps.make,
    )


def _write_report(directory: Path, places: Places) -> dict[str, Any]:
    """Write `report.jsonl`, shard by shard; returns what the manifest says about it."""
    settings = places.settings
    index, counts = places.load_index(), np.load(places.counts)
    tally = Tally(read_texts(places.evaluation))
    num_overlaps = 0
    with (directory / REPORT_FILE).open("wb") as report:
        for shard, file in enumerate(selection_files(places.num_shards)):
            hits = overlaps(load_hits(places.hits(shard)), counts, settings.max_documents)
            for overlap in tally.overlaps(index, hits, load_selection(directory / file)):
                report.write(orjson.dumps(asdict(overlap), option=orjson.OPT_APPEND_NEWLINE))
                num_overlaps += 1
    ignored = 0 if settings.max_documents is None else int((counts > settings.max_documents).sum())
    return {
        "overlaps": num_overlaps,
        "ngrams_searched": len(index.ngrams),
        "ngrams_found": int((counts > 0).sum()),
        "ngrams_ignored": ignored,
        "most_frequent": most_frequent(index, counts),
        "tasks": tally.summary(),
    }
