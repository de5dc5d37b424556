"""Multiple choice, and the tasks of SuperGLUE: true lines, official metrics, whole trainings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.artefacts.errors import ConfigError, MissingInputError
from models.initialization import init_weights
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.forms.choices.settings import Choices
from pipeline.tune.forms.choices.task import ChoicesTask
from pipeline.tune.run import finetune
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.multirc import MultircConfig
from pipeline.tune.tasks.race import RaceConfig
from pipeline.tune.tasks.record import RecordConfig
from pipeline.tune.tasks.snli import SnliConfig
from pipeline.tune.tasks.sst5 import Sst5Config
from pipeline.tune.tasks.superglue import BoolqConfig, CbConfig, CopaConfig, WicConfig
from pipeline.tune.tasks.superglue_rte import SuperglueRteConfig
from pipeline.tune.tasks.swag import SwagConfig
from pipeline.tune.tokenizer import TextTokenizer
from tests.pipeline.tune.conftest import MODEL, WORDS

SWAG_HEAD = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def write_lines(folder: Path, *rows: dict) -> Path:
    """A folder in SuperGLUE's layout with the same rows to train and to evaluate on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train.jsonl", "val.jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_swag_pairs_the_first_sentence_with_each_ending(tmp_path):
    texts = '"A man, tired, sits.",He,gold,"sleeps, ""deep"".",runs.,eats.,"two\nlines."'
    content = SWAG_HEAD.replace("\n", "\r\n") + f"0,anetv_1,3416,A man sits. He,{texts},2\r\n"
    for name in ("train.csv", "val.csv"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
    data = SwagConfig(path=tmp_path).load()
    (example,) = data.train
    assert example.label == 2
    assert example.pairs == (
        ("A man, tired, sits.", 'He sleeps, "deep".'),
        ("A man, tired, sits.", "He runs."),
        ("A man, tired, sits.", "He eats."),
        ("A man, tired, sits.", "He two\nlines."),
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            SWAG_HEAD + '0,v,1,x,a,b,gold,"1\n2",3,4,5,0\n1,v,1,x,a,b,gold,1,2,3,4,4\n',
            "line 4: the label is '4'",
        ),
        (SWAG_HEAD + "0,v,1,x,a,b,gold,1,2,3,0\n", "line 2: 11 values, but 12 columns"),
        (SWAG_HEAD.replace("label", "gold"), None),
        (SWAG_HEAD.replace("label", "gold") + "0,v,1,x,a,b,gold,1,2,3,4,0\n", "there is no column `label`"),
        (SWAG_HEAD + '0,v,1,x,a,b,gold,"1,2,3,4,0\n', "line 2: unexpected end of data"),
    ],
)
def test_wrong_lines_of_swag_are_named(tmp_path, content, said):
    for name in ("train.csv", "val.csv"):
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said and rf"train\.csv, .*{said}"):
        SwagConfig(path=tmp_path).load()


def write_race(folder: Path) -> Path:
    passage = {
        "answers": ["B", "A"],
        "options": [["red", "green", "blue", "grey"], ["Yes", "No", "Maybe", "Never"]],
        "questions": ["The _ hill was _ .", "Did it rain?"],
        "article": "The hill\nwas green.  It rained.",
        "id": "high1.txt",
    }
    for split in ("train", "dev"):
        for school in ("middle", "high"):
            (folder / split / school).mkdir(parents=True)
            (folder / split / school / "1.txt").write_text(json.dumps(passage))
    return folder


def test_race_fills_blanks_and_scores_schools_by_themselves(tmp_path):
    config = RaceConfig(path=write_race(tmp_path))
    data = config.load()
    assert len(data.train) == 4
    assert data.train[0].pairs[1] == ("The hill was green. It rained.", "The green hill was green .")
    assert data.train[1].pairs[0] == ("The hill was green. It rained.", "Did it rain? Yes")
    assert [(each.label, each.group) for each in data.evaluation] == [
        (1, "high"),
        (0, "high"),
        (1, "middle"),
        (0, "middle"),
    ]
    measured = config.measure(data.evaluation, np.eye(4)[[1, 0, 1, 3]])
    assert measured == {"accuracy": 0.75, "accuracy_middle": 0.5, "accuracy_high": 1.0}
    assert len(data.inputs) == 2
    (tmp_path / "dev/high/1.txt").write_text('{"article": "x"}')
    with pytest.raises(
        ConfigError, match=r"dev/high/1\.txt is not JSON as RACE has it: KeyError\('questions'\)"
    ):
        config.load()
    with pytest.raises(MissingInputError, match=r"test/\*/\*\.txt"):
        RaceConfig(path=tmp_path, split="test").load()


