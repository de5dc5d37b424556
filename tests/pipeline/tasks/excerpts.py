"""Task files in the layout of the published releases, with all their columns and oddities, and sentences of our own;
and the examples that are read from them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.loading import validate
from pipeline.tasks.forms import Answer, Choices, Example, Question, TaggedSentence, TextPair
from pipeline.tasks.task import TaskConfig
from pipeline.tune.config import FinetuneConfig

PATHS = {"path", "train", "evaluation", "diagnostic", "stories"}
PATHS |= {"train_source", "train_target", "source", "target"}
"""Settings that name files or folders."""


@dataclass(frozen=True)
class Excerpt:
    """A few lines of a task's files."""

    kind: str
    files: Mapping[str, str | bytes]
    """By names relative to the task's folder."""
    train: Sequence[Any]
    """The examples to learn from, in order."""
    evaluation: Sequence[Any] | None = None
    """The examples to score on; None where a test does not care."""
    labels: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: {"path": "."})
    """Of the task; paths relative to its folder."""


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def task_of(folder: Path, excerpt: Excerpt, **settings: Any) -> TaskConfig:
    """The task on the files of an excerpt, which are written to `folder`."""
    write(folder, excerpt.files)
    named = {**excerpt.settings, **settings}
    located = {name: folder / value if name in PATHS else value for name, value in named.items()}
    task = {"kind": excerpt.kind, **located}
    return validate(FinetuneConfig, {"tasks": {"own": task}}, "here").tasks["own"]


