"""Entities as conlleval counts them, and the tokens of words."""

from __future__ import annotations

import pytest

from pipeline.tasks.metrics.entities import entities, entity_metrics
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.forms.tags import ABSENT, word_tokens
from tests.pipeline.tune.samples import byte_level, wordpiece


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", [("PER", 1, 3)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        # As conlleval reads it: an I behind O begins an entity.
        ("O I-PER I-PER", [("PER", 1, 3)]),
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER I-PER E-PER S-LOC S-LOC O", [("PER", 0, 3), ("LOC", 3, 4), ("LOC", 4, 5)]),
        ("E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),
        ("O O", []),
    ],
)
def test_entities_are_those_of_conlleval(tags, expected):
    assert entities(tags.split()) == expected


def test_entities_count_only_whole_and_with_the_right_type():
    # 3 right entities, 4 predicted, 1 in common; 10 of 12 tags are equal.
    right = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O", "B-LOC", "O"]]
    guessed = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O", "B-LOC", "O"]]
    found = entity_metrics(right, guessed)
    assert found == pytest.approx({"f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3, "accuracy": 10 / 12})
    guessed[1] = ["B-ORG", "I-ORG", "O", "B-LOC", "B-LOC"]
    found = entity_metrics(right, guessed)
    assert found["precision"] == 1 / 4
    assert found["recall"] == 1 / 3
    assert found["f1"] == pytest.approx(2 / 7)
    assert entity_metrics([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


@pytest.mark.parametrize("make", [byte_level, wordpiece])
def test_every_word_has_its_first_and_its_last_token(tmp_path, make):
    tokenizer = TextTokenizer(make(tmp_path / "tokenizer.json"))
    words = ("Johanson", "visited", "New", "York's", "café", ".")
    ((ids, offsets),) = tokenizer.ids_with_offsets([" ".join(words)])
    first, last = (word_tokens(words, offsets, side) for side in ("first", "last"))
    assert first[0] == 0
    assert last[-1] == len(ids) - 1
    assert (first[1:] == last[:-1] + 1).all()
    text = " ".join(words)
    for word, begin, end in zip(words, first, last, strict=True):
        assert text[offsets[begin, 0] : offsets[end, 1]].strip() == word


def test_word_without_characters_to_read_has_no_token(tmp_path):
    tokenizer = TextTokenizer(wordpiece(tmp_path / "tokenizer.json"))
    words = ("a", "\u200b", "b")
    ((_, offsets),) = tokenizer.ids_with_offsets([" ".join(words)])
    assert word_tokens(words, offsets, "first").tolist() == [0, ABSENT, 1]
