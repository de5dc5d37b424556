"""What a trained tokenizer is made for: its languages, other programs, and advice that can be followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from cluster.artefacts.errors import ConfigError
from data_prep.document import Document
from data_prep.documents import DocumentWriter
from data_prep.selection import Selection, write_selection
from data_prep.token_writer import write_tokenizer
from data_prep.tokenizers.config import SentencePiece, WordPiece
from data_prep.tokenizers.sampling import Draw
from data_prep.tokenizers.sentencepiece import train
from data_prep.tokenizers.training import TrainingShard, TrainingSplit, train_tokenizer
from tests.data_prep.tokenizers.test_wordpiece import corpus


@pytest.mark.parametrize(("langs", "lowercase"), [(("en", "en"), True), (("en", "ko"), False)])
def test_text_is_lower_cased_by_itself_where_all_of_it_is_english(tmp_path: Path, langs, lowercase):
    path = tmp_path / "documents.parquet"
    with DocumentWriter(path) as writer:
        for number, lang in enumerate(langs):
            writer.add(Document(f"{number}", "s", "u", "t", lang, " ".join(corpus())))
    write_selection(path.with_suffix(".selection"), Selection.whole(np.arange(len(langs))))
    shard = TrainingShard(path, path.with_suffix(".selection"), {lang: Draw(1, 0) for lang in langs})
    train_tokenizer(TrainingSplit((shard,), WordPiece(vocab_size=600), 1), tmp_path / "tokenizer.json")
    write_tokenizer(tmp_path, (tmp_path / "tokenizer.json").read_bytes())
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert (opened.mask_token, opened.pad_token, opened.cls_token) == ("[MASK]", "[PAD]", "[CLS]")
    assert any(entry[:1].isupper() for entry in opened.get_vocab()) != lowercase
    batch = opened(["Ab", "Ab Cd Ef"], padding=True)
    assert len(batch["input_ids"][0]) == len(batch["input_ids"][1])


def test_the_size_that_is_advised_for_little_text_can_be_trained():
    texts = [" ".join(corpus())]
    for extra in ({}, {"sentinels": 100, "languages": ("en_XX",)}):
        config = SentencePiece(vocab_size=60_000, **extra)
        with pytest.raises(ConfigError) as caught:
            train(texts, config)
        assert caught.value.next_step
        size = next(int(word) for word in caught.value.next_step.split() if word.isdigit())
        train(texts, SentencePiece(vocab_size=size, **extra))


def test_where_text_is_too_little_for_any_vocabulary_more_text_is_advised():
    with pytest.raises(ConfigError) as caught:
        train(["a few words"], SentencePiece(vocab_size=600))
    assert caught.value.next_step
    assert "more text" in caught.value.next_step
