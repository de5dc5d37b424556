"""The figures that operators watch are read from the files of runs and data jobs, and no file is changed by it;
alerts and the dashboard ask Prometheus for nothing that is not exported."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.owner import exclusive, is_in_use
from cluster.artefacts.shard_records import ShardLog, report_status
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind
from pipeline.run.log.log import RunLog
from pipeline.run.state import Heartbeat
from pipeline.watch import run_status
from pipeline.watch.overview import read_data
from pipeline.watch.prometheus import STATES, TEMPLATES, ClozeCollector, exposition, serve, write_files
from pipeline.watch.run_status import LogEnd, RunsReader, read_status
from tests.pipeline.command import cloze
from tests.pipeline.watch.conftest import HOST, contents, start

CLOZE = Path(sys.executable).with_name("cloze")

EFFORT = {"worker": "one:1", "seconds": 1.0, "peak_rss_bytes": 5, "processor_seconds": 1.0}


def test_damaged_runs_are_told_and_hide_no_other(run: RunDirectory):
    for name, file, data in (
        ("torn-info", "run.json", b"{"),
        ("edited", "config.yaml", b"name: x\n# xxh3_128 of the lines above: 0\n"),
        ("no-config", "config.yaml", None),
        ("odd-event", "events.jsonl", b'{"event":"started"}\n{"event":7}\n[1]\nnonsense'),
        ("zeros", "log.jsonl", b"\0" * 5000),
        ("odd-log", "log.jsonl", b'{"kind":"train","step":3,"time_ms":"x","data":{"loss":"?","ok":true}}\n'),
    ):
        path = run.path.parent / name / file
        shutil.copytree(run.path, path.parent)
        path.unlink()
        if data is not None:
            path.write_bytes(data)
    found = {status.name: status for status in RunsReader([run.path.parent], days=7, most=50).read()[0]}
    assert (len(found), found.pop("watched").step, found.pop("zeros").step) == (7, 7, 0)
    assert all(status.state == "unreadable" and status.detail for status in found.values())
    assert {name: status.step for name, status in found.items() if name != "odd-log"} == dict.fromkeys(
        ("torn-info", "edited", "no-config", "odd-event"), 7
    )


def test_of_two_runs_of_a_name_the_newer_is_shown_and_old_ones_are_left_out(
    run: RunDirectory, tmp_path: Path
):
    for name in (run.path.name, "other"):
        copy = shutil.copytree(run.path, tmp_path / "backup" / name)
        for path in copy.iterdir():
            os.utime(path, (0, time.time() - 3 * 86400))
    directories = [run.path.parent, tmp_path / "backup"]
    shown = [status.place for status in RunsReader(directories, days=7, most=50).read()[0]]
    assert shown == [str(run.path), str(tmp_path / "backup" / "other")]
    assert RunsReader(directories, days=1, most=50).read()[1] == 2
    assert [status.name for status in RunsReader(directories, days=7, most=1).read()[0]] == ["watched"]


def test_stages_of_a_preparation_tell_what_is_done_and_whether_they_are_worked_on(tmp_path: Path):
    out = tmp_path / "corpus"
    staging, work = out / ".tokens.0123456789ab.partial", out / "work" / "hashes"
    for directory in (staging, work):
        directory.mkdir(parents=True)
    ShardLog(work, "hashes", [1]).add("a", 1, 10, 1, EFFORT)
    log = ShardLog(staging, "tokens", [10, 10], done=2)
    log.add("c", 10, 4_000_000, 9, EFFORT, rejects=3)
    report_status(staging / ".d.0.tmp", "merging 7 of 9")
    with exclusive(out, "a preparation"):
        hashes, tokens = read_data([tmp_path])
    assert (tokens.job, tokens.artefact, tokens.is_running) == ("corpus", "tokens", True)
    assert not tokens.is_committed
    assert (tokens.progress.done, tokens.progress.total, tokens.progress.rejects) == (3, 4, 3)
    assert tokens.status == "merging 7 of 9"
    assert (hashes.artefact, hashes.is_running, hashes.is_committed) == ("work/hashes", False, True)
    (hashes, tokens) = read_data([out])
    assert (tokens.job, tokens.is_running) == ("corpus", False)


def test_top_prints_runs_machines_and_data_jobs_and_changes_no_file(run: RunDirectory, tmp_path: Path):
    staging = tmp_path / "corpus" / ".tokens.0123456789ab.partial"
    staging.mkdir(parents=True)
    ShardLog(staging, "tokens", [10, 10]).add("c", 10, 4_000_000, 9, EFFORT)
    arguments = ("top", "--runs-dir", run.path.parent, "--data-dir", tmp_path)
    with closing(Heartbeat(run, 0, 900.0)) as heartbeat:
        heartbeat.beat(7, "forward")
        before = contents(tmp_path)
        printed, told = cloze(*arguments, "--once"), json.loads(cloze(*arguments, "--json"))
        assert contents(tmp_path) == before
    shown = ("watched", "running", "7/12", "5,000", "25%", "1/2", "waits for the same command", HOST, "90%")
    assert [text for text in shown if text not in printed] == []
    (row,) = told["runs"]
    assert (row["name"], row["restarts"], row["tokens"]) == ("watched", 1, 3584)
    assert told["data"][0]["progress"]["done"] == 1


def test_top_redraws_a_terminal_until_ctrl_c(run: RunDirectory):
    leader, follower = pty.openpty()
    command = [str(CLOZE), "top", "--interval", "0.2", "--runs-dir", str(run.path.parent)]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while seen.count(b"watched") < 3:
        seen += os.read(leader, 65536)
    process.send_signal(signal.SIGINT)
    # A terminal whose program has ended refuses to be read.
    with suppress(OSError):
        while data := os.read(leader, 65536):
            seen += data
    os.close(leader)
    assert process.wait() == 130
    assert b"Traceback" not in seen


def test_status_has_the_newest_figures_counts_what_happened_and_follows_the_run(run: RunDirectory):
    with closing(Heartbeat(run, 0, 900.0)) as heartbeat:
        heartbeat.beat(7, "forward")
        status = read_status(run)
        assert status.state == "running"
        assert status.heartbeat_s == pytest.approx(run.heartbeat(0).stat().st_mtime, rel=0, abs=1e-3)
    assert (status.step, status.num_steps, status.tokens) == (7, 12, 7 * 16 * 32)
    assert (status.metrics["loss"], status.held_out["loss"], status.checkpoint_step) == (2.0, 5.5, 4)
    assert (status.restarts, status.events[Event.WORKERS_LOST]) == (1, 1)
    assert status.nodes[HOST]["cpu_utilization_percentage"] == 50.0
    assert status.memory_bytes == 1e9
    assert 0 < (status.checkpoint_s or 0) <= (status.logged_s or 0)
    run.record_event(Event.FAILED, error="NonFiniteError", message="losses are NaN")
    assert (read_status(run).state, read_status(run).detail) == ("failed", "NonFiniteError: losses are NaN")
    start(run, 4)
    log = RunLog(run, since=4)
    log.write(LogKind.STEP, 8, {"loss": float("nan"), "tokens_per_s": 1.0})
    log.close()
    status = read_status(run)
    assert status.state != "failed"
    assert (status.step, status.restarts) == (8, 2)
    assert status.metrics["loss"] != status.metrics["loss"]


def test_torn_lines_wait_for_their_end_and_a_replaced_log_is_read_anew(run: RunDirectory):
    log = LogEnd(run)
    assert log.newest()[LogKind.STEP]["step"] == 7
    with run.log.open("ab") as stream:
        stream.write(b'{"kind":"train","step":8,"time_ms":1,"data":{}}\n{"kind":"held_out","st')
    for each in (log, LogEnd(run)):
        assert [each.newest()[kind]["step"] for kind in (LogKind.STEP, LogKind.HELD_OUT)] == [8, 4]
    with run.log.open("ab") as stream:
        stream.write(b'ep":8,"time_ms":1,"data":{}}\n')
    assert log.newest()[LogKind.HELD_OUT]["step"] == 8
    run.log.write_bytes(b'{"kind":"train","step":1,"time_ms":1,"data":{}}\n')
    assert {kind: entry["step"] for kind, entry in log.newest().items()} == {"train": 1}


def test_checkpoint_of_a_running_run_stays_known_however_much_is_logged_after_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    # The alert about old checkpoints asks for the time of the newest.
    monkeypatch.setattr(run_status, "SEARCHED_BYTES", 2000)
    reader = RunsReader([run.path.parent], days=7, most=50)
    with closing(Heartbeat(run, 0, 900.0)) as heartbeat:
        heartbeat.beat(7, "forward")
        for step in range(8, 60):
            with closing(RunLog(run)) as log:
                log.write(LogKind.STEP, step, {"loss": 1.0})
            ((status,), _) = reader.read()
            assert (status.state, status.step, status.checkpoint_step) == ("running", step, 4)


def test_looking_at_a_lock_keeps_no_process_from_taking_it(tmp_path: Path):
    look = (
        "import sys; from pathlib import Path; from cluster.artefacts.owner import is_in_use\n"
        "print('looking', flush=True)\n"
        "while True: is_in_use(Path(sys.argv[1]))"
    )
    with exclusive(tmp_path, "the first"):
        assert is_in_use(tmp_path)
    watcher = subprocess.Popen([sys.executable, "-c", look, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        for _ in range(200):
            with exclusive(tmp_path, "the next"):
                pass
    finally:
        watcher.kill()
        watcher.wait()


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
