"""SQuAD 2.0: scores of the official script, the threshold of having no answer, and a whole training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import MismatchError
from models.language_models import MaskedLanguageModel
from pipeline.tune.forms.spans import answer_questions
from pipeline.tune.forms.windows import encode_questions
from pipeline.tune.metrics.squad import (
    UNANSWERABLE_METRICS,
    answer_metrics,
    best_threshold,
    question_scores,
    unanswerable_metrics,
)
from pipeline.tune.run import finetune
from pipeline.tune.tasks.forms import Answer, Question
from pipeline.tune.tasks.question_answering import Squad2Config, read_questions
from pipeline.tune.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune.conftest import MODEL, make_checkpoint
from tests.pipeline.tune.samples import words_of
from tests.pipeline.tune.test_squad import BERT


@pytest.mark.parametrize(
    ("answers", "prediction", "exact", "f1"),
    [
        ([], "", 1, 1),
        ([], "something", 0, 0),
        # An article by itself is empty after normalisation, like no answer.
        ([], "the", 1, 1),
        (["the", "a red dog"], "red dog", 1, 1),
        # The only answer is dropped, so that the question counts as one without an answer.
        (["The"], "", 1, 1),
        (["red dog"], "", 0, 0),
        (["red dog"], "the", 0, 0),
        (["big red dog", "cat"], "red dog", 0, 0.8),
    ],
)
def test_rules_of_the_official_script_by_hand(answers, prediction, exact, f1):
    found = question_scores([answers], [prediction])
    assert [float(side[0]) for side in found] == pytest.approx([exact, f1])


def test_first_version_gives_an_empty_prediction_nothing():
    assert answer_metrics([["the"]], [""]) == {"exact_match": 1, "f1": 0}


def test_threshold_by_hand():
    # Two questions without an answer are right from the start. The first answer adds a point, the second loses one,
    # the third adds half of one: 3 points of 4 is best.
    scores, has_answer = np.array([1.0, 0.0, 0.5, 0.0]), np.array([True, False, True, False])
    is_empty, no_answer = np.array([False] * 4), np.array([0.1, 0.2, 0.3, 0.9])
    assert best_threshold(scores, has_answer, is_empty, no_answer) == (0.75, 0.1)
    assert best_threshold(np.zeros(4), has_answer, is_empty, no_answer) == (0.5, 0.0)
    assert best_threshold(scores, has_answer, is_empty, 1 - no_answer) == (0.5, 0.0)


def step_by_step(scores: Mapping[str, float], answers: Mapping[str, list], texts: Mapping, chances: Mapping):
    """The script's search for a threshold, question by question."""
    reached = best = sum(not found for found in answers.values())
    threshold = 0.0
    for name in sorted(chances, key=lambda name: chances[name]):
        reached += scores[name] if answers[name] else (-1 if texts[name] else 0)
        if reached > best:
            best, threshold = reached, chances[name]
    return best / len(scores), threshold


