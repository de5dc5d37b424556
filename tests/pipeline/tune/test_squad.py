"""SQuAD 1.1: the metrics, the way from characters to tokens and back, sliding windows, and a whole training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import MismatchError
from models.classifiers import best_spans, span_loss
from models.config import ElmoConfig, TransformerConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.tune.forms.windows import (
    answer_tokens,
    encode_questions,
    own_tokens,
    text_of,
    window_spans,
)
from pipeline.tune.metrics.squad import answer_metrics
from pipeline.tune.run import finetune
from pipeline.tune.tasks.forms import Answer, Question
from pipeline.tune.tasks.question_answering import read_questions
from pipeline.tune.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune.conftest import MODEL, make_checkpoint
from tests.pipeline.tune.samples import byte_level, squad_sample, wordpiece, words_of

BERT = TransformerConfig(
    vocab_size=1500,
    num_layers=2,
    hidden_size=64,
    num_heads=2,
    intermediate_size=128,
    max_positions=160,
    num_segments=2,
    dropout=0.0,
    attention_dropout=0.0,
)


def test_scores_of_published_predictions_equal_the_official_ones(corpora: Path):
    questions = read_questions(corpora / "squad/dev-v1.1.json")
    published = json.loads((corpora / "squad/predictions/1.1/match-lstm.json").read_text())
    right = [[answer.text for answer in question.answers] for question in questions]
    predictions = [published.get(question.id, "") for question in questions]
    assert len(questions) == 10570
    expected = {"exact_match": 0.676348, "f1": 0.767556}
    assert answer_metrics(right, predictions) == pytest.approx(expected, abs=5e-7)


def test_answers_are_compared_without_case_articles_and_punctuation():
    assert answer_metrics([["The Eiffel Tower!"]], ["eiffel  tower"])["exact_match"] == 1
    two_of_three = 2 * (2 / 3) * (2 / 3) / (4 / 3)
    assert answer_metrics([["big red dog"]], ["the red dog ran"])["f1"] == pytest.approx(two_of_three)
    assert answer_metrics([["the"]], ["a"])["f1"] == 0
    assert answer_metrics([["blue", "red dog"]], ["red dog"])["f1"] == 1


@pytest.mark.parametrize("make", [byte_level, wordpiece])
@pytest.mark.parametrize(("file", "least"), [("dev-v1.1.json", 0.98), ("train-v1.1.44articles.json", 0.98)])
def test_every_real_answer_maps_to_tokens_that_hold_its_text(corpora, tmp_path, make, file, least):
    tokenizer = TextTokenizer(make(corpora, tmp_path / "tokenizer.json"))
    questions = read_questions(corpora / "squad" / file)
    contexts = list(dict.fromkeys(question.context for question in questions))
    offsets = {c: found for c, (_, found) in zip(contexts, tokenizer.ids_with_offsets(contexts), strict=True)}
    equal = total = 0
    for question in questions:
        for answer in question.answers:
            tokens = answer_tokens(offsets[question.context], answer.start, answer.text)
            assert tokens is not None
            text = text_of(question.context, offsets[question.context], *tokens)
            assert answer.text in text
            equal, total = equal + (text == answer.text), total + 1
    assert equal / total > least


def test_characters_of_several_bytes_are_found(corpora, tmp_path):
    tokenizer = TextTokenizer(byte_level(corpora, tmp_path / "tokenizer.json"))
    context = "Ein Café — naïve 日本語 🙂 text."
    ((ids, offsets),) = tokenizer.ids_with_offsets([context])
    assert len(ids) > len(context.split())
    for text in ("Café", "naïve", "日本語", "🙂", "text"):
        tokens = answer_tokens(offsets, context.index(text), text)
        assert tokens is not None
        assert text_of(context, offsets, *tokens).startswith(text)


def released_windows(num_tokens: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """BERT's loop, step by step."""
    spans, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, capacity)
        spans.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, stride)
    return spans


def has_most_context(spans: list[tuple[int, int]], number: int, token: int) -> bool:
    """BERT's question whether a window is the one with most context for a token, step by step."""
    best_score, best = None, None
    for candidate, (start, length) in enumerate(spans):
        if start <= token < start + length:
            score = min(token - start, start + length - 1 - token) + 0.01 * length
            if best_score is None or score > best_score:
                best_score, best = score, candidate
    return best == number


@given(st.integers(1, 90), st.integers(1, 30), st.integers(1, 40))
def test_windows_and_their_own_tokens_are_those_of_the_released_code(num_tokens, capacity, stride):
    spans = window_spans(num_tokens, capacity, stride)
    assert spans == released_windows(num_tokens, capacity, stride)
    for number, (first, last) in enumerate(own_tokens(spans).tolist()):
        expected = [t for t in range(num_tokens) if has_most_context(spans, number, t)]
        assert list(range(first, last)) == expected


