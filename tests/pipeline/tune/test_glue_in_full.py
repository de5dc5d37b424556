"""GLUE's regression, its tasks with several evaluation sets, its test sets, and other layouts of the same data."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError, MissingInputError
from models.classifiers import SequenceClassifier
from models.config import TransformerConfig
from models.initialization import init_weights
from pipeline.tune.forms.base import TaskContext
from pipeline.tune.forms.classification.settings import UNLABELLED
from pipeline.tune.forms.classification.task import ClassificationTask
from pipeline.tune.run import finetune
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.tasks.glue import (
    ColaConfig,
    MrpcConfig,
    QnliConfig,
    QqpConfig,
    RteConfig,
    Sst2Config,
    StsbConfig,
    WnliConfig,
)
from pipeline.tune.tasks.mnli import MnliConfig
from pipeline.tune.tokenizer import TextTokenizer
from tests.pipeline.tune.conftest import WORDS

STSB_HEAD = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STSB = f"{STSB_HEAD}\tscore\n0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tA jet.\t3.800\n"
STSB_TEST = f"{STSB_HEAD}\n0\tmain-captions\tMSRvid\t2012test\t0024\tnone\tnone\tA girl.\tA boy.\n"
QQP_HEAD = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
MNLI_COLUMNS = [
    "index",
    "promptID",
    "pairID",
    "genre",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
    "sentence1",
    "sentence2",
]


def mnli_line(index: int, premise: str, hypothesis: str, *labels: str) -> str:
    values = [str(index), "1", "1n", "fiction", "( a )", "( b )", "(ROOT a)", "(ROOT b)", premise, hypothesis]
    return "\t".join([*values, *labels]) + "\n"


def mnli_file(rows: str, *labels: str) -> str:
    return "\t".join([*MNLI_COLUMNS, *labels]) + "\n" + rows


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.tsv").write_text(content, encoding="utf-8")
    return folder


def write_mnli(folder: Path) -> Path:
    train = mnli_file(
        mnli_line(0, 'He said "yes', "He spoke.", "entailment", "entailment"), "label1", "gold_label"
    )
    votes = [f"label{number}" for number in range(1, 6)] + ["gold_label"]

    def dev(label: str) -> str:
        return mnli_file(
            mnli_line(0, "A.", "B.", *[label] * 6) + mnli_line(1, "C.", "D.", *[label] * 6), *votes
        )

    return write(
        folder,
        train=train,
        dev_matched=dev("neutral"),
        dev_mismatched=dev("contradiction"),
        test_matched=mnli_file(mnli_line(0, "E.", "F.") + mnli_line(1, "G.", "H.")),
        test_mismatched=mnli_file(mnli_line(0, "I.", "J.")),
    )


def test_similarity_is_a_number_from_zero_to_five(tmp_path):
    data = StsbConfig(path=write(tmp_path / "STS-B", train=STSB, dev=STSB)).load()
    assert [(e.text_a, e.text_b, e.label) for e in data.train] == [("A plane.", "A jet.", 3.8)]
    assert data.labels == ()


@pytest.mark.parametrize(
    ("label", "said"), [("5.1", "'5.1', not between 0 and 5"), ("high", "no number"), ("nan", "not between")]
)
def test_similarity_outside_of_its_bounds_is_named_by_line(tmp_path, label, said):
    folder = write(tmp_path / "STS-B", train=STSB.replace("3.800", label), dev=STSB)
    with pytest.raises(ConfigError, match=rf"train\.tsv, line 2: the label in column `score` is .*{said}"):
        StsbConfig(path=folder).load()


def write_similarities(folder: Path, count: int) -> Path:
    """Pairs that share 0 to 4 words; the number is the similarity."""
    rows = []
    for number in range(count):
        shared = number % 5
        first = [WORDS[(number + k) % 6] for k in range(4)]
        second = [*first[:shared], *[WORDS[6 + (number + k) % 6] for k in range(4 - shared)]]
        rows.append(f"{number}\t-\t-\t-\t-\t-\t-\t{' '.join(first)}\t{' '.join(second)}\t{shared:.3f}\n")
    content = f"{STSB_HEAD}\tscore\n{''.join(rows)}"
    return write(folder, train=content, dev=content, test=STSB_TEST)


def test_regression_learns_numbers(make_config, checkpoint, tmp_path, recorder):
    config = make_config(
        tasks={"similarity": {"kind": "stsb", "path": write_similarities(tmp_path / "STS-B", 60)}},
        training={"epochs": 30, "batch_size": 10, "lr": 5e-3, "max_length": 16, "scored": "last_epoch"},
        seeds=[1],
    )
    (score,) = finetune(config, checkpoint, track=recorder)
    assert score.main_metric == "pearson"
    assert score.metrics["pearson"] > 0.9
    assert score.metrics["spearman"] > 0.9


def test_loss_of_a_regression_is_the_squared_error(tmp_path, tokenizer_path):
    config = StsbConfig(path=write_similarities(tmp_path / "STS-B", 10), submit=True)
    network = TransformerConfig(
        vocab_size=32, num_layers=1, hidden_size=32, num_heads=2, intermediate_size=64, max_positions=32
    )
    tokenizer = TextTokenizer(tokenizer_path)
    task = ClassificationTask.prepare(
        TaskContext(config, config.load(), TrainingConfig(max_length=16), network, tokenizer)
    )
    model = SequenceClassifier(network, 1).eval()
    init_weights(model, 1)
    batch = task.batch(task.train, np.arange(4))
    predicted = task.outputs(model, batch).detach().numpy()
    assert predicted.shape == (4, 1)
    expected = ((predicted[:, 0] - np.array([0, 1, 2, 3])) ** 2).sum()
    assert float(task.loss(model, batch).detach()) == pytest.approx(expected, rel=1e-5)
    lines = [json.loads(line) for line in task.files(np.full((10, 1), 2.5))["predictions.jsonl"].splitlines()]
    texts = {"text": task.examples[1].text_a, "text_b": task.examples[1].text_b}
    assert lines[1] == {"id": "dev-3", "label": 1.0, "prediction": 2.5} | texts
    assert task.test is not None
    assert len(task.test) == 1
    assert task.submission(np.array([[5.2]])) == {"STS-B.tsv": b"index\tprediction\n0\t5.000\n"}
    assert task.submission(np.array([[-0.1]])) == {"STS-B.tsv": b"index\tprediction\n0\t0.000\n"}


def test_mnli_scores_both_evaluation_sets(tmp_path):
    config = MnliConfig(path=write_mnli(tmp_path / "MNLI"))
    data = config.load()
    assert data.train[0].text_a == 'He said "yes'
    assert data.labels == ("entailment", "neutral", "contradiction")
    assert [each.group for each in data.evaluation] == ["matched"] * 2 + ["mismatched"] * 2
    outputs = np.eye(3)[[1, 1, 2, 0]]
    assert config.measure(data.evaluation, outputs) == {"accuracy_matched": 1.0, "accuracy_mismatched": 0.5}
    assert data.test == ()


def test_mnli_is_submitted_with_the_diagnostic_set(tmp_path):
    diagnostic = tmp_path / "diagnostic.tsv"
    diagnostic.write_text("index\tsentence1\tsentence2\n0\tThe cat sat.\tThe cat did not sit.\n")
    config = MnliConfig(path=write_mnli(tmp_path / "MNLI"), diagnostic=diagnostic, submit=True)
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
    diagnostic = tmp_path / "diagnostic-full.tsv"
    diagnostic.write_text(head + rows)
    config = MnliConfig(path=write_mnli(tmp_path / "MNLI"), diagnostic=diagnostic)
    data = config.load()
    assert len(data.evaluation) == 7
    measured = config.measure(data.evaluation, np.eye(3)[[1, 1, 2, 2, 2, 2, 0]])
    assert measured == {"accuracy_matched": 1, "accuracy_mismatched": 1, "diagnostic_matthews": 1}
    assert data.inputs[-1].uri == str(diagnostic)


def test_json_lines_of_multinli_leave_out_pairs_without_agreement(tmp_path):
    def rows(*labels: str) -> str:
        return "".join(
            json.dumps({"gold_label": label, "sentence1": "A.", "sentence2": "B.", "genre": "x"}) + "\n"
            for label in labels
        )

    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / f"multinli_1.0_{name}.jsonl").write_text(rows("neutral", "-", "entailment"))
    data = MnliConfig(path=tmp_path).load()
    assert [each.label for each in data.train] == [1, 0]
    (tmp_path / "multinli_1.0_dev_matched.jsonl").write_text(rows("maybe"))
    with pytest.raises(
        ConfigError, match=r"dev_matched\.jsonl, line 1: the label `gold_label` is 'maybe', not one"
    ):
        MnliConfig(path=tmp_path).load()


def test_questions_of_qqp_and_qnli_are_read_by_their_columns(tmp_path):
    qqp = QQP_HEAD + "402555\t536040\t536041\tWhy?\tHow come?\t1\n"
    test = "id\tquestion1\tquestion2\n0\tWho?\tWhich one?\n"
    config = QqpConfig(path=write(tmp_path / "QQP", train=qqp, dev=qqp, test=test), submit=True)
    data = config.load()
    assert [(e.text_a, e.text_b, e.label) for e in data.train] == [("Why?", "How come?", 1)]
    assert config.submission(data.test, np.array([[0.0, 1.0]])) == {"QQP.tsv": b"index\tprediction\n0\t1\n"}
    qnli = "index\tquestion\tsentence\tlabel\n0\tWhen?\tIn 1990.\tentailment\n"
    data = QnliConfig(path=write(tmp_path / "QNLI", train=qnli, dev=qnli)).load()
    assert [(e.text_a, e.text_b, e.label) for e in data.train] == [("When?", "In 1990.", 0)]


def test_question_with_a_line_end_in_it_is_refused_by_line(tmp_path):
    broken = QQP_HEAD + "1\t2\t3\tWhy?\tHow\n come?\t1\n"
    with pytest.raises(ConfigError, match=r"train\.tsv, line 2: 5 columns, 6 are needed"):
        QqpConfig(path=write(tmp_path / "QQP", train=broken, dev=broken)).load()


@pytest.mark.parametrize(
    ("kind", "file", "rows", "first"),
    [
        (ColaConfig, "CoLA.tsv", "index\tsentence\n7\tBill left.\n", "0"),
        (Sst2Config, "SST-2.tsv", "index\tsentence\n7\tuneasy .\n", "0"),
        (MrpcConfig, "MRPC.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n7\t1\t2\tA\tB\n", "0"),
        (RteConfig, "RTE.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n", "entailment"),
        (WnliConfig, "WNLI.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n", "0"),
        (QnliConfig, "QNLI.tsv", "index\tquestion\tsentence\n7\tA\tB\n", "entailment"),
    ],
)
def test_predictions_of_the_test_set_are_submitted_under_its_numbers(tmp_path, kind, file, rows, first):
    config = kind(path=write(tmp_path / "task", test=rows), submit=True)
    paths, examples = config.test_split("test")
    assert [path.name for path in paths] == ["test.tsv"]
    assert [each.label for each in examples] == [UNLABELLED]
    expected = f"index\tprediction\n7\t{first}\n".encode()
    assert config.submission(examples, np.array([[1.0, 0.0]])) == {file: expected}


def test_test_set_in_place_of_the_evaluation_set_is_recognised(tmp_path):
    train = "sentence\tlabel\nfine\t1\n"
    folder = write(tmp_path / "SST-2", train=train, dev="index\tsentence\n0\tuneasy .\n")
    with pytest.raises(
        ConfigError, match=r"dev\.tsv, line 1: there is no column `label` .* files of test sets"
    ):
        Sst2Config(path=folder).load()


def test_missing_test_set_is_only_asked_for_to_be_submitted(tmp_path):
    train = "sentence\tlabel\nfine\t1\n"
    folder = write(tmp_path / "SST-2", train=train, dev=train)
    assert Sst2Config(path=folder).load().test == ()
    with pytest.raises(MissingInputError, match=r"test\.tsv.*\n.*SST-2\.zip.*leave `submit` out"):
        Sst2Config(path=folder, submit=True).load()


def test_original_files_of_mrpc_are_split_by_the_list_of_pairs_that_glue_made(tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    (tmp_path / "msr_paraphrase_train.txt").write_text(
        f'{head}\r\n1\t11\t12\tA .\tB .\r\n0\t21\t22\tC .\t"D .\r\n1\t31\t32\tE .\tF .\r\n', newline=""
    )
    (tmp_path / "dev_ids.tsv").write_text("21\t22\n99\t98\n")
    data = MrpcConfig(path=tmp_path).load()
    assert [(each.text_a, each.text_b) for each in data.evaluation] == [("C .", '"D .')]
    assert [(each.text_a, each.label) for each in data.train] == [("A .", 1), ("E .", 1)]
    (tmp_path / "dev_ids.tsv").write_text("21\n")
    with pytest.raises(ConfigError, match=r"dev_ids\.tsv, line 1: 1 columns, 2 are needed"):
        MrpcConfig(path=tmp_path).load()


def test_data_sets_of_the_hub_give_what_the_official_files_give(tmp_path):
    rows = {"sentence1": ["A."], "sentence2": ["B."], "label": [1], "idx": [0]}
    test = rows | {"label": [-1], "idx": [5]}
    features = datasets.Features(
        sentence1=datasets.Value("string"),
        sentence2=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "not_entailment"]),
        idx=datasets.Value("int32"),
    )
    saved = datasets.DatasetDict(
        {
            "train": datasets.Dataset.from_dict(rows, features),
            "validation": datasets.Dataset.from_dict(rows, features),
            "test": datasets.Dataset.from_dict(test, features),
        }
    )
    saved.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "files" / "data").mkdir(parents=True)
    saved["train"].to_parquet(str(tmp_path / "files/data/train-00000-of-00001.parquet"))
    saved["validation"].to_json(str(tmp_path / "files/data/validation.jsonl"))
    saved["test"].to_json(str(tmp_path / "files/data/test.jsonl"))
    for folder in ("saved", "files"):
        data = RteConfig(path=tmp_path / folder, submit=True).load()
        assert [(e.text_a, e.text_b, e.label) for e in (*data.train, *data.evaluation)] == [
            ("A.", "B.", 1)
        ] * 2
        assert [(e.id, e.label) for e in data.test] == [("5", UNLABELLED)]
        assert len(data.inputs) == 3
    (tmp_path / "files/data/validation.jsonl").write_text(json.dumps({**rows, "label": -1}) + "\n")
    with pytest.raises(ConfigError, match=r"validation\.jsonl, line 1: .*"):
        RteConfig(path=tmp_path / "files").load()
    (tmp_path / "files/data/validation.jsonl").write_text(
        json.dumps({"sentence1": "A.", "sentence2": "B.", "label": -1}) + "\n"
    )
    with pytest.raises(
        ConfigError, match=r"line 1: the label is -1, not from 0 to 1; test sets have no labels"
    ):
        RteConfig(path=tmp_path / "files").load()
    (tmp_path / "files/data/validation.jsonl").unlink()
    with pytest.raises(MissingInputError, match="has no split `validation`"):
        RteConfig(path=tmp_path / "files").load()


def test_paraphrases_of_the_hub_have_the_columns_of_all_pairs(tmp_path):
    line = json.dumps({"sentence1": "A.", "sentence2": "B.", "label": 0, "idx": 0}) + "\n"
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(line)
    data = MrpcConfig(path=tmp_path).load()
    assert [(e.text_a, e.text_b, e.label) for e in data.train] == [("A.", "B.", 0)]


@pytest.mark.corpora
def test_real_files_give_the_published_numbers(corpora: Path, tmp_path):
    data = StsbConfig(path=corpora / "glue/STS-B", submit=True).load()
    assert (len(data.train), len(data.evaluation), len(data.test)) == (5749, 1500, 1379)
    for name in ("msr_paraphrase_train.txt", "dev_ids.tsv"):
        (tmp_path / name).symlink_to(corpora / "glue/MRPC" / name)
    data = MrpcConfig(path=tmp_path).load()
    assert (len(data.train), len(data.evaluation)) == (3668, 408)
    assert sum(int(each.label) for each in data.evaluation) == 279
    assert len(QnliConfig(path=corpora / "glue/QNLI").split("dev")[1]) == 5463
    for kind, folder, count in (
        (ColaConfig, "CoLA", 1063),
        (Sst2Config, "SST-2", 1821),
        (RteConfig, "RTE", 3000),
    ):
        assert len(kind(path=corpora / "glue" / folder).test_split("test")[1]) == count