COPA = {
    "premise": "The man turned on the faucet.",
    "choice1": "The toilet filled with water.",
    "choice2": "Water flowed from the spout.",
    "question": "effect",
    "label": 1,
    "idx": 0,
}


def test_copa_asks_for_cause_or_effect(tmp_path):
    (example,) = CopaConfig(path=write_lines(tmp_path, COPA)).load().train
    assert example.label == 1
    assert example.pairs[1] == (COPA["premise"], "What happened as a result? Water flowed from the spout.")
    write_lines(tmp_path, COPA | {"question": "why"})
    with pytest.raises(
        ConfigError, match=r"train\.jsonl, line 1: `question` is 'why', not one of cause, effect"
    ):
        CopaConfig(path=tmp_path).load()


def test_tasks_of_superglue_are_read_by_their_columns(tmp_path):
    row = {"question": "is it wet", "passage": "Rain -- It is wet.", "idx": 0, "label": True}
    (example,) = BoolqConfig(path=write_lines(tmp_path / "BoolQ", row)).load().train
    assert (example.text_a, example.text_b, example.label) == ("Rain -- It is wet.", "is it wet", 1)
    row = {"premise": "A.", "hypothesis": "B.", "label": "neutral", "idx": 0}
    (example,) = CbConfig(path=write_lines(tmp_path / "CB", row)).load().train
    assert example.label == 2
    row = {"premise": "A.", "hypothesis": "B.", "label": "not_entailment", "idx": 0}
    (example,) = SuperglueRteConfig(path=write_lines(tmp_path / "RTE", row)).load().train
    assert example.label == 1
    row = {"word": "place", "sentence1": "A place.", "sentence2": "Place it.", "label": False, "idx": 0}
    joined = {"text": "Word: place. Sentence 1: A place. Sentence 2: Place it.", "label": 1}
    first, second = WicConfig(path=write_lines(tmp_path / "WiC", row, joined)).load().train
    assert (first.text_a, first.text_b, first.label) == ("place: A place.", "Place it.", 0)
    assert (second.text_a, second.text_b, second.label) == ("place: A place.", "Place it.", 1)


def test_test_file_without_labels_is_recognised(tmp_path):
    folder = write_lines(tmp_path, {"question": "q", "passage": "p", "idx": 0})
    with pytest.raises(
        ConfigError, match=r"line 1: the label is None, not one of no, yes; files of test sets"
    ):
        BoolqConfig(path=folder).load()
    with pytest.raises(MissingInputError, match=r"BoolQ\.zip of the SuperGLUE benchmark"):
        BoolqConfig(path=tmp_path / "absent").load()


def multirc(*labels: tuple[int, ...]) -> dict:
    questions = [
        {
            "question": f"Why {number}?",
            "answers": [{"text": f"A{n}.", "idx": n, "label": label} for n, label in enumerate(found)],
            "idx": number,
        }
        for number, found in enumerate(labels)
    ]
    return {"idx": 0, "passage": {"text": "Sentence.", "questions": questions}}


def test_multirc_scores_all_answers_and_whole_questions(tmp_path):
    config = MultircConfig(path=write_lines(tmp_path, multirc((1, 0, 1), (0, 1))))
    data = config.load()
    assert [(each.text_b, each.label) for each in data.train][:2] == [("Why 0? A0.", 1), ("Why 0? A1.", 0)]
    # Three right answers, four judged right, three in common; the second question has one wrong judgement.
    measured = config.measure(data.evaluation, np.eye(2)[[1, 0, 1, 1, 1]])
    assert measured == pytest.approx({"f1_answers": 2 * 0.75 / 1.75, "exact_match": 0.5})


RECORD = {
    "source": "Daily mail",
    "passage": {
        "text": "Tracy Morgan hasn't been the same.\n@highlight\nMorgan was in a crash",
        "entities": [{"start": 0, "end": 11}, {"start": 46, "end": 51}, {"start": 0, "end": 11}],
    },
    "qas": [
        {
            "query": "'Honestly, @placeholder was hurt'",
            "answers": [{"start": 0, "end": 11, "text": "Tracy Morgan"}],
            "idx": {"passage": 0, "query": 3},
        }
    ],
    "idx": 0,
}


