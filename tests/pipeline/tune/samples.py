"""Small parts of real task files, and tokenizers made from published vocabularies."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers


def wordpiece(corpora: Path, path: Path) -> Path:
    """BERT's uncased WordPiece."""
    lines = (corpora / "tokenizers/bert-base-uncased/vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {line: number for number, line in enumerate(lines) if line}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(path))
    return path


def byte_level(corpora: Path, path: Path) -> Path:
    """GPT-2's byte-level BPE, with the special tokens of RoBERTa behind it."""
    folder = corpora / "tokenizers/gpt2"
    model = models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>"])
    tokenizer.save(str(path))
    return path


def words_of(text: str, path: Path) -> Path:
    """A vocabulary of the words of a text, in lower case; `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3."""
    tokenizer = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=specials))
    tokenizer.save(str(path))
    return path


def squad_sample(corpora: Path, path: Path, num_questions: int, longest: int = 400) -> Path:
    """A file in SQuAD's layout: the first questions of the official file about passages of few characters."""
    official = json.loads((corpora / "squad/dev-v1.1.json").read_text(encoding="utf-8"))
    short = [
        {"context": paragraph["context"], "qas": paragraph["qas"][:1]}
        for article in official["data"]
        for paragraph in article["paragraphs"]
        if len(paragraph["context"]) <= longest
    ]
    data: dict[str, Any] = {"version": "1.1", "data": [{"title": "t", "paragraphs": short[:num_questions]}]}
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def xsum_sample(corpora: Path, path: Path, num_documents: int) -> Path:
    """The first documents of the file with a summary of ordinary length, each cut to its first line."""
    with (corpora / "xsum/test-1000.jsonl").open(encoding="utf-8") as stream:
        short = (row for row in map(json.loads, stream) if len(row["summary"]) < 160)
        rows = list(itertools.islice(short, num_documents))
    for row in rows:
        row["document"] = row["document"].split("\n")[0]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def sst2_sample(corpora: Path, folder: Path, num_train: int, num_evaluation: int) -> Path:
    """The first lines of both files."""
    folder.mkdir(parents=True)
    for name, count in (("train.tsv", num_train), ("dev.tsv", num_evaluation)):
        lines = (corpora / "glue/SST-2" / name).read_text(encoding="utf-8").split("\n")
        (folder / name).write_text("\n".join(lines[: count + 1]) + "\n", encoding="utf-8")
    return folder
