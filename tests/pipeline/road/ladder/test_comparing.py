"""Differences between arms, their intervals and verdicts; scores without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from pipeline.config.loading import validate
from pipeline.road.ladder.page import signed
from pipeline.road.ladder.results import MAJORITY, WORDS, Pair, arm_score, compare, floors_of
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.report.bootstrap import sums_of
from tests.pipeline.tune.written_scores import label_lines

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
