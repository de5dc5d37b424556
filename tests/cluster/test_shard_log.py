"""The log of shard tasks: who made what, how fast, and how long it will take."""

import numpy as np

from cluster.artefacts.shard_log import LOG_NAME, Effort, ShardLog, measure_effort, summarize_log


def test_totals_are_over_all_shards_and_by_worker(tmp_path):
    log = ShardLog(tmp_path, "tokens", [10, 10, 20])
    log.add("a", 10, 2_000_000, 100, Effort("one:1", 2.0, 5))
    log.add("b", 10, 1_000_000, 50, Effort("two:2", 4.0, 9))
    summary = summarize_log(tmp_path)
    assert (summary["shards"], summary["bytes"], summary["mb_per_s"]) == (2, 3_000_000, 0.5)
    assert summary["peak_rss_bytes"] == 9
    assert summary["workers"]["one:1"]["rows_per_s"] == 50
    assert summary["workers"]["two:2"]["mb_per_s"] == 0.25


def test_the_time_left_is_weighed_by_bytes(tmp_path):
    log = ShardLog(tmp_path, "tokens", [10, 30])
    log._started -= 7.0
    log.add("a", 10, 10, 1, Effort("one:1", 7.0, 5))
    assert 20.9 < log.seconds_left < 22
    assert "21 s left" in str(log)
    log.add("b", 30, 30, 1, Effort("one:1", 7.0, 5))
    assert log.seconds_left == 0


def test_half_a_line_of_a_killed_process_is_skipped(tmp_path):
    ShardLog(tmp_path, "tokens", [1]).add("a", 1, 1, 1, Effort("one:1", 1.0, 5))
    with (tmp_path / LOG_NAME).open("ab") as stream:
        stream.write(b'{"stage": "tok')
    assert summarize_log(tmp_path)["shards"] == 1
    assert summarize_log(tmp_path / "absent") == {}


def test_the_peak_of_memory_is_that_of_the_block_alone():
    with measure_effort() as effort:
        np.ones(40_000_000, dtype=np.uint8).sum()
    large = effort()
    with measure_effort() as effort:
        np.ones(100, dtype=np.uint8).sum()
    small = effort()
    assert large.peak_rss_bytes - small.peak_rss_bytes > 30_000_000
    assert large.seconds > 0
