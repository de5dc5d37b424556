"""Parts of a save that are hard to see from its result."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.artefacts.errors import ReferenceNotFoundError
from pipeline.checkpoints.checkpoint import MODEL_FILE, step_of
from pipeline.checkpoints.rank_save import PARTS_DIRECTORY, assemble
from pipeline.checkpoints.references import resolve_model
from pipeline.checkpoints.store import CheckpointStore


def test_a_share_that_cannot_be_opened_leaves_none_of_the_others_open(tmp_path: Path):
    staging = CheckpointStore(tmp_path).staging(10, "key")
    with staging.create(f"{PARTS_DIRECTORY}/{MODEL_FILE}.00001"):
        pass
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError) as caught:
        assemble(SimpleNamespace(staging=staging, weights={MODEL_FILE: []}, shapes={}), MODEL_FILE, 3)  # type: ignore[arg-type]
    assert caught.value.filename.endswith(".00002")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_name_that_is_no_checkpoints_is_a_users_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match="such as step-00000100"):
        step_of(tmp_path)
    with pytest.raises(ReferenceNotFoundError, match="is no checkpoint"):
        resolve_model("s3://bucket/run/last", tmp_path)
