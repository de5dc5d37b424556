"""Tokens of one small corpus by every kind of tokenizer, and with every way to cut sentences."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from cluster.runtime import ray_runtime
from data_prep.token_store import TokenStore
from data_prep.tokenizers import PretrainedTokenizer, TrainedTokenizer
from tests.data_prep.conftest import sentences
from tests.golden.book import digest
from tests.golden.preparations import RECORDS, identities, make

LETTERS = {
    "mixed": "Naïve café: “quotes”, 3,500.75 — and…  two  spaces\tand a tab. Straße, ÅNGSTRÖM, İstanbul.",
    "scripts": "川は水の流れである。日本には川がある。 Река течёт в море. النهر يجري. नदी बहती है। 한국어 문장입니다.",
    "odd": "👩‍👩‍👧 emoji 🙂, zero\u200bwidth, control\u0007, combining e\u0301, ﬁ, ½, https://example.org/a?b=c#d.\n\n\nx_y",
    "abbreviations": "Dr. Smith met Mr. Brown at 3 p.m. in Washington D.C. They left at 5. \"Why?\" he asked. No. 7.",
}  # fmt: skip
SHOWN_TOKENS = 24
SMALL = {"vocab_size": 700, "train_bytes": 60_000}
BYTE_LEVEL = {"kind": "byte_level_bpe", **SMALL}
SENTENCEPIECE = {"kind": "sentencepiece", **SMALL}
CASES: dict[str, dict[str, Any]] = {
    "byte-level BPE": {"tokenizer": BYTE_LEVEL},
    "WordPiece, lower case": {"tokenizer": {"kind": "wordpiece", **SMALL}},
    "WordPiece": {"tokenizer": {"kind": "wordpiece", "lowercase": False, **SMALL}},
    "SentencePiece, unigram": {"tokenizer": SENTENCEPIECE | {"sentinels": 10, "vocab_size": 530}},
    "SentencePiece, BPE": {
        "tokenizer": SENTENCEPIECE | {"model": "bpe", "languages": ["en_XX", "de_DE"], "vocab_size": 600}
    },
    "lexicon of words": {"tokenizer": {"kind": "word_lexicon", **SMALL, "vocab_size": 1024}},
    "one that exists": {"tokenizer": {"kind": "pretrained", "path": "byte-level BPE/tokenizer"}},
    "sentences by sentencex": {"sentences": "sentencex"},
    "without sentences": {"sentences": "none"},
}


def values(directory: Path) -> dict[str, Any]:
    """By case, what became of the texts."""
    tried = {case.get("tokenizer", BYTE_LEVEL)["kind"] for case in CASES.values()}
    kinds = {
        each.model_fields["kind"].default
        for each in (*TrainedTokenizer.__subclasses__(), PretrainedTokenizer)
    }
    assert tried == kinds, f"try {', '.join(kinds - tried)} in CASES"
    generator = random.Random(7)
    texts = LETTERS | {f"plain {n}": sentences(generator, generator.randint(8, 40)) for n in range(30)}
    lines = [orjson.dumps({"id": own, "text": text}) for own, text in texts.items()]
    (directory / "texts.jsonl").write_bytes(b"\n".join(lines))
    source = {**RECORDS, "name": "texts", "paths": [str(directory / "texts.jsonl")]}
    found = {}
    with ray_runtime("local", num_cpus=2):
        for name, case in CASES.items():
            settings = {"tokenizer": BYTE_LEVEL, "dedup": "none", **case}
            if "path" in (tokenizer := settings["tokenizer"]):
                settings["tokenizer"] = tokenizer | {"path": directory / tokenizer["path"]}
            made = make(directory / name, [source], **settings)
            found[name] = {"artefacts": identities(made), **_summary(made.token_store)}
    return found


def _summary(place: Path) -> dict[str, Any]:
    store, tokenizer = TokenStore.open(place), Tokenizer.from_file(str(place / "tokenizer.json"))
    numbers = {doc_id.partition(":")[2]: number for number, doc_id in enumerate(store.doc_ids().to_pylist())}
    every = range(store.num_documents)
    return {
        "vocabulary": store.manifest.config["vocab_size"],
        "special tokens": store.manifest.config["special_tokens"],
        "tokens": store.num_tokens,
        "ids": digest(*map(store.tokens, every)),
        "sentences": sum(len(store.sentence_starts(number)) for number in every),
        "starts of sentences": digest(*map(store.sentence_starts, every)),
        "texts": {own: _text(store, tokenizer, numbers[own]) for own in LETTERS},
    }


def _text(store: TokenStore, tokenizer: Tokenizer, number: int) -> dict[str, Any]:
    ids = store.tokens(number).tolist()
    return {
        "tokens": [tokenizer.id_to_token(each) for each in ids[:SHOWN_TOKENS]],
        "decoded": tokenizer.decode(ids),
        "sentences begin at": store.sentence_starts(number).tolist(),
    }
