"""Trains a run on ranks of which only the first may read its settings and left-out data."""

import os
import runpy

from pipeline.run.directory import RunDirectory


def refuse(*_: object) -> None:
    raise AssertionError("a rank other than 0 reads for itself")


if os.environ["RANK"] != "0":
    RunDirectory.config = refuse  # type: ignore[method-assign, assignment]
    RunDirectory.skipped = property(refuse)  # type: ignore[assignment]
runpy.run_module("pipeline.pretrain", run_name="__main__")