def test_record_chooses_among_entities_and_scores_their_words(tmp_path):
    config = RecordConfig(path=write_lines(tmp_path, RECORD))
    data = config.load()
    (example,) = data.evaluation
    assert example.answers == ("Tracy Morgan", "Morgan")
    assert example.accepted == (0,)
    assert example.pairs[1][1] == "'Honestly, Morgan was hurt'"
    assert config.measure([example], np.array([[1.0, 0.0]])) == {"f1": 1, "exact_match": 1}
    assert config.measure([example], np.array([[0.0, 1.0]])) == pytest.approx({"f1": 2 / 3, "exact_match": 0})
    query = {**RECORD["qas"][0], "answers": []}
    write_lines(tmp_path, {**RECORD, "qas": [query]})
    with pytest.raises(ConfigError, match=r"line 1: no passage as ReCoRD has it: .* has no answer"):
        config.load()


def test_snli_leaves_out_pairs_without_agreement(tmp_path):
    for split in ("train", "dev"):
        rows = [
            {"gold_label": label, "sentence1": "A dog.", "sentence2": "A cat."} for label in ("-", "neutral")
        ]
        path = tmp_path / f"snli_1.0_{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = SnliConfig(path=tmp_path).load()
    assert [(each.id, each.label) for each in data.train] == [("snli_1.0_train-2", 1)]


def test_sentiment_of_a_tree_is_the_one_of_its_root(tmp_path, corpora):
    path = tmp_path / "train.txt"
    path.write_text("(3 (2 It) (4 (2 's) (3 lovely)))\n(1 dull)\n")
    data = Sst5Config(train=path, evaluation=corpora / "sst5/dev.txt").load()
    assert [(each.text_a, each.label) for each in data.train] == [("It 's lovely", 3), ("dull", 1)]
    # The distribution of the development set (Socher et al. 2013, released data).
    counts = np.bincount([int(each.label) for each in data.evaluation])
    assert counts.tolist() == [139, 289, 229, 279, 165]


def write_copa(folder: Path, count: int) -> Path:
    """The right choice holds the word "good"."""
    rows = []
    for number in range(count):
        filler = WORDS[4 + number % 8]
        choices = [f"{filler} good", f"{filler} bad"][:: 1 if number % 3 else -1]
        rows.append(
            {
                "premise": "the film was",
                "choice1": choices[0],
                "choice2": choices[1],
                "question": "cause",
                "label": int(number % 3 == 0),
            }
        )
    return write_lines(folder, *rows)


def test_choices_are_learnt(make_config, checkpoint, tmp_path, recorder):
    config = make_config(
        tasks={"copa": {"kind": "copa", "path": write_copa(tmp_path / "COPA", 60)}},
        training={"epochs": 10, "batch_size": 10, "lr": 3e-3, "max_length": 24, "scored": "last_epoch"},
        seeds=[1, 2],
    )
    scores = finetune(config, checkpoint, track=recorder)
    assert [score.value for score in scores] == [1.0, 1.0]


@pytest.mark.parametrize("network", ["encoder", "decoder", "encoder_decoder"])
def test_questions_with_fewer_choices_are_scored_as_by_themselves(tokenizer_path, network):
    examples = (
        Choices("1", (("good", "film"), ("bad", "film plot")), 1),
        Choices("2", (("one", "two"), ("one", "three"), ("a", "the")), 2),
    )
    config = dataclasses.replace(MODEL, network=network, norm="pre" if network == "decoder" else "post")
    task = ChoicesTask.prepare(
        TaskContext(
            CopaConfig(path=Path()),
            TaskData(examples, examples, (), ()),
            TrainingConfig(max_length=16),
            config,
            TextTokenizer(tokenizer_path),
        )
    )
    model = task.build().eval()
    init_weights(model, 1)
    with torch.no_grad():
        together = task.outputs(model, task.batch(task.evaluation, np.arange(2)))
        first = task.outputs(model, task.batch(task.evaluation, np.array([0])))
    assert together.shape == (2, 3)
    assert together[0, 2] == float("-inf")
    torch.testing.assert_close(together[:1], first)
    assert task.evaluation.lengths.tolist() == [
        max(task.evaluation.texts.lengths[:2]),
        max(task.evaluation.texts.lengths[2:]),
    ]
    lines = [json.loads(line) for line in task.files(together.numpy())["predictions.jsonl"].splitlines()]
    assert [len(line["scores"]) for line in lines] == [2, 3]
    assert [len(line["choices"]) for line in lines] == [2, 3]