CASES = st.lists(
    st.tuples(
        st.sampled_from([[], ["a"], ["red dog"], ["big red dog", "cat"], ["dog"]]),
        st.sampled_from(["", "the", "dog", "red dog", "big cat"]),
        st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(CASES)
def test_best_scores_are_those_of_the_step_by_step_search(cases):
    answers, predictions, chances = (list(side) for side in zip(*cases, strict=True))
    exact, f1 = question_scores(answers, predictions)
    found = unanswerable_metrics(answers, predictions, np.array(chances))
    assert set(found) == set(UNANSWERABLE_METRICS)
    names = [str(number) for number in range(len(cases))]
    by_name = (dict(zip(names, side, strict=True)) for side in (answers, predictions, chances))
    known = tuple(by_name)
    for name, scores in (("exact", exact.tolist()), ("f1", f1.tolist())):
        expected = step_by_step(dict(zip(names, scores, strict=True)), *known)
        assert (found[f"best_{name}"], found[f"best_{name}_thresh"]) == expected
    assert found["f1"] == sum(f1.tolist()) / len(cases)


def test_no_answer_is_predicted_where_the_first_token_scores_higher(tokenizer_path):
    tokenizer = TextTokenizer(tokenizer_path)
    questions = [
        Question("q1", "was film", "the film was good", (Answer("good", 13),)),
        Question("q2", "was film", "the film was bad and the plot was good", ()),
    ]
    windows = encode_questions(
        tokenizer,
        sequence_format(MODEL, tokenizer),
        questions,
        max_length=11,
        max_query_length=1,
        doc_stride=3,
    )
    assert windows.question.tolist() == [0, 1, 1]
    assert windows.answer[1:].tolist() == [[0, 0], [0, 0]]
    missing = [0.0, 0.0, -np.inf]
    outputs = np.array(
        [
            [[7.0, 7.0, 3.0], missing, [0.0, 0.0, 1.0]],
            [[4.0, 4.0, 2.0], [4.0, 5.0, 1.5], [0.0, 0.0, 9.0]],
            [[4.0, 4.0, 0.0], missing, [0.0, 0.0, 2.5]],
        ]
    )
    config = Squad2Config(train=Path(), evaluation=Path(), max_no_answer=0.5)
    found = answer_questions(config, questions, windows, outputs)
    # Of several windows, the one that is least certain of no answer counts: 2.5 against 2.
    assert found.predictions == ["good", ""]
    assert found.no_answer == pytest.approx([1 / (1 + np.exp(2)), 1 / (1 + np.exp(-0.5))])
    assert [each.text for each in found.n_best[1]] == ["", "the", "the film"][:1] + [
        each.text for each in found.n_best[1][1:]
    ]
    assert [each.score for each in found.n_best[1]] == [2.5, 2.0, 1.5, 0.0][: len(found.n_best[1])]
    best = Squad2Config(train=Path(), evaluation=Path())
    assert answer_questions(best, questions, windows, outputs).predictions == ["good", ""]
    never = Squad2Config(train=Path(), evaluation=Path(), max_no_answer=1.0)
    assert "" not in answer_questions(never, questions, windows, outputs).predictions


def squad2_file(path: Path, *questions: tuple[str, str, str | None]) -> Path:
    """Passages with a question each, whose answer is in the passage, or None."""
    paragraphs = []
    for number, (context, asked, answer) in enumerate(questions):
        answers = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
        entry = {"id": f"q{number}", "question": asked, "answers": answers, "is_impossible": answer is None}
        paragraphs.append({"context": context, "qas": [entry | {"plausible_answers": []}]})
    data = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


QUESTIONS = (
    ("The red dog ran over a hill.", "Who ran?", "The red dog"),
    ("All of the grass near that river was green.", "What was green?", "grass"),
    ("One cat saw a tree.", "Who sang?", None),
    ("Under the old bridge lay a tall ladder.", "What was tall?", "ladder"),
    ("Snow fell for three days on every roof.", "Where was the sea?", None),
    ("Her brother sold both horses.", "When did it end?", None),
)


def test_missing_answers_are_learnt_and_written_as_the_script_reads_them(tmp_path, make_config, recorder):
    path = squad2_file(tmp_path / "squad2.json", *QUESTIONS)
    tokenizer = words_of(path.read_text(encoding="utf-8"), tmp_path / "words.json")
    checkpoint = make_checkpoint(tmp_path / "bert", tokenizer, network=MaskedLanguageModel(BERT))
    config = make_config(
        tasks={"squad2": {"kind": "squad2", "train": path, "evaluation": path, "doc_stride": 32}},
        training={"epochs": 80, "batch_size": 6, "lr": 3e-3, "max_length": 96, "scored": "last_epoch"},
        seeds=[1],
    )
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.main_metric == "f1"
    assert score.metrics["f1"] == score.metrics["best_f1"] == 1
    assert score.metrics["no_answer_exact"] == score.metrics["has_answer_f1"] == 1
    directory = scores_directory(config, checkpoint)
    answers = orjson.loads((directory / "answers-squad2-pretrained-1.json").read_bytes())
    chances = orjson.loads((directory / "na_prob-squad2-pretrained-1.json").read_bytes())
    assert answers["q2"] == answers["q4"] == answers["q5"] == ""
    assert answers["q0"] == "The red dog"
    right = {question.id: question.right for question in read_questions(path, answerable=False)}
    again = unanswerable_metrics(
        list(right.values()), [answers[name] for name in right], np.array([chances[name] for name in right])
    )
    assert again == score.metrics
    lines = (directory / "predictions-squad2-pretrained-1.jsonl").read_bytes().splitlines()
    n_best = orjson.loads(lines[2])["n_best"]
    assert sum(found["probability"] for found in n_best) == pytest.approx(1)
    assert "" in [found["text"] for found in n_best]


def test_decoder_is_refused_because_its_first_token_has_read_nothing(tmp_path, make_config, checkpoint):
    decoder = dataclasses.replace(checkpoint, model=dataclasses.replace(MODEL, network="decoder"))
    config = make_config(tasks={"squad2": {"kind": "squad2", "train": "a.json", "evaluation": "b.json"}})
    with pytest.raises(
        MismatchError, match=r"needs an encoder .* or an encoder-decoder .*, but the network is a dec"
    ):
        finetune(config, decoder)


@pytest.mark.corpora
def test_real_file_has_as_many_questions_without_an_answer_as_published_for_its_half(corpora):
    questions = read_questions(corpora / "squad/dev-v2.0.cs224n-half.json", answerable=False)
    assert len(questions) == 6078
    none = [""] * len(questions)
    right = [question.right for question in questions]
    found = unanswerable_metrics(right, none, np.zeros(len(questions)))
    share = sum(not texts for texts in right) / len(questions)
    assert found["exact_match"] == found["f1"] == found["best_f1"] == share
    assert found["no_answer_f1"] == 1
    first = unanswerable_metrics(right, [(*texts, "")[0] for texts in right], np.zeros(len(questions)))
    assert first["f1"] == 1
