"""Every task reads its official files, and names what is wrong with them by file and line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.tasks import TASKS
from pipeline.tasks.classification import Sst5Config
from pipeline.tasks.forms import UNLABELLED
from pipeline.tasks.glue import MrpcConfig, RteConfig
from pipeline.tasks.instructions import InstructionsConfig
from pipeline.tasks.metrics.entities import entities
from pipeline.tasks.rows import RowsTaskConfig
from pipeline.tasks.tagging import ConllNerConfig, ConlluPosConfig
from tests.pipeline.tasks.excerpts import EXCERPTS, objects, task_of, write

RACE = json.loads(EXCERPTS["race"].text("dev/high/1.txt"))
MULTIRC, RECORD = (json.loads(EXCERPTS[name].text("train.jsonl")) for name in ("multirc", "record"))
MRQA_PASSAGE = json.loads(EXCERPTS["mrqa"].text("NewsQA.jsonl").splitlines()[1])
SQUAD = EXCERPTS["squad"].text("train")
SWAG = EXCERPTS["swag"].text("train.csv").replace("\r\n", "\n")
SWAG_HEAD = SWAG.splitlines(keepends=True)[0]
STORY = EXCERPTS["cnn_dailymail"].text("dailymail/stories/ab.story")


@pytest.mark.parametrize("name", EXCERPTS)
def test_excerpt_of_the_release_gives_its_examples(tmp_path, name):
    excerpt = EXCERPTS[name]
    data = task_of(tmp_path, excerpt).load()
    assert list(data.train) == list(excerpt.train)
    if excerpt.evaluation is None:
        assert len(data.evaluation) == len(data.train)
    else:
        assert list(data.evaluation) == list(excerpt.evaluation)
    if excerpt.labels is not None:
        assert data.labels == excerpt.labels
    assert len(data.inputs) >= 2
    assert all(entry.fingerprint for entry in data.inputs)


@pytest.mark.parametrize("name", EXCERPTS)
def test_each_file_that_is_no_text_or_missing_is_refused(tmp_path, name):
    excerpt = EXCERPTS[name]
    task = task_of(tmp_path, excerpt)
    # The test set is not read where nothing is submitted.
    for file in (file for file in excerpt.files if not file.startswith("test_")):
        path = tmp_path / file
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            task.load()
        path.unlink()
        # Folders may hold any number of files.
        if "/" not in file:
            with pytest.raises(MissingInputError, match=str(tmp_path)):
                task.load()
        write(tmp_path, {file: excerpt.files[file]})


def test_every_task_on_published_files_has_an_excerpt():
    published = {
        kind for kind, task in TASKS.items() if not issubclass(task, RowsTaskConfig | InstructionsConfig)
    }
    assert {excerpt.kind for excerpt in EXCERPTS.values()} == published


def squad(**changes: Any) -> str:
    entry = {"id": "q7", "question": "?", "answers": [{"text": "b", "answer_start": 1}]} | changes
    return json.dumps({"data": [{"paragraphs": [{"context": "ab", "qas": [entry]}]}]})


def mrqa(**changes: Any) -> str:
    return objects({"header": {}}, {**MRQA_PASSAGE, "qas": [{**MRQA_PASSAGE["qas"][0], **changes}]})


def conllu(tag: str) -> str:
    return f"1\ta\t_\t{tag}\t_\t_\t_\t_\t_\t_\n"


SST2, STSB = "sentence\tlabel\nfine\t1\n", EXCERPTS["stsb"].text("train.tsv")
QQP_HEAD = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
FAR = [{"text": "x", "char_spans": [[28, 90]]}]
WITHOUT_LABELS = {
    **MULTIRC["passage"],
    "questions": [{"question": "W", "answers": [{"text": "A", "idx": 0}], "idx": 0}],
}


@pytest.mark.parametrize(
    ("name", "file", "content", "line", "said"),
    [
        ("sst2", "train.tsv", SST2 + "no label\n", 3, "1 columns"),
        ("sst2", "train.tsv", SST2 + "too\tmany\t1\n", 3, "3 columns"),
        ("sst2", "train.tsv", "sentence\tlabel\nfine\t2\n", 2, "'2', not one of 0, 1"),
        ("sst2", "train.tsv", SST2 + "\nfine\t1\n", 3, "blank"),
        ("sst2", "train.tsv", "text\tlabel\nfine\t1\n", 1, "`sentence`"),
        ("sst2", "dev.tsv", "index\tsentence\n0\tuneasy .\n", 1, "test sets have no labels"),
        ("stsb", "train.tsv", STSB.replace("3.800", "5.1"), 2, "'5.1', not between 0 and 5"),
        ("stsb", "train.tsv", STSB.replace("3.800", "high"), 2, "'high', no number"),
        ("stsb", "train.tsv", STSB.replace("3.800", "nan"), 2, "'nan', not between"),
        ("qqp", "train.tsv", QQP_HEAD + "1\t2\t3\tWhy?\tHow\n come?\t1\n", 2, "5 columns, 6 are needed"),
        ("mrpc of Microsoft", "dev_ids.tsv", "21\n", 1, "1 columns, 2 are needed"),
        ("mnli.jsonl", "multinli_1.0_dev_matched.jsonl",
            objects({"gold_label": "maybe", "sentence1": "A.", "sentence2": "B."}), 1, "'maybe'"),
        ("swag", "train.csv", SWAG.replace(",2\n", ",4\n"), 2, "'4'"),
        ("swag", "train.csv", SWAG + "0,v,1,x,a,b,gold,1,2,3,0\n", 4, "11 values, but 12 columns"),
        ("swag", "train.csv", SWAG.replace("label", "right"), 2, "`label`"),
        ("swag", "train.csv", SWAG_HEAD + '0,v,1,x,a,b,gold,"1,2,3,4,0\n', 2, "unexpected end of data"),
        ("boolq", "train.jsonl", objects({"question": "q", "passage": "p", "idx": 0}), 1, "no labels"),
        ("superglue_rte", "val.jsonl", objects({"premise": "A.", "hypothesis": "B.", "label": "yes"}), 1, "'yes'"),
        ("copa", "train.jsonl", objects({"premise": "p", "choice1": "a", "choice2": "b", "question": "why"}),
            1, "'why', not one of cause, effect"),
        ("multirc", "val.jsonl", objects({"idx": 0, "passage": WITHOUT_LABELS}), 1, "no labels"),
        ("multirc", "val.jsonl", objects({"idx": 0}), 1, "KeyError('passage')"),
        ("record", "train.jsonl", objects({**RECORD, "qas": [{**RECORD["qas"][0], "answers": []}]}), 1, "no answer"),
        ("record", "val.jsonl", objects({**RECORD, "qas": [{"query": "@placeholder", "idx": 0}]}), 1, "'answers'"),
        ("conll_ner", "train", "a O\nEU x O\n", 2, "3 columns, 2 as before are needed"),
        ("conll_ner", "train", "a\nb\n", 1, "1 columns, at least 2 are needed"),
        ("conll_ner", "train", "a O\nEU ORG\n", 2, "'ORG', not one of O, B-TYPE, I-TYPE"),
        ("conll_ner", "train", "a O\nEU B-ORG\n", 2, "may not follow 'O' in the scheme iob1"),
        ("conllu_pos", "train", "1\ta\tb\n", 1, "3 columns, 10 are needed"),
        ("conllu_pos", "train", conllu("X") + conllu("NN"), 2, "'NN', not one of ADJ"),
        ("mrqa", "NewsQA.jsonl", mrqa(detected_answers=FAR), 2, "q1: characters 28 to 90"),
        ("xsum", "test.jsonl", objects({"document": "a", "summary": "b"}, {"document": "a"}), 2, "`summary`"),
        ("cnn_dailymail.csv", "train.csv", "id,article\n1,a\n", 2, "`highlights`"),
    ],
)  # fmt: skip
def test_wrong_line_is_named(tmp_path, name, file, content, line, said):
    assert said in refusal(tmp_path, name, file, content, f"{tmp_path / file}, line {line}: ")


def refusal(folder: Path, name: str, file: str, content: str | bytes, place: str) -> str:
    """What is said of this content of a file of the excerpt, which must name the place."""
    task = task_of(folder, EXCERPTS[name])
    write(folder, {file: content})
    with pytest.raises(ConfigError) as raised:
        task.load()
    assert place in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("sst2", "train.tsv", "", "0 examples to train on"),
        ("race", "dev/high/1.txt", '{"article": "x"}', "KeyError('questions')"),
        ("race", "dev/high/1.txt", json.dumps(RACE | {"answers": ["A", "E"]}), "not in list"),
        ("race", "dev/high/1.txt", json.dumps(RACE | {"answers": ["A"]}), "shorter"),
        ("squad", "train", json.dumps({"data": [{"paragraphs": [{"context": "ab"}]}]}), "KeyError('qas')"),
        ("squad", "train", squad(answers=[{"text": "b", "answer_start": 0}]), "q7: the answer 'b' is not at"),
        ("squad", "train", squad(answers=[]), "q7: there is no answer"),
        ("mrqa", "NewsQA.jsonl", mrqa(detected_answers=[]), "q1: there is no answer"),
        ("mrqa", "NewsQA.jsonl.gz", EXCERPTS["mrqa"].files["NewsQA.jsonl.gz"][:-20], "ended"),
        ("xsum", "train.jsonl", "", "0 examples to train on and 1 to evaluate on"),
        ("cnn_dailymail", "dailymail/stories/ab.story", STORY.partition("@")[0], "no highlight"),
        ("cnn_dailymail", "dailymail/stories/ab.story", "@highlight\n\nA dog.\n", "no article"),
        ("translation", "c.ro", "Un câine.\n", "4 lines"),
    ],
)
def test_wrong_file_is_named(tmp_path, name, file, content, said):
    place = str(tmp_path / file).removesuffix("/1.txt")
    assert said in refusal(tmp_path, name, file, content, place)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("cola", {"path": "absent"}, ("absent/train.tsv", "CoLA.zip")),
        ("sst2", {"submit": True}, ("test.tsv", "SST-2.zip", "`submit`")),
        ("boolq", {"path": "absent"}, ("train.jsonl", "BoolQ.zip")),
        ("race", {"split": "test"}, ("test/*/*.txt",)),
        ("squad", {"train": "absent.json"}, ("absent.json", "SQuAD")),
    ],
)
def test_missing_file_is_named_with_where_to_get_it(tmp_path, name, settings, said):
    with pytest.raises(MissingInputError) as raised:
        task_of(tmp_path, EXCERPTS[name], **settings).load()
    assert all(part in str(raised.value) for part in said)


def test_stories_that_are_missing_are_counted(tmp_path):
    task = task_of(tmp_path, EXCERPTS["cnn_dailymail"])
    address = EXCERPTS["cnn_dailymail"].text("all_val.txt")
    write(tmp_path, {"all_val.txt": f"{address}{address.strip()}?\n"})
    with pytest.raises(MissingInputError, match=r"1 of .*all_val\.txt"):
        task.load()


@pytest.mark.parametrize(
    ("scheme", "content"),
    [
        ("bio", "a O\nEU I-ORG\n"),
        ("bio", "a B-LOC\nEU I-ORG\n"),
        ("bioes", "a B-ORG\nEU O\n"),
        ("bioes", "a O\nEU B-ORG\n"),
    ],
)
def test_tags_of_another_scheme_are_named_with_the_one_to_set(tmp_path, scheme, content):
    task = task_of(tmp_path, EXCERPTS["conll_ner"], scheme=scheme)
    with pytest.raises(ConfigError) as raised:
        task.load()
    assert "`scheme: iob1`" in raised.value.next_step
    write(tmp_path, {"train": content})
    with pytest.raises(ConfigError, match="train, line 2: "):
        task.load()


@pytest.mark.parametrize(
    ("kind", "file", "content"),
    [("sst2", "dev.tsv", SST2), ("race", "dev/high/1.txt", json.dumps(RACE | {"article": "It snowed."}))],
)
def test_changed_bytes_change_the_input_fingerprint(tmp_path, kind: str, file: str, content: str):
    task = task_of(tmp_path, EXCERPTS[kind])
    before = task.load().inputs
    write(tmp_path, {file: content})
    after = task.load().inputs
    assert before[0].fingerprint == after[0].fingerprint
    assert before[1].fingerprint != after[1].fingerprint


def test_mnli_is_submitted_with_the_diagnostic_set(tmp_path):
    (tmp_path / "ax.tsv").write_text("index\tsentence1\tsentence2\n0\tThe cat sat.\tThe cat did not sit.\n")
    config = task_of(tmp_path, EXCERPTS["mnli"], diagnostic="ax.tsv", submit=True)
    data = config.load()
    assert len(data.evaluation) == 4
    assert [(each.id, each.group) for each in data.test] == [
        ("0", "matched"),
        ("1", "matched"),
        ("0", "mismatched"),
        ("0", "diagnostic"),
    ]
    assert config.submission(data.test, np.eye(3)[[0, 1, 2, 2]]) == {
        "MNLI-m.tsv": b"index\tprediction\n0\tentailment\n1\tneutral\n",
        "MNLI-mm.tsv": b"index\tprediction\n0\tcontradiction\n",
        "AX.tsv": b"index\tprediction\n0\tcontradiction\n",
    }


def test_diagnostic_set_with_labels_is_scored_by_matthews(tmp_path):
    head = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    rows = "\t\tNegation\t\tArtificial\tThe cat sat.\tThe cat did not sit.\tcontradiction\n" * 2
    rows += "\t\tNegation\t\tArtificial\tA cat sat.\tA cat sat.\tentailment\n"
    (tmp_path / "ax.tsv").write_text(head + rows)
    config = task_of(tmp_path, EXCERPTS["mnli"], diagnostic="ax.tsv")
    data = config.load()
    assert len(data.evaluation) == 7
    measured = config.measure(data.evaluation, np.eye(3)[[2, 1, 2, 1, 2, 2, 0]])
    assert measured == {"accuracy_matched": 1, "accuracy_mismatched": 1, "diagnostic_matthews": 1}
    assert data.inputs[-1].uri == str(tmp_path / "ax.tsv")


@pytest.mark.parametrize(
    ("kind", "file", "rows", "first"),
    [
        ("cola", "CoLA.tsv", "index\tsentence\n7\tBill left.\n", "0"),
        ("sst2", "SST-2.tsv", "index\tsentence\n7\tuneasy .\n", "0"),
        ("mrpc", "MRPC.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n7\t1\t2\tA\tB\n", "0"),
        ("rte", "RTE.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n", "entailment"),
        ("wnli", "WNLI.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n", "0"),
        ("qnli", "QNLI.tsv", "index\tquestion\tsentence\n7\tA\tB\n", "entailment"),
        ("qqp", "QQP.tsv", "id\tquestion1\tquestion2\n7\tA\tB\n", "0"),
    ],
)
def test_predictions_of_the_test_set_are_submitted_under_its_numbers(tmp_path, kind, file, rows, first):
    write(tmp_path, {"test.tsv": rows})
    config = TASKS[kind](path=tmp_path, submit=True)
    paths, examples = config.split("test")
    assert [path.name for path in paths] == ["test.tsv"]
    assert [each.label for each in examples] == [UNLABELLED]
    expected = f"index\tprediction\n7\t{first}\n".encode()
    assert config.submission(examples, np.array([[1.0, 0.0]])) == {file: expected}


def test_data_sets_of_the_hub_give_what_the_official_files_give(tmp_path):
    rows = {"sentence1": ["A."], "sentence2": ["B."], "label": [1], "idx": [0]}
    features = datasets.Features(
        sentence1=datasets.Value("string"),
        sentence2=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "not_entailment"]),
        idx=datasets.Value("int32"),
    )
    splits = {"train": rows, "validation": rows, "test": rows | {"label": [-1], "idx": [5]}}
    saved = {name: datasets.Dataset.from_dict(split, features) for name, split in splits.items()}
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "saved"))
    files = tmp_path / "files/data"
    files.mkdir(parents=True)
    saved["train"].to_parquet(str(files / "train-00000-of-00001.parquet"))
    for name in ("validation", "test"):
        saved[name].to_json(str(files / f"{name}.jsonl"))
    for folder in ("saved", "files"):
        data = RteConfig(path=tmp_path / folder, submit=True).load()
        found = [(each.text_a, each.text_b, each.label) for each in (*data.train, *data.evaluation)]
        assert found == [("A.", "B.", 1)] * 2
        assert [(each.id, each.label) for each in data.test] == [("5", UNLABELLED)]
        assert len(data.inputs) == 3
    # MRPC's own files name its columns otherwise.
    (paraphrase,) = MrpcConfig(path=tmp_path / "files").load().train
    assert (paraphrase.text_a, paraphrase.text_b, paraphrase.label) == ("A.", "B.", 1)
    unlabelled = json.dumps({"sentence1": "A.", "sentence2": "B.", "label": -1}) + "\n"
    (files / "validation.jsonl").write_text(unlabelled)
    with pytest.raises(ConfigError, match=r"validation\.jsonl, line 1"):
        RteConfig(path=tmp_path / "files").load()
    (files / "validation.jsonl").unlink()
    with pytest.raises(MissingInputError, match="`validation`"):
        RteConfig(path=tmp_path / "files").load()


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("kind", "folder", "num_train", "num_evaluation", "num_test"),
    [
        ("cola", "CoLA", 8551, 1043, 1063),
        ("sst2", "SST-2", 67349, 872, 1821),
        ("mrpc", "MRPC", 3667, 408, None),  # one official training pair is missing from this copy
        ("rte", "RTE", 2490, 277, 3000),
        ("wnli", "WNLI", 635, 71, None),
        ("stsb", "STS-B", 5749, 1500, 1379),
    ],
)
def test_real_files_of_glue_give_the_published_numbers(
    corpora, kind, folder, num_train, num_evaluation, num_test
):
    task = TASKS[kind](path=corpora / "glue" / folder, submit=num_test is not None)
    data = task.load()
    assert (len(data.train), len(data.evaluation), len(data.test)) == (
        num_train,
        num_evaluation,
        num_test or 0,
    )
    assert task.regression or {example.label for example in data.evaluation} == {0, 1}
    assert all(example.text_a for example in (*data.train, *data.evaluation))
    assert len({example.id for example in data.evaluation}) == num_evaluation


@pytest.mark.corpora
def test_other_real_files_give_the_published_numbers(corpora, tmp_path):
    for name in ("msr_paraphrase_train.txt", "dev_ids.tsv"):
        (tmp_path / name).symlink_to(corpora / "glue/MRPC" / name)
    data = TASKS["mrpc"](path=tmp_path).load()
    assert (len(data.train), len(data.evaluation)) == (3668, 408)
    assert sum(int(each.label) for each in data.evaluation) == 279
    assert len(TASKS["qnli"](path=corpora / "glue/QNLI").split("dev")[1]) == 5463
    # The distribution of the development set (Socher et al. 2013, released data).
    trees = corpora / "sst5/dev.txt"
    labels = [each.label for each in Sst5Config(train=trees, evaluation=trees).load().train]
    assert [labels.count(label) for label in range(5)] == [139, 289, 229, 279, 165]
    (dev,), (test,) = (sorted((corpora / "wnut17").glob(f"emerging.{part}*")) for part in ("dev", "test"))
    data = ConllNerConfig(train=dev, evaluation=test).load()
    assert (len(data.train), len(data.evaluation)) == (1009, 1287)
    assert sum(len(entities(each.tags)) for each in data.evaluation) == 1079
    dev, test = (corpora / "ud-english-ewt" / f"en_ewt-ud-{part}.conllu" for part in ("dev", "test"))
    data = ConlluPosConfig(train=dev, evaluation=test).load()
    assert (len(data.train), len(data.evaluation)) == (2001, 2077)
    assert sum(len(each.words) for each in data.evaluation) == 25_094
