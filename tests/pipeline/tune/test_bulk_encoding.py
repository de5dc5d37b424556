"""Many texts at once are encoded as one by one, and the windows over SQuAD's passages are those of transformers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from models.config import TransformerConfig
from pipeline.tasks.forms import Answer, Question
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.forms.spans import encode_questions
from tests.pipeline.real_text import docstrings
from tests.pipeline.tune.samples import byte_level, wordpiece

ODD = "aZé İßſ \u0301\u200d\u00ad\u200b\ufeff\ufffd \t\n\r\v\f\x00\x1c\x1f\x7f\x85\xa0\u1680\u180e\u2003\u2028\u3000"
ODD += "日本語🙂한글éa.,-_'’“#@5½\U0001f469\u200d\U0001f4bb\ue000"
WORDS = ["the", "The", "unaffable", "[SEP", "SEP]", "U.S.", "it's", "x" * 120, "№", "ＦＵＬＬ"]


@pytest.fixture(scope="module", params=[wordpiece, byte_level], ids=lambda make: make.__name__)
def tokenizer(request, tmp_path_factory) -> TextTokenizer:
    return TextTokenizer(request.param(tmp_path_factory.mktemp("t") / "tokenizer.json"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Few texts are encoded as many."""
    monkeypatch.setattr("pipeline.tasks.tokenizer.MANY_CHARACTERS", 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.one_of(st.text(ODD, max_size=4), st.sampled_from(WORDS))).map(" ".join), max_size=4)
)
@example([""])
@example(["", " a", "", "b "])
def test_any_texts_are_encoded_at_once_as_one_by_one(tokenizer: TextTokenizer, texts: list[str]):
    assert tokenizer.rows(texts).equals(tokenizer.rows_with_offsets(texts)[0])


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


def test_real_texts_are_encoded_at_once_by_tokie_as_one_by_one(tokenizer: TextTokenizer):
    assert tokenizer.fast_encoder is not None
    assert TextTokenizer(tokenizer.path).fast_encoder is tokenizer.fast_encoder, "tokie is prepared once"
    texts = [document.text for document in docstrings()[:300]]
    assert tokenizer.rows(texts).equals(tokenizer.rows_with_offsets(texts)[0])


def test_texts_that_spell_special_tokens_are_left_to_the_tokenizer(tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(wordpiece(tmp_path / "tokenizer.json")))
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = TextTokenizer(tmp_path / "tokenizer.json").rows(["one [SEP] two"])
    assert tokenizer.token_to_id("[SEP]") in ids[0].tolist()
    assert ids[0].tolist() == tokenizer.encode("one [SEP] two", add_special_tokens=False).ids


def featurised(
    tokenizer: PreTrainedTokenizerFast, questions: list[Question], max_length: int, overlap: int
) -> list[tuple[list[int], list[int], int, int]]:
    """Ids, segments, and first and last token of the answer of every window, as transformers' run_qa.py has them."""
    found = tokenizer(
        [question.question for question in questions],
        [question.context for question in questions],
        truncation="only_second",
        max_length=max_length,
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
            begin, end = begin - 1, end + 1
        else:
            begin = end = 0
        rows.append((found["input_ids"][number], found["token_type_ids"][number], begin, end))
    return rows


def by_size(questions: list[Question], size: Callable[[Question], int]) -> itertools.groupby:
    return itertools.groupby(sorted(questions, key=size), size)


def test_windows_and_answers_are_those_of_transformers(tmp_path: Path):
    path = wordpiece(tmp_path / "tokenizer.json")
    bare = Tokenizer.from_file(str(path))
    vocabulary = bare.get_vocab()
    first, last = ((token, vocabulary[token]) for token in ("[CLS]", "[SEP]"))
    bare.post_processor = processors.BertProcessing(last, first)
    theirs = PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="[PAD]")
    tokenizer = TextTokenizer(path)
    sequences = sequence_format(TransformerConfig(num_segments=2), tokenizer)
    questions = real_questions()
    length = dict(
        zip(questions, tokenizer.rows([each.question for each in questions]).lengths.tolist(), strict=True)
    )
    compared = 0
    for num_words, group in by_size(questions, length.__getitem__):
        same = list(group)
        # transformers counts the tokens that windows share, we and BERT those between their beginnings.
        expected = featurised(theirs, same, 128, 128 - 3 - num_words - 40)
        windows = encode_questions(
            tokenizer, sequences, same, max_length=128, max_query_length=64, doc_stride=40
        )
        assert windows.segment_ids is not None
        assert len(windows) == len(expected)
        for number, (ids, segments, begin, end) in enumerate(expected):
            assert windows.input_ids[number].tolist() == ids
            assert windows.segment_ids[number].tolist() == segments
            assert windows.answer[number].tolist() == [begin, end]
        compared += len(expected)
    assert compared > 600
