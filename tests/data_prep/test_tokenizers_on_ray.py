"""Every kind of tokenizer, trained or published, from a corpus to a store of tokens that give the text back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from data_prep.token_store import TokenStore
from data_prep.tokenizers.word_lexicon import Lexicon

TRAINED = {"train_bytes": 60_000}
KINDS: dict[str, tuple[Any, str]] = {
    "byte-level BPE": (TRAINED | {"kind": "byte_level_bpe", "vocab_size": 600}, "tokie"),
    "WordPiece": (TRAINED | {"kind": "wordpiece", "vocab_size": 600}, "tokie"),
    "SentencePiece": (
        TRAINED
        | {"kind": "sentencepiece", "vocab_size": 540, "sentinels": 100, "languages": ["en_XX", "de_DE"]},
        "tokie",
    ),
    "word lexicon": (TRAINED | {"kind": "word_lexicon", "vocab_size": 1024}, "tokenizers"),
    "GPT-2": ({"path": "gpt2"}, "tokie"),
    "BERT": ({"path": "bert-base-uncased"}, "tokie"),
}
"""By name what `tokenizer` says, and the encoder that must be found to equal the reference on every shard."""


def spelled(tokenizer: Tokenizer, text: str) -> str:
    """What decoding must give: the normalised text, without white space and the marks that stand for it."""
    normalizer = tokenizer.normalizer
    normalized = text if normalizer is None else normalizer.normalize_str(text)
    return "".join(normalized.replace("▁", " ").split())


@pytest.fixture(scope="module")
def ray_of_two() -> Iterator[None]:
    from cluster.runtime import ray_runtime

    with ray_runtime("local", num_cpus=2):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_the_tokens_of_every_document_gives_its_text(
    ray_of_two: None, configure: Callable[..., Any], tmp_path: Path, kind: str, request: pytest.FixtureRequest
):
    from data_prep.job import prepare

    wanted, encoder = KINDS[kind]
    if "path" in wanted:
        wanted = {"path": request.getfixturevalue("corpora") / "tokenizers" / wanted["path"]}
    prepared = prepare(configure(tmp_path / "out", tokenizer=wanted))
    store = TokenStore.open(prepared.out)
    tokenizer = Tokenizer.from_file(str(store.tokenizer_path))
    tokenizer.encode_special_tokens = True
    lexicon = Lexicon.read(tokenizer.to_str()) if kind == "word lexicon" else None
    assert prepared.tokens.stats[f"shards_by_{encoder}"] == 7
    assert store.num_documents > 40
    for number in range(store.num_documents):
        ids, text = store.tokens(number), store.document(number).text
        assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids.tolist()) if lexicon is None else " ".join(lexicon.words(ids))
        if tokenizer.normalizer is None and lexicon is None:
            assert decoded == text
        assert "".join(decoded.split()) == spelled(tokenizer, text)
