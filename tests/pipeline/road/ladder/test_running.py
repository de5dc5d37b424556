"""Stages run side by side, in order; arms are compared by intervals and verdicts, beside scores without a network."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from cluster.artefacts.errors import CorruptArtefactError, StagesFailedError
from pipeline.config.loading import validate
from pipeline.road.ladder import stages as running
from pipeline.road.ladder.config import Ladder, LadderConfig
from pipeline.road.ladder.page import signed
from pipeline.road.ladder.results import MAJORITY, WORDS, Pair, arm_score, compare, floors_of
from pipeline.road.ladder.stages import Stage, run_stages
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.report.bootstrap import sums_of
from tests.pipeline.tune.written_scores import label_lines

NOTE = """
import sys, time
from pathlib import Path
directory, name, code = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with (directory / "order").open("a") as order: order.write(f"+{name} ")
print("this is the output of", name)
time.sleep(0.2)
with (directory / "order").open("a") as order: order.write(f"-{name} ")
if not code: (directory / f"{name}.done").touch()
sys.exit(code)
"""


def noted(
    ladder: Ladder, name: str, needs: tuple[str, ...] = (), *, alone: bool = False, exit_code: int = 0
) -> Stage:
    """A stage that is finished when its file is there."""
    out = ladder.config.out

    def place() -> Path | None:
        return path if (path := out / f"{name}.done").exists() else None

    command = [sys.executable, "-c", NOTE, str(out), name, str(exit_code)]
    return Stage("data" if alone else "pretrain", name, place, lambda: command, needs)


@pytest.fixture
def ladder(tmp_path: Path) -> Ladder:
    comparison = {"title": "t", "order": "a < b", "tasks": ["x"], "source": "s", "finding": "f"}
    plain = {
        "name": "noted",
        "out": str(tmp_path),
        "runs_dir": str(tmp_path / "runs"),
        "data": ["data.yaml"],
        "tokens": 1,
        "seeds": [1, 2],
        "finetune": "finetune.yaml",
        "arms": {"a": {"pretrain": "a.yaml"}, "b": {"pretrain": "b.yaml"}},
        "comparisons": {"c": comparison},
    }
    return Ladder(validate(LadderConfig, plain, "test"), tmp_path / "ladder.yaml", {}, {})


def seconds_of(ladder: Ladder, stage: Stage) -> None:
    """No stage has recorded its time; that of "unreadable" cannot be read."""
    if stage.name == "unreadable" and stage.place() is not None:
        raise CorruptArtefactError("a checkpoint is missing")


@pytest.fixture
def order_of(ladder: Ladder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run stages, and tell the order in which they began (+) and ended (-)."""

    def ran(*stages: Stage) -> list[str]:
        monkeypatch.setattr(running, "stages_of", lambda _: {stage.name: stage for stage in stages})
        monkeypatch.setattr(running, "seconds_of", seconds_of)
        run_stages(ladder, "cloze ladder ladder.yaml")
        return (ladder.config.out / "order").read_text().split()

    return ran


def most_at_once(order: list[str]) -> int:
    running_now = [sum(1 if each[0] == "+" else -1 for each in order[: n + 1]) for n in range(len(order))]
    return max(running_now)


def test_two_run_at_once_and_none_before_those_that_it_needs(ladder: Ladder, order_of):
    stages = [
        noted(ladder, "data", alone=True),
        noted(ladder, "one", ("data",)),
        noted(ladder, "tuned-one", ("one",)),
        noted(ladder, "two", ("data",)),
        noted(ladder, "three", ("data",)),
        noted(ladder, "more-data", alone=True),
        noted(ladder, "four", ("more-data",)),
    ]
    order = order_of(*stages)
    assert order[:2] == ["+data", "-data"]
    assert most_at_once(order) == 2
    assert order.index("-one") < order.index("+tuned-one")
    assert order[order.index("+more-data") + 1] == "-more-data"
    assert len(order) == 2 * len(stages)


def test_an_estimate_that_cannot_be_made_ends_no_stage(ladder: Ladder, order_of):
    order = order_of(noted(ladder, "unreadable"), noted(ladder, "next", ("unreadable",)))
    assert order == ["+unreadable", "-unreadable", "+next", "-next"]


def test_finished_data_keeps_no_stage_waiting(ladder: Ladder, order_of):
    (ladder.config.out / "data.done").touch()
    data = noted(ladder, "data", alone=True)
    order = order_of(data, *(noted(ladder, name, ("data",)) for name in "abcd"))
    # The second one starts before the first has ended, and the third after one of them.
    assert {*order[:2]} == {"+a", "+b"}
    assert most_at_once(order) == 2


