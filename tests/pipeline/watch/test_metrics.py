"""Prometheus reads the metrics, and its alerts and the dashboard ask for nothing that is not exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.shard_records import ShardLog
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.state import Heartbeat
from pipeline.watch.prometheus import STATES, TEMPLATES, ClozeCollector, exposition, serve, write_files
from pipeline.watch.run_status import RunsReader
from tests.pipeline.command import cloze
from tests.pipeline.watch.conftest import HOST, contents

MONITORING = Path(__file__).parents[3] / "cluster" / "templates" / "monitoring"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")
METRIC = re.compile(r"\bcloze_[a-z0-9_]+")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"|\{\{ ?\$labels\.(\w+)|\{\{(\w+)\}\}")
OF_PROMETHEUS = {"job", "instance"}


def collector(run: RunDirectory) -> ClozeCollector:
    return ClozeCollector(RunsReader([run.path.parent], days=7, most=50))


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by the name of the metric and its labels' values in the order of their names; each must be there once."""
    found = [
        ((sample.name, *sample.labels.values()), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def test_metrics_are_the_figures_of_the_run_in_base_units(run: RunDirectory):
    before = contents(run.path)
    with closing(Heartbeat(run, 0, 900.0)) as heartbeat:
        heartbeat.beat(7, "forward")
        found = samples(exposition(collector(run)))
    wanted = {
        ("cloze_run_tokens_total", "watched"): 7 * 16 * 32,
        ("cloze_run_loss", "watched"): 2.0,
        ("cloze_run_data_wait_ratio", "watched"): 0.25,
        ("cloze_run_restarts_total", "watched"): 1,
        ("cloze_run_events_total", "workers-lost", "watched"): 1,
        ("cloze_run_events_total", "spike", "watched"): 0,
        **{("cloze_run_state", "watched", state): int(state == "running") for state in STATES},
        ("cloze_node_disk_available_bytes", HOST, "watched"): 2e9,
        ("cloze_gpu_utilization_ratio", "1", HOST, "watched"): 0.9,
    }
    assert {name: found[name] for name in wanted} == wanted
    after = contents(run.path)
    assert {path: after[path] for path in before} == before


def test_server_answers_prometheus_on_loopback_and_reads_anew_each_time(run: RunDirectory):
    with serve(collector(run), "127.0.0.1", 0) as (url, _):
        for spikes in (0, 1):
            with urllib.request.urlopen(url) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                found = samples(answer.read().decode())
            assert found["cloze_run_events_total", "spike", "watched"] == spikes
            run.record_event(Event.SPIKE, step=5)
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(ConfigError, match="listen"), serve(collector(run), "127.0.0.1", port):
            pass


def test_alerts_and_dashboard_ask_for_exported_metrics_and_labels(run: RunDirectory, tmp_path: Path):
    (tmp_path / "data" / "tiny" / "tokens").mkdir(parents=True)
    ShardLog(tmp_path / "data" / "tiny" / "tokens", "tokens", [1])
    cluster: Any = SimpleNamespace(jobs=lambda: {("pretrain", "RUNNING"): 1})
    whole = ClozeCollector(RunsReader([run.path.parent], days=7, most=50), [tmp_path / "data"], cluster)
    names, labels = set(), set()
    for family in whole.collect():
        names.add(family.name + ("_total" if isinstance(family, CounterMetricFamily) else ""))
        labels |= {label for sample in family.samples for label in sample.labels}
    # A label of one of its own names would be renamed by Prometheus.
    assert not labels & OF_PROMETHEUS
    labels |= OF_PROMETHEUS
    asked = [text for rule in rules() for text in (rule["expr"], *rule["annotations"].values())]
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            asked += [target["expr"], target.get("legendFormat", "")]
    for text in asked:
        assert set(METRIC.findall(text)) <= names, text
        assert {found for groups in LABEL.findall(text) for found in groups if found} <= labels, text
    events = re.findall(r'event=~?"([\w|-]+)"', " ".join(asked))
    assert {event for found in events for event in found.split("|")} <= set(Event)
    assert set(re.findall(r'state="(\w+)"', " ".join(asked))) <= set(STATES)
    assert {rule["labels"]["severity"] for rule in rules()} == {"info", "warning", "critical"}


def test_files_are_written_with_the_address_of_the_runbooks(tmp_path: Path):
    place = tmp_path / "new" / "place"
    write_files(place, "https://example.org/pages/")
    assert "runbook_url: https://example.org/pages/loss-spike.md\n" in (place / "alerts.yaml").read_text()
    assert {path.name for path in place.iterdir()} == set(TEMPLATES)
    with pytest.raises(ConfigError):
        write_files(tmp_path / "other", 'x"\n  evil: 1')
    assert not (tmp_path / "other").exists()


def promtool(*arguments: str, given: str = "") -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_cluster_that_does_not_answer_is_a_metric_and_what_is_not_there_is_none(
    run: RunDirectory, tmp_path: Path
):
    address = ("--address", "http://127.0.0.1:1")
    found = samples(cloze("metrics", "--once", "--runs-dir", run.path.parent, *address))
    assert found["cloze_cluster_up",] == 0
    assert found["cloze_run_step", "watched"] == 7
    nothing = samples(cloze("metrics", "--once", "--runs-dir", tmp_path / "none"))
    assert nothing == {("cloze_runs_left_out",): 0}


@needs_promtool
def test_prometheus_takes_configuration_rules_and_metrics_and_alerts_fire_when_they_should(
    run: RunDirectory, tmp_path: Path
):
    write_files(tmp_path, "runbooks")
    promtool("check", "config", str(tmp_path / "prometheus.yaml"))
    promtool("check", "metrics", given=exposition(collector(run)))
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    promtool("test", "rules", str(tmp_path / "alerts_test.yaml"))
