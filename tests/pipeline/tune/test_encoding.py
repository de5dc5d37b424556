"""Texts as token ids (sentences, pairs, words, windows over passages), and SQuAD: answers back from tokens, and the
official metrics of both versions."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cluster.artefacts.errors import CorruptArtefactError, MismatchError, MissingInputError
from data_prep.tokenizers import ByteLevelBPE, WordPiece
from models.classifiers import best_spans
from models.config import TransformerConfig
from pipeline.tasks.forms import Answer, Example, Question
from pipeline.tasks.metrics.squad import (
    UNANSWERABLE_METRICS,
    answer_metrics,
    question_scores,
    unanswerable_metrics,
)
from pipeline.tasks.questions import Squad2Config, read_questions
from pipeline.tasks.tokenizer import TextTokenizer, generation_format, sequence_format
from pipeline.tune.encoding import encode_examples, longest_first
from pipeline.tune.forms.spans import (
    answer_questions,
    answer_tokens,
    encode_questions,
    own_tokens,
    text_of,
    window_spans,
)
from pipeline.tune.forms.tags import ABSENT, word_tokens
from tests.pipeline.real_text import docstrings
from tests.pipeline.tune.conftest import MODEL, UNREAD

S, PAD, E, GOOD, BAD, FILM = 0, 1, 2, 4, 5, 6
ROBERTA = TransformerConfig()
BERT = TransformerConfig(num_segments=2)
GPT = TransformerConfig(network="decoder")
PAIR = ("good", "bad film")
LONG = "good " * 30


@pytest.mark.parametrize(
    ("network", "texts", "ids", "segments"),
    [
        (ROBERTA, ("good", "bad film"), [S, GOOD, E, E, BAD, FILM, E], None),
        (ROBERTA, (LONG, "bad film"), [S, GOOD, GOOD, GOOD, E, E, BAD, FILM, E], None),
        (BERT, ("good", "bad film"), [S, GOOD, E, BAD, FILM, E], [0, 0, 0, 1, 1, 1]),
        (ROBERTA, ("", ""), [S, E, E, E], None),
        (GPT, (LONG, None), [S, *[GOOD] * 7, E], None),
        (GPT, ("good", "bad film"), [S, GOOD, E, BAD, FILM, E], None),
    ],
)
def test_texts_stand_between_their_special_tokens(tokenizer, network, texts, ids, segments):
    # Other rows around it change nothing.
    examples = [Example("", *each, 0) for each in (("a", None), texts, ("a", "the"))]
    encoded = encode_examples(tokenizer, sequence_format(network, tokenizer), examples, 9)
    assert encoded.input_ids[1].tolist() == ids
    assert (encoded.segment_ids and encoded.segment_ids[1].tolist()) == segments


def test_written_texts_follow_the_habit_of_their_system(tokenizer):
    bart = TransformerConfig(network="encoder_decoder")
    t5 = TransformerConfig(network="encoder_decoder", positions="relative_bias")
    found = generation_format(bart, tokenizer, None)
    assert (found.source.first, found.source.last, found.target.first, found.start) == ((S,), (E,), (S,), E)
    found = generation_format(t5, tokenizer, None)
    assert (found.source.first, found.target.last, found.start) == ((), (E,), PAD)
    found = generation_format(bart, tokenizer, "film")
    assert (found.source.last, found.target.last, found.start) == ((E, FILM), (E,), FILM)
    with pytest.raises(MismatchError, match="en_XX"):
        generation_format(bart, tokenizer, "en_XX")


@pytest.mark.parametrize("budget", range(1, 12))
def test_pairs_are_cut_as_transformers_cuts_them(budget, tokenizer_path):
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path))
    for first, second in itertools.product(range(10), repeat=2):
        cut = theirs("good " * first, "bad " * second, truncation=True, max_length=budget)["input_ids"]
        kept = cut.count(GOOD), cut.count(BAD)
        assert longest_first(np.array(first), np.array(second), np.array(budget)) == kept


def test_truncation_and_padding_stored_in_the_tokenizer_file_are_ignored(tokenizer_path):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(tokenizer_path))
    assert TextTokenizer(tokenizer_path).rows(["good bad film"])[0].tolist() == [GOOD, BAD, FILM]


def test_tokenizer_problems_are_named(tokenizer_path, tmp_path):
    with pytest.raises(MissingInputError, match=r"absent\.json"):
        TextTokenizer(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CorruptArtefactError, match=r"broken\.json"):
        TextTokenizer(tmp_path / "broken.json")
    tokenizer_path.write_text(tokenizer_path.read_text().replace("</s>", "<end>"))
    with pytest.raises(MismatchError, match=r"eos: </s>, \[SEP\]"):
        TextTokenizer(tokenizer_path)


TRAINED = {"wordpiece": WordPiece(vocab_size=2000), "byte-level": ByteLevelBPE(vocab_size=2000)}


@cache
def trained(kind: str) -> str:
    """A WordPiece as BERT's uncased one, or a byte-level BPE as RoBERTa's."""
    return TRAINED[kind].train([document.text for document in docstrings()[:400]])[0]


def tokenizer_in(folder: Path, kind: str = "wordpiece") -> TextTokenizer:
    (folder / "tokenizer.json").write_text(trained(kind))
    return TextTokenizer(folder / "tokenizer.json")


def test_special_tokens_that_a_text_names_are_read_as_such(tmp_path: Path):
    tokenizer = Tokenizer.from_str(trained("wordpiece"))
    ids = tokenizer_in(tmp_path).rows(["one [SEP] two"])[0].tolist()
    assert tokenizer.token_to_id("[SEP]") in ids
    assert ids == tokenizer.encode("one [SEP] two", add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level"])
def test_every_word_has_its_first_and_its_last_token(tmp_path: Path, kind: str):
    words = ("Johanson", "visited", "New", "York's", "café", ".")
    text = " ".join(words)
    ((ids, offsets),) = tokenizer_in(tmp_path, kind).ids_with_offsets([text])
    first, last = (word_tokens(words, offsets, side) for side in ("first", "last"))
    assert (first[0], last[-1]) == (0, len(ids) - 1)
    inside = {token for each in zip(first, last + 1, strict=True) for token in range(*each)}
    # A byte-level token may be a space by itself.
    assert not "".join(text[slice(*offsets[token])] for token in {*range(len(ids))} - inside).strip()
    spans = zip(offsets[first, 0], offsets[last, 1], strict=True)
    assert tuple(text[begin:end].strip() for begin, end in spans) == words


def test_word_without_characters_to_read_has_no_token(tmp_path):
    words = ("a", "\u200b", "b")
    ((_, offsets),) = tokenizer_in(tmp_path).ids_with_offsets([" ".join(words)])
    assert word_tokens(words, offsets, "first").tolist() == [0, ABSENT, 1]


def real_questions() -> list[Question]:
    """Words of docstrings are the answers, and the words before them the questions."""
    questions = []
    for number, document in enumerate(docstrings()[:300]):
        words = list(re.finditer(r"\w+", document.text))
        answer = words[(7 * number) % len(words)]
        asked = document.text[: answer.start()].split()[-1 - number % 9 :]
        answers = (Answer(answer[0], answer.start()),)
        questions.append(Question(str(number), f"What follows {' '.join(asked)}?", document.text, answers))
    return questions


def featurised(
    tokenizer: PreTrainedTokenizerFast, questions: list[Question], overlap: int
) -> list[tuple[list[int], list[int], list[int]]]:
    """Ids, segments, and first and last token of the answer of every window of transformers."""
    found = tokenizer(
        [question.question for question in questions],
        [question.context for question in questions],
        truncation="only_second",
        max_length=128,
        stride=overlap,
        return_overflowing_tokens=True,
        return_token_type_ids=True,
    )
    rows = []
    for window, number in enumerate(found["overflow_to_sample_mapping"]):
        (answer,) = questions[number].answers
        ends = answer.start, answer.start + len(answer.text) - 1
        places = [found.char_to_token(window, end, sequence_index=1) for end in ends]
        whole = [0, 0] if None in places else places
        rows.append((found["input_ids"][window], found["token_type_ids"][window], whole))
    return rows


def test_windows_and_answers_are_those_of_transformers(tmp_path: Path):
    tokenizer, questions = tokenizer_in(tmp_path), real_questions()
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer.path), pad_token="[PAD]")
    words = tokenizer.rows([each.question for each in questions]).lengths.tolist()
    lengths = {"max_length": 128, "max_query_length": 64, "doc_stride": 40}
    compared = 0
    for num_words in set(words):
        same = [question for question, count in zip(questions, words, strict=True) if count == num_words]
        # transformers counts the tokens that windows share, we and BERT those between their beginnings.
        expected = featurised(theirs, same, 128 - 3 - num_words - 40)
        windows = encode_questions(tokenizer, sequence_format(BERT, tokenizer), same, **lengths)
        parts = (windows.input_ids, windows.segment_ids, windows.answer)
        found = [tuple(part[row].tolist() for part in parts) for row in range(len(windows))]
        assert found == expected
        compared += len(expected)
    assert compared > 600


def test_scores_of_published_predictions_equal_the_official_ones(corpora: Path):
    questions = read_questions(corpora / "squad/dev-v1.1.json")
    published = json.loads((corpora / "squad/predictions/1.1/match-lstm.json").read_text())
    predictions = [published.get(question.id, "") for question in questions]
    assert len(questions) == 10570
    found = answer_metrics([each.right for each in questions], predictions)
    assert found == pytest.approx({"exact_match": 0.676348, "f1": 0.767556}, abs=5e-7)


@pytest.mark.parametrize(
    ("answers", "prediction", "exact", "f1"),
    [
        (["The Eiffel Tower!"], "eiffel  tower", 1, 1),
        (["blue", "red dog"], "red dog", 1, 1),
        (["big red dog", "cat"], "red dog", 0, 0.8),
        ([], "", 1, 1),
        ([], "something", 0, 0),
        # An article by itself is empty after normalisation, like no answer.
        ([], "the", 1, 1),
        # The only answer is dropped, so that the question counts as one without an answer.
        (["The"], "", 1, 1),
        (["red dog"], "", 0, 0),
        (["red dog"], "the", 0, 0),
    ],
)
def test_rules_of_the_official_script_by_hand(answers, prediction, exact, f1):
    found = question_scores([answers], [prediction])
    assert [float(side[0]) for side in found] == pytest.approx([exact, f1])


def test_first_version_gives_an_empty_prediction_nothing():
    assert answer_metrics([["the"]], [""]) == {"exact_match": 1, "f1": 0}


def step_by_step(scores: list[float], cases: list[tuple[list[str], str, float]]) -> tuple[float, float]:
    """The script's search for the best score and its threshold, question by question."""
    reached = best = sum(not answers for answers, _, _ in cases)
    threshold = 0.0
    for number in sorted(range(len(cases)), key=lambda number: cases[number][2]):
        answers, prediction, chance = cases[number]
        reached += scores[number] if answers else (-1 if prediction else 0)
        if reached > best:
            best, threshold = reached, chance
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
    exact, f1 = (side.tolist() for side in question_scores(answers, predictions))
    found = unanswerable_metrics(answers, predictions, np.array(chances))
    assert set(found) == set(UNANSWERABLE_METRICS)
    for name, scores in (("exact", exact), ("f1", f1)):
        assert (found[f"best_{name}"], found[f"best_{name}_thresh"]) == step_by_step(scores, cases)
    assert found["f1"] == sum(f1) / len(cases)