def objects(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def both(content: str | bytes, *names: str) -> dict[str, str | bytes]:
    return dict.fromkeys(names, content)


def glue(train: str | bytes, dev: str | bytes | None = None) -> dict[str, str | bytes]:
    return {"train.tsv": train, "dev.tsv": train if dev is None else dev}


def superglue(kind: str, train: Sequence[Any], *rows: Any, labels: tuple[str, ...] = ()) -> Excerpt:
    # A blank line is at the end of some files.
    return Excerpt(kind, both(objects(*rows) + "\n", "train.jsonl", "val.jsonl"), train, labels=labels)


PARSES = ("( A ( dog ran ) )", "( It barked )", "(ROOT (S A))", "(ROOT (S It))")
PARSE_COLUMNS = tuple(f"sentence{side}_{kind}" for kind in ("binary_parse", "parse") for side in (1, 2))
VOTES = tuple(f"label{number}" for number in range(1, 6))
MNLI = ("index", "promptID", "pairID", "genre", *PARSE_COLUMNS, "sentence1", "sentence2")


def mnli(votes: Sequence[str], *rows: tuple[str, str]) -> str:
    """Pairs of premise and label; none in a test file."""
    lines = [(*MNLI, *votes)]
    for number, (premise, label) in enumerate(rows):
        lines.append(
            (str(number), "3", "3e", "fiction", *PARSES, premise, "It barked.", *[label] * len(votes))
        )
    return "".join("\t".join(line) + "\n" for line in lines)


MNLI_FILES: dict[str, str | bytes] = {
    "train.tsv": mnli(
        ("label1", "gold_label"), ('"Odd, one quote.', "neutral"), ("Even\u2028so.", "entailment")
    ),
    **both(
        mnli((*VOTES, "gold_label"), ("A dog ran.", "contradiction"), ("A cat.", "neutral")).replace(
            "\n", "\r\n"
        ),
        "dev_matched.tsv",
        "dev_mismatched.tsv",
    ),
    "test_matched.tsv": mnli((), ("E.", ""), ("G.", "")),
    "test_mismatched.tsv": mnli((), ("I.", "")),
}
SNLI = ("gold_label", *PARSE_COLUMNS, "sentence1", "sentence2", "captionID", "pairID")
SNLI_ROWS = [
    (label, *PARSES, "A dog ran.", f"It barked {number} times.", "1.jpg#0", f"1.jpg#0r{number}")
    for number, label in enumerate(("neutral", "-", "contradiction"))
]
INFERENCE = {
    "jsonl": objects(
        *(dict(zip(SNLI, row, strict=True)) | {"annotator_labels": [row[0]]} for row in SNLI_ROWS)
    ),
    "txt": "".join("\t".join([*row, *[""] * 5]) + "\n" for row in [SNLI, *SNLI_ROWS]).replace(
        "pairID" + "\t" * 5, "pairID\t" + "\t".join(VOTES)
    ),
}
"""Labelled pairs of SNLI, and of MultiNLI's own release; the second one has no label."""


def inferred(name: str, first: int, *group: str) -> list[Example]:
    return [
        Example(f"{name}-{first}", "A dog ran.", "It barked 0 times.", 1, *group),
        Example(f"{name}-{first + 2}", "A dog ran.", "It barked 2 times.", 2, *group),
    ]


SWAG_HEAD = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
SWAG = (
    SWAG_HEAD + '0,v,1,A man,"A man, tired, sits.",He,gold,"sleeps, ""deep"".",runs.,eats.,"two\nlines.",2\n'
)
RACE = {
    "answers": ["B", "A"],
    "options": [["red", "green", "blue", "grey"], ["Yes", "No", "Maybe", "Never"]],
    "questions": ["The _ hill was _ .", "Did it rain?"],
    "article": "The hill\nwas green.  It rained.",
    "id": "high1.txt",
}
RACE_TEXT = "The hill was green. It rained."


def race(school: str) -> list[Choices]:
    blanks = [f"The {colour} hill was {colour} ." for colour in ("red", "green", "blue", "grey")]
    asked = [f"Did it rain? {answer}" for answer in ("Yes", "No", "Maybe", "Never")]
    return [
        Choices(f"1-{number}", tuple((RACE_TEXT, text) for text in texts), label, school)
        for number, (texts, label) in enumerate(((blanks, 1), (asked, 0)))
    ]


MULTIRC = {
    "idx": 0,
    "version": 1.1,
    "passage": {
        "text": "Sentence.",
        "questions": [
            {
                "question": f"Why {number}?",
                "answers": [{"text": f"A{n}.", "idx": n, "label": label} for n, label in enumerate(labels)],
                "idx": number,
            }
            for number, labels in enumerate(((1, 0, 1), (0, 1)))
        ],
    },
}
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
COPA = {
    "premise": "The man turned on the faucet.",
    "choice1": "The toilet filled with water.",
    "choice2": "Water flowed from the spout.",
    "question": "effect",
    "label": 1,
    "idx": 0,
}
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "Rex ran to Bonn.",
                    "qas": [
                        {"id": 7, "question": "Where?", "answers": [{"text": "Bonn", "answer_start": 11}]}
                    ],
                }
            ],
        }
    ],
}
MRQA_PASSAGE = {
    "id": "",
    "context": "[TLE] Dogs [PAR] Rex ran to Bonn.",
    "context_tokens": [["[TLE]", 0]],
    "qas": [
        {
            "answers": ["Bonn", "in Bonn"],
            "question": "Where did Rex run?",
            "id": "x",
            "qid": "q1",
            "detected_answers": [{"text": "Bonn", "char_spans": [[28, 31]], "token_spans": [[6, 6]]}],
        }
    ],
}
MRQA = objects({"header": {"dataset": "NewsQA", "split": "train"}}, MRQA_PASSAGE)
STORY = "(CNN) -- A dog ran\n\nIt barked .\n\n@highlight\n\nDog runs\n\n@highlight\n\nDog barks !\n"
STORY_TEXTS = "(CNN) -- A dog ran . It barked .", "Dog runs .\nDog barks !"
ADDRESS = "http://web.archive.org/web/2015id_/http://www.cnn.com/dog.html"
STORY_ID = hashlib.sha1(ADDRESS.encode()).hexdigest()
ARTICLES = 'id,article,highlights\nf001,"He said ""no"", and left.","A man left .\nHe said no ."\n'
CONLL = (
    "-DOCSTART- -X- O O\n\nRex NNP I-NP I-PER\nBonn NNP I-NP B-PER\nof IN I-PP O\nBonn NNP I-NP I-LOC\n\n"
    "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n"
)
CONLLU = "# newdoc id = weblog-1\n# sent_id = weblog-1-0001\n# text = Don't bark 10 000.\n" + "".join(
    f"{number}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n"
    for number, word, tag in [
        ("1-2", "Don't", "_"),
        ("1", "Do", "AUX"),
        ("2", "n't", "PART"),
        ("2.1", "it", "PRON"),
        ("3", "10 000", "NUM"),
    ]
)
TWO = {"train": "train", "evaluation": "train"}
CNN = {"train": "dailymail", "evaluation": "all_val.txt", "stories": "."}
PARALLEL = {"train_source": "c.en", "train_target": "c.ro", "source": "c.en", "target": "c.ro"}
INFERENCE_LABELS = ("entailment", "neutral", "contradiction")

