"""Token ids of sentences, pairs, words, and windows over passages."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from cluster.artefacts.errors import CorruptArtefactError, MismatchError, MissingInputError
from models.config import TransformerConfig
from pipeline.tasks.forms import Answer, Example, Question
from pipeline.tasks.tokenizer import TextTokenizer, generation_format, sequence_format
from pipeline.tune.encoding import encode_examples, longest_first
from pipeline.tune.forms.spans import encode_questions
from pipeline.tune.forms.tags import ABSENT, word_tokens
from tests.pipeline.real_text import docstrings
from tests.pipeline.tune.samples import byte_level, wordpiece

S, PAD, E, GOOD, BAD, FILM = 0, 1, 2, 4, 5, 6
ROBERTA = TransformerConfig()
BERT = TransformerConfig(num_segments=2)
GPT = TransformerConfig(network="decoder")
PAIR = ("good", "bad film")
LONG = "good " * 30


def encode(tokenizer, *texts, max_length=16, network=ROBERTA) -> tuple[list, list | None]:
    """The ids and the segments of texts, each a sentence or a pair."""
    examples = [Example("", *(text if isinstance(text, tuple) else (text, None)), 0) for text in texts]
    encoded = encode_examples(tokenizer, sequence_format(network, tokenizer), examples, max_length)
    ids, segments = (
        rows and [rows[number].tolist() for number in range(len(examples))]
        for rows in (encoded.input_ids, encoded.segment_ids)
    )
    return ids, segments


@pytest.mark.parametrize(
    ("network", "text", "max_length", "ids", "segments"),
    [
        (ROBERTA, "good film", 16, [S, GOOD, FILM, E], None),
        (ROBERTA, PAIR, 16, [S, GOOD, E, E, BAD, FILM, E], None),
        (ROBERTA, ("", ""), 16, [S, E, E, E], None),
        (BERT, "film", 16, [S, FILM, E], [0, 0, 0]),
        (BERT, PAIR, 16, [S, GOOD, E, BAD, FILM, E], [0, 0, 0, 1, 1, 1]),
        (GPT, PAIR, 16, [S, GOOD, E, BAD, FILM, E], None),
        (ROBERTA, LONG, 8, [S, *[GOOD] * 6, E], None),
        (ROBERTA, (LONG, "bad film"), 9, [S, GOOD, GOOD, GOOD, E, E, BAD, FILM, E], None),
    ],
)
def test_texts_stand_between_their_special_tokens(tokenizer, network, text, max_length, ids, segments):
    # Other rows around it change nothing.
    rows, marked = encode(tokenizer, "a", text, ("a", "the"), max_length=max_length, network=network)
    assert (rows[1], marked and marked[1]) == (ids, segments)


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
    assert encode(TextTokenizer(tokenizer_path), "good bad film")[0] == [[S, GOOD, BAD, FILM, E]]


def test_tokenizer_problems_are_named(tokenizer_path, tmp_path):
    with pytest.raises(MissingInputError, match=r"absent\.json"):
        TextTokenizer(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CorruptArtefactError, match=r"broken\.json"):
        TextTokenizer(tmp_path / "broken.json")
    tokenizer_path.write_text(tokenizer_path.read_text().replace("</s>", "<end>"))
    with pytest.raises(MismatchError, match=r"eos: </s>, \[SEP\]"):
        TextTokenizer(tokenizer_path)


@pytest.fixture(scope="module", params=[wordpiece, byte_level], ids=lambda make: make.__name__)
def trained(request, tmp_path_factory) -> TextTokenizer:
    return TextTokenizer(request.param(tmp_path_factory.mktemp("t") / "tokenizer.json"))


def test_special_tokens_that_a_text_names_are_read_as_such(tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(wordpiece(tmp_path / "tokenizer.json")))
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = TextTokenizer(tmp_path / "tokenizer.json").rows(["one [SEP] two"])[0]
    assert tokenizer.token_to_id("[SEP]") in ids.tolist()
    assert ids.tolist() == tokenizer.encode("one [SEP] two", add_special_tokens=False).ids


def test_every_word_has_its_first_and_its_last_token(trained: TextTokenizer):
    words = ("Johanson", "visited", "New", "York's", "café", ".")
    text = " ".join(words)
    ((ids, offsets),) = trained.ids_with_offsets([text])
    first, last = (word_tokens(words, offsets, side) for side in ("first", "last"))
    assert (first[0], last[-1]) == (0, len(ids) - 1)
    assert (first[1:] == last[:-1] + 1).all()
    spans = zip(offsets[first, 0], offsets[last, 1], strict=True)
    assert tuple(text[begin:end].strip() for begin, end in spans) == words


def test_word_without_characters_to_read_has_no_token(tmp_path):
    words = ("a", "\u200b", "b")
    ((_, offsets),) = TextTokenizer(wordpiece(tmp_path / "t.json")).ids_with_offsets([" ".join(words)])
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
    """Ids, segments, and first and last token of the answer of every window, as transformers' run_qa.py has them."""
    found = tokenizer(
        [question.question for question in questions],
        [question.context for question in questions],
        truncation="only_second",
        max_length=128,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    rows = []
    for number, offsets in enumerate(found["offset_mapping"]):
        answer = questions[found["overflow_to_sample_mapping"][number]].answers[0]
        stop = answer.start + len(answer.text)
        inside = [place for place, own in enumerate(found.sequence_ids(number)) if own == 1]
        begin, end = inside[0], inside[-1]
        if offsets[begin][0] <= answer.start and offsets[end][1] >= stop:
            # The script itself goes on to [SEP] where the answer begins with the last token.
            while begin <= inside[-1] and offsets[begin][0] <= answer.start:
                begin += 1
            while offsets[end][1] >= stop:
                end -= 1
            places = [begin - 1, end + 1]
        else:
            places = [0, 0]
        rows.append((found["input_ids"][number], found["token_type_ids"][number], places))
    return rows


def test_windows_and_answers_are_those_of_transformers(tmp_path: Path):
    path = wordpiece(tmp_path / "tokenizer.json")
    bare = Tokenizer.from_file(str(path))
    first, last = ((token, bare.get_vocab()[token]) for token in ("[CLS]", "[SEP]"))
    bare.post_processor = processors.BertProcessing(last, first)
    theirs = PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="[PAD]")
    tokenizer, questions = TextTokenizer(path), real_questions()
    sequences = sequence_format(BERT, tokenizer)
    words = tokenizer.rows([each.question for each in questions]).lengths.tolist()
    compared = 0
    for num_words in set(words):
        same = [question for question, count in zip(questions, words, strict=True) if count == num_words]
        # transformers counts the tokens that windows share, we and BERT those between their beginnings.
        expected = featurised(theirs, same, 128 - 3 - num_words - 40)
        windows = encode_questions(
            tokenizer, sequences, same, max_length=128, max_query_length=64, doc_stride=40
        )
        assert windows.segment_ids is not None
        assert [
            (windows.input_ids[row].tolist(), windows.segment_ids[row].tolist(), windows.answer[row].tolist())
            for row in range(len(windows))
        ] == expected
        compared += len(expected)
    assert compared > 600
