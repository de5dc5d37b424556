"""The table of speeds in docs is the published rows, and a run of the benchmarks is compared with them."""

from typing import Any

from tests.benchmarks.harness import Comparison, compare, line_of
from tests.benchmarks.published import PAGE, Row, differences, figure, published, table, take_over


def results(*outcomes: object) -> dict[str, Any]:
    return {"machine": {"processor": "p", "cores": 2}, "lines": [line_of("n", each) for each in outcomes]}


def comparison(*rounds: float) -> Comparison:
    return Comparison("reading", "datasets 4.1.0 map", "MB", 2.0, 1.0, rounds)


def row() -> Row:
    ranges = {"q, 4 cores": (2.0, 3.0)}
    return Row(what="reading", against="`datasets`", key="reading | datasets map", ranges=ranges)


def test_the_page_has_the_table_of_the_published_rows():
    assert table(published()) in PAGE.read_text()


def test_a_comparison_has_the_same_key_with_other_versions_and_remarks():
    other = Comparison("reading (1 MB)", "datasets 5.0.0rc1 map", "MB", 1.0, 1.0, (1.0,))
    assert comparison(2.0).key == other.key == row().key


def test_rounds_that_meet_the_published_range_are_no_difference():
    assert differences(results(comparison(2.9, 3.4, 5.0)), [row()]) == []
    (contradicted,) = differences(results(comparison(3.4, 4.0, 5.0)), [row()])
    assert "the table says 2.0 to 3.0, measured 3.4 to 5.0" in contradicted


def test_the_table_has_the_range_over_all_machines_the_newest_of_each():
    rows = [row()]
    for highest in (9.0, 5.0):
        take_over(results(comparison(3.4, 4.0, highest), "a line"), rows)
    assert rows[0].ranges == {"q, 4 cores": (2.0, 3.0), "p, 2 cores": (3.4, 5.0)}
    assert rows[0].figures == "2 / 1 MB/s"
    assert figure(*rows[0].range) == "2.0 to 5.0"
    (contradicted,) = differences(results(comparison(2.1, 2.2, 2.3)), rows)
    assert "the table says 3.4 to 5.0" in contradicted


def test_the_spread_is_of_the_measured_rounds():
    seconds = iter([1.0, 2.0, 1.0, 4.0, 1.0, 3.0])
    found = compare("w", "p", "B", 1.0, lambda: next(seconds), lambda: next(seconds), rounds=3, warm_up=False)
    assert (found.ratio, found.rounds) == (3.0, (2.0, 4.0, 3.0))
    assert "ratio 3.00 (2.00 to 4.00)" in str(found)
