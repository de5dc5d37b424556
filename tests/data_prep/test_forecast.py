"""`cloze plan` of a preparation: what was measured, scaled."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml

from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import read_manifest, write_manifest
from cluster.artefacts.shard_records import LOG_NAME, summarize_log
from data_prep import plan
from data_prep.plan import forecast
from tests.data_prep.conftest import small_config, write_corpus
from tests.pipeline.command import cloze


@pytest.fixture(scope="module")
def config(configure, finished):
    return configure(finished.out)


def test_the_measured_preparation_itself_takes_what_its_logs_say(config, finished):
    found = forecast(config, finished.out, nodes=1, cpus_per_node=1)
    assert found.source_bytes == found.measured_bytes
    assert not [warning for warning in found.warnings if "of their time" not in warning]
    steps = {step.name: step for step in found.steps}
    assert {"documents", "dedup", "tokenizer", "tokens"} <= steps.keys()
    for name in ("documents", "tokens"):
        log = summarize_log(finished.out / name)
        assert (steps[name].tasks, steps[name].cpu_s) == (log["shards"], pytest.approx(log["seconds"]))
        assert steps[name].seconds >= steps[name].cpu_s - 1e-9
        assert steps[name].task_bytes == log["peak_rss_bytes"]
    kept = sum(path.stat().st_size for path in (finished.out / "tokens").rglob("*") if path.is_file())
    assert steps["tokens"].disk_bytes == kept


def test_work_grows_with_the_sources_and_the_tokenizer_does_not(config, finished):
    once = forecast(config, finished.out, nodes=1, cpus_per_node=1)
    size = 100 * once.source_bytes
    wanted = config.model_copy(update={"shard_bytes": size // 700})
    large = forecast(wanted, finished.out, nodes=1, cpus_per_node=1, source_bytes=size)
    for before, after in zip(once.steps, large.steps, strict=True):
        factor = 1 if before.name == "tokenizer" else 100
        assert after.cpu_s == pytest.approx(before.cpu_s * factor)
        assert after.task_bytes == before.task_bytes
    documents = next(step for step in large.steps if step.name == "documents")
    assert documents.tasks == 701  # 700 and a shorter one
    wide = forecast(wanted, finished.out, nodes=50, cpus_per_node=10, source_bytes=size)
    assert wide.hours < large.hours
    assert wide.node_hours == pytest.approx(50 * wide.hours)
    assert wide.node_memory_bytes <= 10 * max(step.task_bytes for step in wide.steps)


def test_a_measurement_with_other_settings_is_named(config, finished):
    other = config.model_copy(update={"sentences": "none", "sources": config.sources[:1]})
    found = forecast(other, finished.out, nodes=1, cpus_per_node=1, source_bytes=1 << 40)
    assert [warning.partition(":")[0] for warning in found.warnings[:2]] == ["sources", "sentences"]
    assert any("measure a larger sample" in warning for warning in found.warnings)


@pytest.mark.parametrize(("share", "is_busy"), [(0.9, False), (0.1, True)])
def test_a_measurement_on_a_busy_machine_is_named(config, finished, monkeypatch, share, is_busy):
    def worked(place):
        log = summarize_log(place)
        return log and log | {"processor_seconds": share * log["seconds"]}

    monkeypatch.setattr(plan, "summarize_log", worked)
    warnings = forecast(config, finished.out, nodes=1, cpus_per_node=1).warnings
    assert any("worked for 10% of their time" in warning for warning in warnings) == is_busy


def test_without_a_measurement_there_is_no_plan(config, tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        forecast(config, tmp_path, nodes=1, cpus_per_node=1)


def test_command_names_what_is_missing_and_prints_json(finished, corpus, tmp_path):
    path = tmp_path / "data.yaml"
    path.write_text(yaml.safe_dump(small_config(corpus, finished.out).model_dump(mode="json")))
    measured = ["plan", str(path), "--nodes", "8", "--cpus-per-node", "16", "--measured", str(finished.out)]

    for size in ("85 TBB", "1,000GB", "10%", "-5GB", "0", ""):
        with pytest.raises(ConfigError):
            cloze(*measured, "--size", size)
    for wrong, told in (
        (["plan", str(path)], None),
        (["plan", "gpt-tiny", "--measured", str(finished.out)], "--measured"),
        (["plan", "gpt-tiny", "--cpus-per-node", "4"], "--cpus-per-node"),
        ([*measured, "--gpu", "h100", "--mfu", "0.3"], "--mfu"),
    ):
        with pytest.raises(ConfigError, match=told):
            cloze(*wrong)
    found = json.loads(cloze(*measured, "--size", "85TB", "--json"))
    assert found["source_bytes"] == 85 * 10**12
    assert found["node_hours"] == pytest.approx(8 * found["hours"])
    assert "hours of a machine" in cloze(*measured)


def test_sizes_of_sources_that_are_gone_are_not_guessed(finished, tmp_path):
    moved = tmp_path / "out"
    for name in ("documents", "tokens"):
        (moved / name).mkdir(parents=True)
        manifest = read_manifest(finished.out / name)
        gone = tuple(replace(entry, uri=f"{entry.uri}.gone") for entry in manifest.inputs)
        write_manifest(moved / name, manifest.model_copy(update={"inputs": gone}))
        shutil.copy(finished.out / name / LOG_NAME, moved / name)
    with pytest.raises(MissingInputError, match="sources"):
        forecast(small_config(write_corpus(tmp_path / "corpus"), moved), moved, nodes=1, cpus_per_node=1)
