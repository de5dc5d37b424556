"""A run of the benchmarks is compared with the published rows of docs/speeds.md, and taken over by them."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.harness import compare, line_of
from tests.benchmarks.published import Row, differences, figure, take_over


def measured(what: str, peer: str, *ratios: float) -> dict[str, Any]:
    """What `results.json` has of a comparison in which our way takes a second, on a machine called p."""
    theirs = iter(ratios)
    found = compare(what, peer, "MB", 2.0, lambda: 1.0, lambda: next(theirs), len(ratios), warm_up=False)
    return {"machine": {"processor": "p", "cores": 2}, "lines": [line_of("n", "text"), line_of("n", found)]}


def test_a_run_contradicts_rows_whose_range_it_does_not_meet_until_it_is_taken_over():
    ranges = {"q, 4 cores": (2.0, 3.0)}
    row = Row(what="reading", against="datasets", key="reading | datasets map", ranges=ranges)
    # Remarks and versions are no part of the key.
    assert differences(measured("reading (1 MB)", "datasets 5.0.0rc1 map", 5.0, 2.5, 4.0), [row]) == []
    higher = measured("reading", "datasets 4.1.0 map", 5.0, 3.4, 4.0)
    (contradicted,) = differences(higher, [row])
    assert "2.0 to 3.0, measured 3.4 to 5.0" in contradicted
    take_over(higher, [row])
    assert differences(higher, [row]) == []
    assert row.ranges == {"q, 4 cores": (2.0, 3.0), "p, 2 cores": (3.4, 5.0)}
    assert (figure(*row.range), row.figures) == ("2.0 to 5.0", "2 / 0.5 MB/s")
    assert len(differences(measured("reading", "datasets map", 2.5), [row])) == 1, "on p it was 3.4 to 5.0"