def test_windows_show_question_and_passage_and_where_the_answer_is(tokenizer_path):
    # <s> 0, </s> 2; good 4, bad 5, film 6, plot 7, the 8, a 9, was 10, and 11
    tokenizer = TextTokenizer(tokenizer_path)
    question = Question("q", "was film", "the film was good and a plot bad", (Answer("good and", 13),))
    windows = encode_questions(
        tokenizer,
        sequence_format(MODEL, tokenizer),
        [question],
        max_length=11,
        max_query_length=1,
        doc_stride=3,
    )
    rows = [windows.input_ids[number].tolist() for number in range(len(windows))]
    assert rows == [[0, 10, 2, 2, 8, 6, 10, 4, 11, 9, 2], [0, 10, 2, 2, 4, 11, 9, 7, 5, 2]]
    assert windows.answer.tolist() == [[7, 8], [4, 5]]
    assert windows.own.tolist() == [[0, 5], [5, 8]]
    bert = encode_questions(
        tokenizer,
        sequence_format(BERT, tokenizer),
        [question],
        max_length=7,
        max_query_length=1,
        doc_stride=4,
    )
    # Windows are not further apart than they are long, so that nothing is left out.
    assert bert.first.tolist() == [0, 3, 6]
    assert bert.input_ids[1].tolist() == [0, 10, 2, 4, 11, 9, 2]
    assert bert.segment_ids is not None
    assert bert.segment_ids[1].tolist() == [0, 0, 0, 1, 1, 1, 1]
    # Only a window with the whole answer teaches it.
    assert bert.answer.tolist() == [[0, 0], [3, 4], [0, 0]]


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))
def test_best_spans_are_those_of_exhaustive_search(seed, length, longest, n_best):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, length, 2, generator=generator)
    begins = torch.rand(2, length, generator=generator) < 0.7
    ends = torch.rand(2, length, generator=generator) < 0.7
    found = best_spans(logits, begins, ends, max_length=longest, n_best=n_best)
    for row in range(2):
        allowed = [
            (float(logits[row, i, 0] + logits[row, j, 1]), i, j)
            for i in range(length)
            for j in range(i, min(length, i + longest))
            if begins[row, i] and ends[row, j]
        ]
        expected = sorted(allowed, reverse=True)[:n_best]
        kept = [(score, int(i), int(j)) for i, j, score in found[row].tolist() if np.isfinite(score)]
        assert [span[1:] for span in kept] == [span[1:] for span in expected]
        assert [span[0] for span in kept] == pytest.approx([span[0] for span in expected], abs=1e-5)


def test_loss_does_not_depend_on_padding():
    logits = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(1))
    answer, mask = torch.tensor([[1, 2], [0, 0]]), torch.ones(2, 5, dtype=torch.bool)
    wider = torch.cat([logits, torch.full((2, 3, 2), 50.0)], 1)
    longer = torch.cat([mask, torch.zeros(2, 3, dtype=torch.bool)], 1)
    assert float(span_loss(wider, answer, longer)) == pytest.approx(float(span_loss(logits, answer, mask)))


def squad_run(make_config, path: Path, **changes):
    plain = {
        "tasks": {"squad": {"kind": "squad", "train": path, "evaluation": path, "doc_stride": 32}},
        "training": {"epochs": 40, "batch_size": 8, "lr": 3e-3, "max_length": 96, "scored": "last_epoch"},
        "seeds": [1],
    }
    return make_config(**plain | changes)


def test_answers_of_real_questions_are_learnt_by_heart(corpora, tmp_path, make_config, recorder):
    path = squad_sample(corpora, tmp_path / "squad.json", 12)
    tokenizer = words_of(path.read_text(encoding="utf-8"), tmp_path / "words.json")
    checkpoint = make_checkpoint(tmp_path / "bert", tokenizer, network=MaskedLanguageModel(BERT, pair="nsp"))
    config = squad_run(make_config, path)
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.main_metric == "f1"
    assert score.metrics["exact_match"] > 0.9
    assert score.metrics["f1"] >= score.metrics["exact_match"]
    assert (score.num_train_examples, score.num_evaluation_examples) == (12, 12)
    assert score.epochs[0].metrics == {}
    directory = scores_directory(config, checkpoint)
    official = orjson.loads((directory / "answers-squad-pretrained-1.json").read_bytes())
    questions = read_questions(path)
    right = [[answer.text for answer in question.answers] for question in questions]
    measured = answer_metrics(right, [official[question.id] for question in questions])
    assert measured["exact_match"] == score.metrics["exact_match"]
    lines = (directory / "predictions-squad-pretrained-1.jsonl").read_bytes().splitlines()
    first = orjson.loads(lines[0])
    assert first["prediction"] == first["n_best"][0]["text"] == official[first["id"]]
    assert first["question"] == questions[0].question
    assert first["context"] == questions[0].context
    assert sum(found["probability"] for found in first["n_best"]) == pytest.approx(1)
    assert len({found["text"] for found in first["n_best"]}) == len(first["n_best"]) > 1


def test_elmo_is_refused_for_spans_before_training(make_config, checkpoint, tmp_path):
    path = tmp_path / "squad.json"
    path.write_text('{"data": []}')
    elmo = dataclasses.replace(checkpoint, model=ElmoConfig(vocab_size=32))
    with pytest.raises(
        MismatchError, match=r"squad \(squad\) needs an encoder \(BERT.*, but the network is ELMo"
    ):
        finetune(squad_run(make_config, path), elmo)


@pytest.mark.parametrize(
    ("network", "whole"), [("decoder", CausalLanguageModel), ("encoder_decoder", SequenceToSequence)]
)
def test_answers_are_learnt_by_heart_with_any_kind_of_network(
    corpora, tmp_path, make_config, recorder, network, whole
):
    path = squad_sample(corpora, tmp_path / "squad.json", 8)
    tokenizer = words_of(path.read_text(encoding="utf-8"), tmp_path / "words.json")
    config = dataclasses.replace(BERT, network=network, num_segments=0)
    checkpoint = make_checkpoint(tmp_path / "checkpoint", tokenizer, network=whole(config))
    (score,) = finetune(squad_run(make_config, path), checkpoint, track=recorder)
    assert score.metrics["exact_match"] > 0.8


def test_window_that_the_question_fills_is_refused(make_config, checkpoint, tmp_path):
    config = squad_run(make_config, tmp_path / "squad.json", training={"max_length": 32})
    with pytest.raises(
        MismatchError, match=r"longest question .* needs 68.*\n.*tasks.squad.max_query_length"
    ):
        finetune(config, checkpoint)