@pytest.mark.corpora
def test_real_file_has_as_many_questions_as_published_for_its_half(corpora):
    questions = read_questions(corpora / "squad/dev-v2.0.cs224n-half.json", answerable=False)
    assert len(questions) == 6078
    right, chances = [question.right for question in questions], np.zeros(len(questions))
    found = unanswerable_metrics(right, [""] * len(questions), chances)
    share = sum(not texts for texts in right) / len(questions)
    assert found["exact_match"] == found["f1"] == found["best_f1"] == share
    first = unanswerable_metrics(right, [(*texts, "")[0] for texts in right], chances)
    assert first["f1"] == found["no_answer_f1"] == 1


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level"])
def test_every_real_answer_maps_to_tokens_that_hold_its_text(corpora, tmp_path, kind):
    tokenizer = tokenizer_in(tmp_path, kind)
    questions = read_questions(corpora / "squad/dev-v1.1.json")
    text = "Ein Café — naïve 日本語 🙂."
    answers = tuple(Answer(part, text.index(part)) for part in ("Café", "naïve", "日本語", "🙂"))
    questions.append(Question("several bytes", "", text, answers if kind == "byte-level" else ()))
    contexts = list(dict.fromkeys(question.context for question in questions))
    offsets = {c: found for c, (_, found) in zip(contexts, tokenizer.ids_with_offsets(contexts), strict=True)}
    equal = []
    for context, answer in ((each.context, answer) for each in questions for answer in each.answers):
        tokens = answer_tokens(offsets[context], answer.start, answer.text)
        assert tokens is not None
        text = text_of(context, offsets[context], *tokens)
        assert answer.text in text
        equal.append(text == answer.text)
    assert np.mean(equal) > 0.98


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
    assert spans[0][0] == 0
    assert sum(spans[-1]) == num_tokens
    for (start, length), (following, _) in itertools.pairwise(spans):
        assert (length, following - start) == (capacity, min(capacity, stride))
    for number, (first, last) in enumerate(own_tokens(spans).tolist()):
        expected = [t for t in range(num_tokens) if has_most_context(spans, number, t)]
        assert list(range(first, last)) == expected


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))
def test_best_spans_are_those_of_exhaustive_search(seed, length, longest, n_best):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, length, 2, generator=generator)
    begins, ends = (torch.rand(2, length, generator=generator) < 0.7 for _ in range(2))
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


def test_no_answer_is_predicted_where_the_first_token_scores_higher(tokenizer):
    questions = [
        Question("q1", "was film", "the film was good", (Answer("good", 13),)),
        Question("q2", "was film", "the film was bad and the plot was good", ()),
    ]
    lengths = {"max_length": 11, "max_query_length": 1, "doc_stride": 3}
    windows = encode_questions(tokenizer, sequence_format(MODEL, tokenizer), questions, **lengths)
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
    certain, searched, (predictions, n_best, no_answer) = (
        answer_questions(Squad2Config(**UNREAD, max_no_answer=most), questions, windows, outputs)
        for most in (1.0, None, 0.5)
    )
    # Of several windows, the one that is least certain of no answer counts: 2.5 against 2.
    assert predictions == searched[0] == ["good", ""]
    assert "" not in certain[0]
    assert no_answer == pytest.approx([1 / (1 + np.exp(2)), 1 / (1 + np.exp(-0.5))])
    assert n_best[1][0][0] == ""
    assert [score for _, score in n_best[1]] == [2.5, 2.0, 1.5, 0.0][: len(n_best[1])]