EXCERPTS: dict[str, Excerpt] = {
    "cola": Excerpt(
        "cola",
        glue("gj04\t1\t\tThey left.\ngj04\t0\t*\tThem left.\n"),
        [Example("train-1", "They left.", None, 1), Example("train-2", "Them left.", None, 0)],
        labels=("unacceptable", "acceptable"),
    ),
    # Quotes quote nothing, and the last line may have no end.
    "sst2": Excerpt(
        "sst2",
        glue('sentence\tlabel\n"so it goes\t1\nthe "end"" of " it \t0'),
        [Example("train-2", '"so it goes', None, 1), Example("train-3", 'the "end"" of " it', None, 0)],
        labels=("negative", "positive"),
    ),
    "rte": Excerpt(
        "rte",
        glue("index\tsentence1\tsentence2\tlabel\n0\ta\u0085b\u2028c\td\x0ce\tnot_entailment\n"),
        [Example("train-2", "a\u0085b\u2028c", "d\x0ce", 1)],
        labels=("entailment", "not_entailment"),
    ),
    "mrpc": Excerpt(
        "mrpc",
        glue("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\tA .\tB .\r\n"),
        [Example("train-2", "A .", "B .", 1)],
        labels=("different", "paraphrase"),
    ),
    "mrpc of Microsoft": Excerpt(
        "mrpc",
        {
            "msr_paraphrase_train.txt": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
            '1\t11\t12\tA .\tB .\r\n0\t21\t22\tC .\t"D .\r\n1\t31\t32\tE .\tF .\r\n',
            "dev_ids.tsv": "21\t22\n99\t98\n",
        },
        [
            Example("msr_paraphrase_train-2", "A .", "B .", 1),
            Example("msr_paraphrase_train-4", "E .", "F .", 1),
        ],
        [Example("msr_paraphrase_train-3", "C .", '"D .', 0)],
    ),
    "stsb": Excerpt(
        "stsb",
        glue(
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
            "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tA jet.\t3.800\n"
        ),
        [Example("train-2", "A plane.", "A jet.", 3.8)],
        labels=(),
    ),
    "qqp": Excerpt(
        "qqp",
        glue(
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
            '133273\t213221\t213222\tWhat is "it?\t"""Why""" ?\t1\n'
        ),
        [Example("train-2", 'What is "it?', '"""Why""" ?', 1)],
    ),
    "qnli": Excerpt(
        "qnli",
        glue(
            'index\tquestion\tsentence\tlabel\n0\tWho ran?\tThe "dog\tentailment\n1\tWho?\tIt\tnot_entailment\n\n'
        ),
        [Example("train-2", "Who ran?", 'The "dog', 0), Example("train-3", "Who?", "It", 1)],
    ),
    "wnli": Excerpt(
        "wnli",
        glue("index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n"),
        [Example("train-2", "A", "B", 1)],
        labels=("not_entailment", "entailment"),
    ),
    "mnli": Excerpt(
        "mnli",
        MNLI_FILES,
        [
            Example("train-2", '"Odd, one quote.', "It barked.", 1),
            Example("train-3", "Even\u2028so.", "It barked.", 0),
        ],
        [
            Example(f"dev_{group}-{line}", premise, "It barked.", label, group)
            for group in ("matched", "mismatched")
            for line, premise, label in ((2, "A dog ran.", 2), (3, "A cat.", 1))
        ],
        INFERENCE_LABELS,
    ),
    **{
        f"mnli.{suffix}": Excerpt(
            "mnli",
            both(
                content,
                *(f"multinli_1.0_{stem}.{suffix}" for stem in ("train", "dev_matched", "dev_mismatched")),
            ),
            inferred("multinli_1.0_train", 1 if suffix == "jsonl" else 2),
            [
                example
                for group in ("matched", "mismatched")
                for example in inferred(f"multinli_1.0_dev_{group}", 1 if suffix == "jsonl" else 2, group)
            ],
        )
        for suffix, content in INFERENCE.items()
    },
    **{
        f"snli {name}": Excerpt(
            "snli",
            both(INFERENCE["jsonl" if "jsonl" in name else "txt"], name.format("train"), name.format("dev")),
            inferred(Path(name.format("train")).stem, 1 if "jsonl" in name else 2),
            labels=INFERENCE_LABELS,
        )
        for name in ("snli_1.0_{}.jsonl", "snli_1.0_{}.txt", "{}.tsv")
    },
    "sst5": Excerpt(
        "sst5",
        {"train": "(3 (2 It) (4 (2 's) (3 lovely)))\n\n(1 (2 -LRB-) (1 dull))\n"},
        [Example("train-1", "It 's lovely", None, 3), Example("train-3", "( dull", None, 1)],
        labels=("very negative", "negative", "neutral", "positive", "very positive"),
        settings=TWO,
    ),
    "boolq": superglue(
        "boolq",
        [Example("train-1", "Rain -- It is wet.", "is it wet", 1)],
        {"question": "is it wet", "passage": "Rain -- It is wet.", "idx": 0, "label": True},
        labels=("no", "yes"),
    ),
    "cb": superglue(
        "cb",
        [Example("train-1", "A.", "B.", 2)],
        {"premise": "A.", "hypothesis": "B.", "label": "neutral", "idx": 0},
        labels=("entailment", "contradiction", "neutral"),
    ),
    "superglue_rte": superglue(
        "superglue_rte",
        [Example("train-1", "A.", "B.", 1)],
        {"premise": "A.", "hypothesis": "B.", "label": "not_entailment", "idx": 0},
        labels=("entailment", "not_entailment"),
    ),
    "wic": superglue(
        "wic",
        [
            Example("train-1", "place: A place.", "Place it.", 0),
            Example("train-2", "place: A place.", "Place it.", 1),
        ],
        {"word": "place", "sentence1": "A place.", "sentence2": "Place it.", "label": False, "start1": 4},
        {"text": "Word: place. Sentence 1: A place. Sentence 2: Place it.", "label": 1},
        labels=("different", "same"),
    ),
    "copa": superglue(
        "copa",
        [
            Choices(
                f"train-{line}",
                tuple((COPA["premise"], f"{asked} {COPA[choice]}") for choice in ("choice1", "choice2")),
                1,
            )
            for line, asked in ((1, "What happened as a result?"), (2, "What was the cause of this?"))
        ],
        COPA,
        COPA | {"question": "cause"},
    ),
    "multirc": superglue(
        "multirc",
        [
            Example(f"train-1-{n}-{k}", "Sentence.", f"Why {n}? A{k}.", label, f"train-1-{n}")
            for n, labels in enumerate(((1, 0, 1), (0, 1)))
            for k, label in enumerate(labels)
        ],
        MULTIRC,
        labels=("wrong", "right"),
    ),
    "record": superglue(
        "record",
        [
            Choices(
                "train-1-{'passage': 0, 'query': 3}",
                tuple(
                    (
                        "Tracy Morgan hasn't been the same. @highlight Morgan was in a crash",
                        f"'Honestly, {name} was hurt'",
                    )
                    for name in ("Tracy Morgan", "Morgan")
                ),
                0,
                accepted=(0,),
                answers=("Tracy Morgan", "Morgan"),
            )
        ],
        RECORD,
    ),
    "swag": Excerpt(
        "swag",
        both(
            "\ufeff" + SWAG.replace("label\n", "label\r\n").replace(",2\n", ",2\r\n"), "train.csv", "val.csv"
        ),
        [
            Choices(
                "train-2",
                tuple(
                    ("A man, tired, sits.", text)
                    for text in ('He sleeps, "deep".', "He runs.", "He eats.", "He two\nlines.")
                ),
                2,
            )
        ],
    ),
    "race": Excerpt(
        "race",
        both(
            json.dumps(RACE),
            *(f"{split}/{school}/1.txt" for split in ("train", "dev") for school in ("middle", "high")),
        ),
        race("high") + race("middle"),
        race("high") + race("middle"),
    ),
    "squad": Excerpt(
        "squad",
        {"train": "\ufeff" + json.dumps(SQUAD)},
        [Question("7", "Where?", "Rex ran to Bonn.", (Answer("Bonn", 11),))],
        settings=TWO,
    ),
    "squad2": Excerpt(
        "squad2",
        {
            "train": json.dumps(SQUAD).replace(
                '[{"text": "Bonn", "answer_start": 11}]', '[], "is_impossible": true'
            )
        },
        [Question("7", "Where?", "Rex ran to Bonn.", ())],
        settings=TWO,
    ),
    "mrqa": Excerpt(
        "mrqa",
        {"NewsQA.jsonl.gz": gzip.compress(MRQA.encode()), "NewsQA.jsonl": MRQA},
        [
            Question(
                "q1",
                "Where did Rex run?",
                "[TLE] Dogs [PAR] Rex ran to Bonn.",
                (Answer("Bonn", 28),),
                ("Bonn", "in Bonn"),
            )
        ],
        settings={"train": "NewsQA.jsonl.gz", "evaluation": "NewsQA.jsonl"},
    ),
    "xsum": Excerpt(
        "xsum",
        {
            "train.jsonl": objects({"id": 1, "document": " a\nb ", "summary": "c"}),
            "test.jsonl": objects({"document": "d", "summary": "e"}),
        },
        [TextPair("1", "a\nb", "c")],
        [TextPair("test-1", "d", "e")],
        settings={"train": "train.jsonl", "evaluation": "test.jsonl"},
    ),
    "cnn_dailymail": Excerpt(
        "cnn_dailymail",
        {
            f"cnn/stories/{STORY_ID}.story": STORY,
            "dailymail/stories/ab.story": STORY,
            "all_val.txt": ADDRESS + "\n",
        },
        [TextPair("ab", *STORY_TEXTS)],
        [TextPair(STORY_ID, *STORY_TEXTS)],
        settings=CNN,
    ),
    "cnn_dailymail.csv": Excerpt(
        "cnn_dailymail",
        {"train.csv": ARTICLES},
        [TextPair("f001", 'He said "no", and left.', "A man left .\nHe said no .")],
        settings={"train": "train.csv", "evaluation": "train.csv"},
    ),
    # Lines end at line feeds only; pairs with an empty side are left out.
    "translation": Excerpt(
        "translation",
        {
            "c.en": "\ufeffA dog\u2028ran.\nIt\x85barked.\n\n Yes. \n",
            "c.ro": "Un câine.\r\nA lătrat.\r\nNimic.\r\nDa.\r\n",
        },
        [
            TextPair("c-1", "translate: A dog\u2028ran.", "Un câine."),
            TextPair("c-2", "translate: It\x85barked.", "A lătrat."),
            TextPair("c-4", "translate: Yes.", "Da."),
        ],
        settings={**PARALLEL, "prefix": "translate: "},
    ),
    "conll_ner": Excerpt(
        "conll_ner",
        {"train": CONLL},
        [
            TaggedSentence("train-3", ("Rex", "Bonn", "of", "Bonn"), ("B-PER", "B-PER", "O", "B-LOC")),
            TaggedSentence("train-10", ("EU",), ("B-ORG",)),
        ],
        labels=("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER"),
        settings={**TWO, "scheme": "iob1"},
    ),
    "conllu_pos": Excerpt(
        "conllu_pos",
        {"train": CONLLU},
        [TaggedSentence("train-5", ("Do", "n't", "10 000"), ("AUX", "PART", "NUM"))],
        settings=TWO,
    ),
}
"""By the kind of task, and the release where there are several."""
