"""Which run a configuration goes on with."""

from __future__ import annotations

from pathlib import Path

from pipeline.pretrain.launch import find_same_run
from tests.conftest import write_store
from tests.pipeline.ranks import make_run


def test_same_run_has_the_same_name_settings_and_data_and_any_machines(tmp_path: Path):
    store = write_store(tmp_path / "tokens")
    run = make_run(tmp_path, store, "tiny-1")
    config = run.config()
    assert find_same_run(config) == run
    machines = {"checkpoint": config.checkpoint.model_copy(update={"every_steps": 3})}
    assert find_same_run(config.model_copy(update=machines)) == run
    for changed in ({"name": "another"}, {"seed": 7}, {"steps": (config.steps or 0) + 1}):
        assert find_same_run(config.model_copy(update=changed)) is None
