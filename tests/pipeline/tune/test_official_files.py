"""Files in the layout of the published releases, with all their columns and oddities, and sentences of our own."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.config.loading import validate
from pipeline.tune.config import FinetuneConfig


def task(kind: str, **settings: Any) -> Any:
    return validate(FinetuneConfig, {"tasks": {"own": {"kind": kind, **settings}}}, "here").tasks["own"]


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def tabbed(*rows: list[str]) -> list[str]:
    return ["\t".join(row) for row in rows]


PARSES = ["( A ( dog ran ) )", "( It barked )", "(ROOT (S A))", "(ROOT (S It))"]
PARSE_COLUMNS = [f"sentence{side}_{kind}" for kind in ("binary_parse", "parse") for side in (1, 2)]
MNLI = ["index", "promptID", "pairID", "genre", *PARSE_COLUMNS, "sentence1", "sentence2"]


def mnli_row(number: int, premise: str, *labels: str) -> list[str]:
    return [str(number), "3", "3e", "fiction", *PARSES, premise, "It barked.", *labels]


def test_glue_folder_of_mnli_has_12_columns_to_learn_from_and_16_to_score_on(tmp_path):
    train = [
        [*MNLI, "label1", "gold_label"],
        mnli_row(0, '"Odd, one quote.', "neutral", "neutral"),
        mnli_row(1, "Even\u2028so.", "entailment", "entailment"),
    ]
    votes = [f"label{number}" for number in range(1, 6)]
    dev = [[*MNLI, *votes, "gold_label"], mnli_row(0, "A dog ran.", *["contradiction"] * 6)]
    write(tmp_path / "train.tsv", *tabbed(*train))
    for name in ("dev_matched", "dev_mismatched"):
        write(tmp_path / f"{name}.tsv", *tabbed(*dev), end="\r\n")
    data = task("mnli", path=tmp_path).load()
    assert [(each.text_a, each.label) for each in data.train] == [
        ('"Odd, one quote.', 1),
        ("Even\u2028so.", 0),
    ]
    assert [(each.label, each.group) for each in data.evaluation] == [(2, "matched"), (2, "mismatched")]


SNLI = ["gold_label", *PARSE_COLUMNS, "sentence1", "sentence2", "captionID", "pairID"]
VOTES = [f"label{number}" for number in range(1, 6)]


def snli_objects() -> list[dict[str, Any]]:
    return [
        {
            "annotator_labels": [label],
            "captionID": "1.jpg#0",
            "gold_label": label,
            "pairID": f"1.jpg#0r{number}",
            **dict(zip(PARSE_COLUMNS, PARSES, strict=True)),
            "sentence1": "A dog ran.",
            "sentence2": f"It barked {number} times.",
        }
        for number, label in enumerate(("neutral", "-", "contradiction"))
    ]


def snli_lines() -> list[str]:
    return tabbed(
        [*SNLI, *VOTES],
        *(
            [each[column] for column in SNLI] + [each["gold_label"].strip("-"), "", "", "", ""]
            for each in snli_objects()
        ),
    )


@pytest.mark.parametrize("name", ["snli_1.0_{}.jsonl", "snli_1.0_{}.txt", "{}.tsv"])
def test_snli_is_read_from_each_of_its_releases_without_pairs_that_have_no_label(tmp_path, name):
    lines = [json.dumps(each) for each in snli_objects()] if name.endswith("jsonl") else snli_lines()
    for split in ("train", "dev"):
        write(tmp_path / name.format(split), *lines)
    data = task("snli", path=tmp_path).load()
    assert [(each.text_b, each.label) for each in data.train] == [
        ("It barked 0 times.", 1),
        ("It barked 2 times.", 2),
    ]
    with pytest.raises(MissingInputError, match=r"snli_1\.0_test\.jsonl"):
        task("snli", path=tmp_path, split="test").load()


@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_multinli_of_its_own_release_is_read(tmp_path, suffix):
    lines = [json.dumps(each) for each in snli_objects()] if suffix == "jsonl" else snli_lines()
    for stem in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path / f"multinli_1.0_{stem}.{suffix}", *lines)
    data = task("mnli", path=tmp_path).load()
    assert [each.label for each in data.train] == [1, 2]
    assert [each.group for each in data.evaluation] == ["matched"] * 2 + ["mismatched"] * 2


def test_qqp_and_qnli_have_quotes_that_quote_nothing(tmp_path):
    rows = [
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        ["133273", "213221", "213222", 'What is "it?', '"""Why""" ?', "1"],
    ]
    for name in ("train", "dev"):
        write(tmp_path / "QQP" / f"{name}.tsv", *tabbed(*rows))
    (example,) = task("qqp", path=tmp_path / "QQP").load().train
    assert (example.text_a, example.text_b, example.label) == ('What is "it?', '"""Why""" ?', 1)
    rows = [
        ["index", "question", "sentence", "label"],
        ["0", "Who ran?", 'The "dog', "entailment"],
        ["1", "Who?", "It", "not_entailment"],
    ]
    for name in ("train", "dev"):
        write(tmp_path / "QNLI" / f"{name}.tsv", *tabbed(*rows), "")
    data = task("qnli", path=tmp_path / "QNLI").load()
    assert [(each.text_b, each.label) for each in data.train] == [('The "dog', 0), ("It", 1)]


def test_swag_has_its_index_column_and_the_columns_of_its_full_release_beside_it(tmp_path):
    columns = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    columns += [f"ending{number}" for number in range(4)] + ["label"]
    row = [
        "0",
        "anetv_x",
        "3416",
        "A dog runs. It",
        "A dog runs.",
        "It",
        "gold",
        "barks, loud",
        "sits",
        "a",
        "b",
        "0",
    ]
    for name in ("train.csv", "val.csv"):
        with (tmp_path / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([columns, row])
    (example,) = task("swag", path=tmp_path).load().train
    assert (example.pairs[0], example.label) == (("A dog runs.", "It barks, loud"), 0)


RACE = {
    "answers": ["A", "D"],
    "options": [["run", "sit", "eat", "bark"], ["1", "2", "3", "4"]],
    "questions": ["What did the dog do?", "It barked _ times, and _ ."],
    "article": "A dog ran.\n\nIt barked.",
    "id": "high1.txt",
}


def test_race_is_one_object_in_each_text_file(tmp_path):
    for split in ("train", "dev"):
        for school in ("middle", "high"):
            (tmp_path / split / school).mkdir(parents=True)
            write(tmp_path / split / school / "1.txt", json.dumps(RACE))
    data = task("race", path=tmp_path).load()
    assert [each.label for each in data.train] == [0, 3, 0, 3]
    assert data.train[1].pairs[3] == ("A dog ran. It barked.", "It barked 4 times, and 4 .")
    for answer in ("", "AB", "E"):
        write(tmp_path / "dev/high/1.txt", json.dumps(RACE | {"answers": ["A", answer]}))
        with pytest.raises(ConfigError, match=r"dev/high/1\.txt is not JSON as RACE has it"):
            task("race", path=tmp_path).load()
    write(tmp_path / "dev/high/1.txt", json.dumps(RACE | {"answers": [], "options": [], "questions": []}))
    (tmp_path / "dev/middle/1.txt").unlink()
    with pytest.raises(ConfigError, match="4 examples to train on and 0 to evaluate on"):
        task("race", path=tmp_path).load()


SUPERGLUE: dict[str, dict[str, Any]] = {
    "boolq": {"question": "did the dog bark", "passage": "Dog -- It barked.", "idx": 0, "label": True},
    "cb": {"premise": "It barked.", "hypothesis": "it ran", "label": "neutral", "idx": 0},
    "copa": {
        "premise": "The dog barked.",
        "choice1": "It saw a cat.",
        "choice2": "It slept.",
        "question": "cause",
        "label": 0,
        "idx": 0,
    },
    "superglue_rte": {"premise": "It barked.", "hypothesis": "It ran.", "label": "not_entailment", "idx": 0},
    "wic": {
        "word": "bark",
        "sentence1": "The bark of a tree.",
        "sentence2": "Dogs bark.",
        "idx": 0,
        "label": False,
        "start1": 4,
        "start2": 5,
        "end1": 8,
        "end2": 9,
        "version": 1.1,
    },
    "multirc": {
        "idx": 0,
        "version": 1.1,
        "passage": {
            "text": "A dog ran. It barked.",
            "questions": [
                {
                    "question": "Who?",
                    "answers": [
                        {"text": "A dog", "idx": 0, "label": 1},
                        {"text": "A cat", "idx": 1, "label": 0},
                    ],
                    "idx": 0,
                }
            ],
        },
    },
    "record": {
        "source": "Daily mail",
        "passage": {
            "text": "Rex ran to Bonn.\n@highlight\nRex barked.",
            "entities": [{"start": 0, "end": 2}, {"start": 11, "end": 14}, {"start": 28, "end": 30}],
        },
        "qas": [
            {
                "query": "In Bonn, @placeholder barked.",
                "answers": [{"start": 0, "end": 2, "text": "Rex"}, {"start": 28, "end": 30, "text": "Rex"}],
                "idx": 0,
            }
        ],
        "idx": 0,
    },
}


@pytest.mark.parametrize("kind", SUPERGLUE)
def test_superglue_is_read_as_released_and_its_test_file_says_that_it_has_no_labels(tmp_path, kind):
    row = SUPERGLUE[kind]
    for name in ("train.jsonl", "val.jsonl"):
        write(tmp_path / name, json.dumps(row), "")
    data = task(kind, path=tmp_path).load()
    assert [each.label for each in data.train] == {
        "multirc": [1, 0],
        "cb": [2],
        "superglue_rte": [1],
        "boolq": [1],
    }.get(kind, [0])
    unlabelled = json.loads(json.dumps({key: value for key, value in row.items() if key != "label"}))
    for question in unlabelled.get("passage", {}).get("questions", ()) if kind == "multirc" else ():
        for answer in question["answers"]:
            del answer["label"]
    for query in unlabelled.get("qas", ()):
        del query["answers"]
    write(tmp_path / "val.jsonl", json.dumps(unlabelled))
    with pytest.raises(
        ConfigError, match=r"val\.jsonl, line 1: .*(files of test sets have no labels|no passage as ReCoRD)"
    ):
        task(kind, path=tmp_path).load()


def test_mrqa_has_a_header_and_may_be_gzipped(tmp_path):
    context = "[TLE] Dogs [PAR] Rex ran to Bonn."
    question = {
        "answers": ["Bonn", "bonn"],
        "question": "Where did Rex run?",
        "id": "x",
        "qid": "q1",
        "question_tokens": [["Where", 0]],
        "detected_answers": [{"text": "Bonn", "char_spans": [[28, 31]], "token_spans": [[6, 6]]}],
    }
    passage = {"id": "", "context": context, "qas": [question], "context_tokens": [["[TLE]", 0]]}
    lines = [json.dumps({"header": {"dataset": "NewsQA", "split": "train"}}), json.dumps(passage)]
    path = tmp_path / "NewsQA.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("\n".join(lines) + "\n")
    plain = write(tmp_path / "NewsQA.jsonl", *lines)
    data = task("mrqa", train=path, evaluation=plain).load()
    assert data.train == data.evaluation
    assert (data.train[0].answers[0].text, data.train[0].right) == ("Bonn", ("Bonn", "bonn"))


STORY = [
    "(CNN) -- A dog ran",
    "",
    "It barked .",
    "",
    "@highlight",
    "",
    "Dog runs",
    "",
    "@highlight",
    "",
    "Dog barks !",
]


def test_stories_of_cnn_are_read_from_folders_and_from_files_of_addresses(tmp_path):
    address = "http://web.archive.org/web/2015id_/http://www.cnn.com/dog.html"
    name = hashlib.sha1(address.encode()).hexdigest()
    write(tmp_path / "cnn/stories" / f"{name}.story", *STORY)
    write(tmp_path / "dailymail/stories" / "ab.story", *STORY)
    addresses = write(tmp_path / "all_val.txt", address)
    data = task("cnn_dailymail", train=tmp_path / "dailymail", evaluation=addresses, stories=tmp_path).load()
    (example,) = data.evaluation
    assert (example.id, example.source) == (name, "(CNN) -- A dog ran . It barked .")
    assert example.target == "Dog runs .\nDog barks !"
    assert [each.id for each in data.train] == ["ab"]
    assert len({entry.fingerprint for entry in data.inputs}) == 2
    write(tmp_path / "all_val.txt", address, address + "?")
    with pytest.raises(MissingInputError, match=r"1 of the 2 stories of .*all_val\.txt are not below"):
        task("cnn_dailymail", train=tmp_path / "dailymail", evaluation=addresses, stories=tmp_path).load()
    write(tmp_path / "dailymail/stories" / "ab.story", *STORY[:3])
    with pytest.raises(ConfigError, match=r"ab\.story has no highlight"):
        task("cnn_dailymail", train=tmp_path / "dailymail", evaluation=addresses, stories=tmp_path).load()


def test_summaries_in_the_columns_of_datasets_are_read(tmp_path):
    path = tmp_path / "train.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [
                ["id", "article", "highlights"],
                ["f001", 'He said "no", and left.', "A man left .\nHe said no ."],
            ]
        )
    (example,) = task("cnn_dailymail", train=path, evaluation=path).load().train
    assert (example.id, example.target) == ("f001", "A man left .\nHe said no .")


def test_parallel_files_are_cut_at_line_feeds_only(tmp_path):
    english = write(tmp_path / "corpus.en", "\ufeffA dog\u2028ran.", "It\x85barked.", "", "Yes.")
    romanian = write(tmp_path / "corpus.ro", "Un câine.", "A lătrat.", "Nimic.", "Da.", end="\r\n")
    settings = {"train_source": english, "train_target": romanian, "source": english, "target": romanian}
    pairs = task("translation", **settings).load().train
    assert [(each.source, each.target) for each in pairs] == [
        ("A dog\u2028ran.", "Un câine."),
        ("It\x85barked.", "A lătrat."),
        ("Yes.", "Da."),
    ]
    write(romanian, "Un câine.")
    with pytest.raises(ConfigError, match=r"corpus\.en has 4 lines, but .*corpus\.ro has 1"):
        task("translation", **settings).load()


CONLL = [
    "-DOCSTART- -X- O O",
    "",
    "Rex NNP I-NP I-PER",
    "Bonn NNP I-NP B-PER",
    "of IN I-PP O",
    "Bonn NNP I-NP I-LOC",
    "",
    "-DOCSTART- -X- O O",
    "",
    "EU NNP I-NP I-ORG",
]


def test_conll_2003_marks_entities_by_iob1(tmp_path):
    path = write(tmp_path / "eng.train", *CONLL)
    data = task("conll_ner", train=path, evaluation=path, scheme="iob1").load()
    assert [each.tags for each in data.train] == [("B-PER", "B-PER", "O", "B-LOC"), ("B-ORG",)]
    assert [each.words[0] for each in data.train] == ["Rex", "EU"]
    with pytest.raises(
        ConfigError, match=r"(?s)eng\.train, line 3: the tag 'I-PER' .* scheme bio\..*`scheme: iob1`"
    ):
        task("conll_ner", train=path, evaluation=path).load()


CONLLU = """# newdoc id = weblog-1
# sent_id = weblog-1-0001
# text = Don't bark.
1-2	Don't	_	_	_	_	_	_	_	_
1	Do	do	AUX	VB	Mood=Imp	3	aux	3:aux	_
2	n't	not	PART	RB	_	3	advmod	3:advmod	_
3	bark	bark	VERB	VB	_	0	root	0:root	SpaceAfter=No
3.1	it	it	PRON	PRP	_	_	_	3:obj	CopyOf=3
4	.	.	PUNCT	.	_	3	punct	3:punct	_
"""


def test_conll_u_has_lines_of_several_words_and_of_words_that_are_not_written(tmp_path):
    path = write(tmp_path / "en-ud-train.conllu", CONLLU)
    (sentence,) = task("conllu_pos", train=path, evaluation=path).load().train
    assert sentence.words == ("Do", "n't", "bark", ".")
    assert sentence.tags == ("AUX", "PART", "VERB", "PUNCT")