def test_failed_stage_stops_only_those_that_need_it(ladder: Ladder, order_of):
    bad, after_bad = noted(ladder, "bad", exit_code=10), noted(ladder, "after-bad", ("bad",))
    with pytest.raises(StagesFailedError) as caught:
        order_of(bad, after_bad, noted(ladder, "good"))
    assert "exit code 10" in str(caught.value)
    assert "this is the output of bad" in str(caught.value)
    assert "1 of 3" in caught.value.kept
    assert "after-bad" not in (ladder.config.out / "order").read_text()


def test_stage_that_makes_nothing_has_failed(ladder: Ladder, order_of):
    nothing = replace(noted(ladder, "idle"), place=lambda: None)
    with pytest.raises(StagesFailedError, match="idle"):
        order_of(nothing)


NAMES = ("no", "yes")


def arm(name: str, right: list[np.ndarray]):
    """An arm whose seeds are right on these examples."""
    values = {seed: float(one.mean()) for seed, one in enumerate(right, 1)}
    lines = [label_lines([("yes", NAMES[int(each)]) for each in one], NAMES) for one in right]
    sums = [sums_of("accuracy", each, NAMES) for each in lines]
    return arm_score(name, values), [each for each in sums if each is not None]


def pair_of(low: list[np.ndarray], high: list[np.ndarray]) -> Pair:
    (lower, low_sums), (higher, high_sums) = arm("lower", low), arm("higher", high)
    return compare(lower, higher, {"lower": low_sums, "higher": high_sums})


def test_interval_of_a_difference_is_the_normal_one_of_paired_examples():
    draw = np.random.default_rng(0)
    low = [draw.random(2000) < 0.6 for _ in range(3)]
    high = [each | (draw.random(2000) < 0.2) for each in low]
    found = pair_of(low, high)
    differences = np.mean(high, axis=0) - np.mean(low, axis=0)
    error = 1.96 * differences.std(ddof=1) / np.sqrt(len(differences))
    assert found.difference == pytest.approx(differences.mean())
    assert found.low == pytest.approx(differences.mean() - error, abs=5e-4)
    assert found.high == pytest.approx(differences.mean() + error, abs=5e-4)
    assert found.verdict == "same order"
    assert pair_of(high, low).verdict == "opposite"


def test_difference_below_the_spread_of_seeds_decides_nothing():
    ones, most = np.ones(1000, bool), np.arange(1000) < 900
    half = np.arange(1000) < 500
    found = pair_of([half, ones], [most, ones])
    assert found.low > 0
    assert abs(found.difference) < found.spread
    assert found.verdict == "within the spread"
    equal = pair_of([half, half], [half, half])
    assert (equal.difference, equal.low, equal.high, equal.verdict) == (0, 0, 0, "within the spread")


def floors(tmp_path: Path, task: dict, suffix: str, **content: str) -> dict[str, float]:
    """The floors of a task on files with this content."""
    for name, text in content.items():
        (tmp_path / f"{name}.{suffix}").write_text(text)
    files = {"train": str(tmp_path / f"train.{suffix}"), "evaluation": str(tmp_path / f"dev.{suffix}")}
    return floors_of(validate(FinetuneConfig, {"tasks": {"own": task | files}}, "test"), "own")


def test_floors_of_texts_are_those_of_scikit_learn(tmp_path: Path):
    draw = np.random.default_rng(2)
    words = ["good", "bad", "film", "plot", "one", "two"]

    def rows(count: int) -> list[tuple[str, str]]:
        texts = [" ".join(draw.choice(words, size=5)) for _ in range(count)]
        return [(text, "up" if text.count("good") >= text.count("bad") else "down") for text in texts]

    train, evaluation = rows(80), rows(60)
    columns = {"text": "text", "label": "label"}
    content = {
        name: "text,label\n" + "".join(f"{text},{label}\n" for text, label in side)
        for name, side in (("train", train), ("dev", evaluation))
    }
    found = floors(tmp_path, {"kind": "rows_classification", "columns": columns}, "csv", **content)
    texts, labels = zip(*train, strict=True)
    others, right = zip(*evaluation, strict=True)
    peers = {
        MAJORITY: DummyClassifier(),
        WORDS: make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000)),
    }
    for name, peer in peers.items():
        assert found[name] == pytest.approx(float((peer.fit(texts, labels).predict(others) == right).mean()))
    assert found[MAJORITY] < found[WORDS] <= 1


def test_floors_of_tags_are_the_most_frequent_tags_of_words(tmp_path: Path):
    train, dev = "the O\nUN B-org\nsat O\n\nUN B-org\nUN O\n\n", "un B-org\nnew O\n\n"
    found = floors(tmp_path, {"kind": "conll_ner"}, "conll", train=train, dev=dev)
    assert found == {MAJORITY: 0.0, WORDS: 1.0}


def test_difference_that_rounds_to_nothing_has_no_sign():
    assert [signed(share) for share in (-0.0004, 0.0004, -0.0006, 0.0)] == ["0.0", "0.0", "-0.1", "0.0"]
