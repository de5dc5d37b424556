"""The log of shard tasks: who made what, how fast, and how long it will take."""

import mmap
import time

from cluster.artefacts.shard_records import (
    LOG_NAME,
    Effort,
    ShardLog,
    measure_effort,
    read_progress,
    summarize_log,
)


def test_totals_are_over_all_shards_and_by_worker(tmp_path):
    log = ShardLog(tmp_path, "tokens", [10, 10, 20])
    log.add("a", 10, 2_000_000, 100, Effort("one:1", 2.0, 5, 2.0))
    log.add("b", 10, 1_000_000, 50, Effort("two:2", 4.0, 9, 4.0))
    summary = summarize_log(tmp_path)
    assert (summary["shards"], summary["bytes"], summary["mb_per_s"]) == (2, 3_000_000, 0.5)
    assert summary["peak_rss_bytes"] == 9
    assert summary["workers"]["one:1"]["rows_per_s"] == 50
    assert summary["workers"]["two:2"]["mb_per_s"] == 0.25


def test_the_time_left_is_weighed_by_bytes(tmp_path, monkeypatch):
    clock = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    log = ShardLog(tmp_path, "tokens", [10, 30])
    clock += 7.0
    log.add("a", 10, 10, 1, Effort("one:1", 7.0, 5, 7.0))
    assert log.seconds_left == 21
    assert "21 s left" in str(log)
    log.add("b", 30, 30, 1, Effort("one:1", 7.0, 5, 7.0))
    assert log.seconds_left == 0


def test_half_a_line_of_a_killed_process_is_skipped(tmp_path):
    ShardLog(tmp_path, "tokens", [1]).add("a", 1, 1, 1, Effort("one:1", 1.0, 5, 1.0))
    with (tmp_path / LOG_NAME).open("ab") as stream:
        stream.write(b'{"file": "b"}\n3\n{"file": "c", "worker": "w", "bytes": "many"}\n{"stage": "tok')
    assert summarize_log(tmp_path)["shards"] == 1
    assert summarize_log(tmp_path / "absent") == {}


def test_the_peak_of_memory_is_that_of_the_block_alone():
    with measure_effort() as effort, mmap.mmap(-1, 160_000_000) as memory:  # which no allocator keeps
        for _ in range(160):
            memory.write(bytes(1_000_000))
    large = effort()
    with measure_effort() as effort:
        bytes(100)
    small = effort()
    assert large.peak_rss_bytes - small.peak_rss_bytes > 80_000_000
    assert large.seconds > 0
    assert large.processor_seconds > 0


def test_progress_is_of_the_last_start_and_counts_what_was_made_before(tmp_path):
    log = ShardLog(tmp_path, "documents", [10, 10], done=3, rejects=1)
    begun = read_progress(tmp_path)
    assert begun is not None
    assert (begun.stage, begun.done, begun.total, begun.rejects) == ("documents", 3, 5, 1)
    assert (begun.bytes_per_s, begun.seconds_left) == (0.0, None)
    log.add("a", 10, 2_000, 7, Effort("one:1", 2.0, 5, 2.0), rejects=2)
    first = read_progress(tmp_path)
    assert first is not None
    assert (first.done, first.rows, first.text_bytes, first.rejects) == (4, 7, 2_000, 3)
    assert first.started_s <= first.last_s
    ShardLog(tmp_path, "documents", [10], done=4, rejects=3)
    again = read_progress(tmp_path)
    assert again is not None
    assert (again.done, again.total, again.rows, again.rejects) == (4, 5, 0, 3)
