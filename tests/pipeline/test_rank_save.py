"""Parts of a save that are hard to see from its result."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.artefacts.errors import ReferenceNotFoundError, StorageError
from pipeline.checkpoint.checkpoint import MODEL_FILE, step_of
from pipeline.checkpoint.rank_save import PARTS_DIRECTORY, RankSave, assemble, files_of_all
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import CheckpointStore


def test_a_share_that_cannot_be_opened_leaves_none_of_the_others_open(tmp_path: Path):
    staging = CheckpointStore(tmp_path).staging(10, "key")
    with staging.create(f"{PARTS_DIRECTORY}/{MODEL_FILE}.00001"):
        pass
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError) as caught:
        assemble(SimpleNamespace(staging=staging, weights={MODEL_FILE: []}, shapes={}), MODEL_FILE, 3)  # type: ignore[arg-type]
    assert caught.value.filename.endswith(".00002")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_cause_counts_of_a_rank_that_fails_while_its_marker_is_looked_for(tmp_path: Path):
    save = RankSave(SimpleNamespace(step=1), SimpleNamespace(poll_s=0.0), 0.0)  # type: ignore[arg-type]

    def marks():
        if save.settled.is_set():
            return {"rank-00001.failed": b'["the disk is full", "make room"]'}
        save.any_failed = True
        save.settled.set()
        return {}

    save.staging.marks = marks  # type: ignore[misc]
    with pytest.raises(StorageError) as caught:
        files_of_all(save, 2, "runs/one")
    assert caught.value.problem == "the disk is full"


def test_a_name_that_is_no_checkpoints_is_a_users_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match="such as step-00000100"):
        step_of(tmp_path)
    with pytest.raises(ReferenceNotFoundError, match="is no checkpoint"):
        resolve_model("s3://bucket/run/last", tmp_path)
