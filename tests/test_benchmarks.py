"""The table of speeds in docs is the published rows, and a run of the benchmarks is compared with them."""

from tests.benchmarks.compare import Comparison, compare
from tests.benchmarks.page import render
from tests.benchmarks.readme import Row, differences, figure, taken_over
from tests.benchmarks.results import Results, key_of, line_of


def results(*outcomes: object) -> Results:
    machine = {"processor": "p", "cores": 2, "memory_gib": 1.0, "system": "s", "python": "3", "load": [0.0]}
    return Results(
        "2024-01-01", machine, {"torch": "1"}, {"noising": 1.0}, [line_of("n", o) for o in outcomes]
    )


def comparison(*rounds: float) -> Comparison:
    return Comparison(
        "reading", "datasets 4.1.0 map", "MB", 2.0, 1.0, sorted(rounds)[len(rounds) // 2], rounds
    )


ROW = Row(
    what="reading", against="`datasets`", key="reading | datasets map", ranges={"q, 4 cores": (2.0, 3.0)}
)


def test_a_comparison_has_the_same_key_with_other_versions_and_remarks():
    one = comparison(2.0)
    other = Comparison("reading (1 MB)", "datasets 5.0.0rc1 map", "MB", 1.0, 1.0, 1.0)
    assert key_of(one) == key_of(other) == ROW.key


def test_rounds_that_meet_the_published_range_are_no_difference():
    assert differences(results(comparison(2.9, 3.4, 5.0)), [ROW]) == []
    (contradicted,) = differences(results(comparison(3.4, 4.0, 5.0)), [ROW])
    assert "the table says 2.0 to 3.0, measured 3.4 to 5.0" in contradicted


def test_the_table_has_the_range_over_all_machines_the_newest_of_each():
    (first,) = taken_over(results(comparison(3.4, 4.0, 9.0)), [ROW])
    (row,) = taken_over(results(comparison(3.4, 4.0, 5.0)), [first])
    assert row.ranges == {"q, 4 cores": (2.0, 3.0), "p, 2 cores": (3.4, 5.0)}
    assert row.figures == "2 / 1 MB/s"
    assert figure(row.low, row.high) == "2.0 to 5.0"
    (contradicted,) = differences(results(comparison(2.1, 2.2, 2.3)), [row])
    assert "the table says 3.4 to 5.0" in contradicted
    assert taken_over(results("a line"), [ROW]) == [ROW]


def test_the_spread_is_of_the_measured_rounds():
    seconds = iter([1.0, 2.0, 1.0, 4.0, 1.0, 3.0])
    found = compare("w", "p", "B", 1.0, lambda: next(seconds), lambda: next(seconds), rounds=3, warm_up=False)
    assert (found.ratio, found.rounds) == (3.0, (2.0, 4.0, 3.0))
    assert "ratio 3.00 (2.00 to 4.00)" in str(found)


def test_the_page_has_ratios_and_differences():
    page = render(results(comparison(3.4, 4.0, 5.0), "resumed in 3 s"), ["the table says another ratio"])
    for text in ("3.4 to 5.0", "resumed in 3 s", "the table says another ratio", "torch 1"):
        assert text in page
