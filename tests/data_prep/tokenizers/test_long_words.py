"""No trainer gets a word that takes it hours, and every text is encoded as it is."""

import base64
import random
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from data_prep.document import Document
from data_prep.stages.make_tokenizer import Draw, DrawnShard, train_tokenizer
from data_prep.tokenizers import (
    ByteLevelBPE,
    SentencePiece,
    TrainedTokenizer,
    WordLexicon,
    WordPiece,
)
from data_prep.tokenizers.training import (
    LETTERS_OR_DIGITS,
    NO_PUNCTUATION,
    NO_SPACE,
    PARTS,
    cut_long_words,
)
from tests.data_prep.tokenizers.materials import write_shard

CHARACTERS = 400_000
"""Of every record; before words were cut, training on one of them took minutes."""
GENERATOR = random.Random(1)
RECORDS = {
    "one letter": "a" * CHARACTERS,
    "two letters": "ab" * (CHARACTERS // 2),
    "base64": base64.b64encode(GENERATOR.randbytes(CHARACTERS * 3 // 4)).decode(),
    "DNA": "".join(GENERATOR.choices("ACGT", k=CHARACTERS)),
    "hexadecimal log": GENERATOR.randbytes(CHARACTERS // 2).hex(),
    "digits": "7" * CHARACTERS,
    "spaces": "x" + " " * CHARACTERS + "y",
    "rule": "=" * CHARACTERS,
    "sentences without spaces": "哈。" * (CHARACTERS // 2),
    "Thai": "กขค่" * (CHARACTERS // 4),
}
PLAIN = " ".join(GENERATOR.choices(["the", "river", "city", "and", "an", "old", "bridge"], k=20_000))
KINDS = {
    "byte_level_bpe": (ByteLevelBPE(vocab_size=600), LETTERS_OR_DIGITS),
    "wordpiece": (WordPiece(vocab_size=600), NO_PUNCTUATION),
    "sentencepiece": (SentencePiece(vocab_size=600), NO_SPACE),
}


@pytest.fixture(scope="module")
def shard(tmp_path_factory) -> DrawnShard:
    """A document shard with one record of every sort between plain text."""
    path = tmp_path_factory.mktemp("shard") / "documents.parquet"
    texts = [PLAIN, *RECORDS.values(), f"mixed {'G' * CHARACTERS} and plain text"]
    documents = [Document(f"{number}", "s", "u", "t", "en", text) for number, text in enumerate(texts)]
    return path, write_shard(path, documents), {"en": Draw(1, 0)}


def words(text: str, runs: tuple[str, ...]) -> list[str]:
    """All runs of a text."""
    return regex.findall("|".join(f"(?:{run})+" for run in runs), text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_gets_no_longer_word_and_all_of_the_text(shard, tmp_path, monkeypatch, kind):
    config, runs = KINDS[kind]
    got: list[str] = []
    monkeypatch.setattr(type(config), "train", lambda wanted, texts: (got.extend(texts), ("{}", {}))[1])
    train_tokenizer([shard], config, 1, tmp_path / "tokenizer.json")
    lengths = [len(word) for text in got for word in words(text, runs)]
    assert max(lengths) == config.max_word_characters
    if kind == "sentencepiece":
        assert max(len(word) for text in got for word in text.split()) == config.max_word_characters
        assert sum(text.count("哈") for text in got) == CHARACTERS // 2
    assert got[0] == PLAIN
    assert got[-1] == " and plain text"
    assert sum(text.count("G") == len(text) > 1 for text in got) == PARTS - 1


@pytest.mark.parametrize("kind", [*KINDS, "word_lexicon"])
def test_training_on_long_words_ends_and_encoding_takes_them_whole(shard, tmp_path, kind):
    config: TrainedTokenizer = KINDS[kind][0] if kind in KINDS else WordLexicon(vocab_size=1024)
    train_tokenizer([shard], config, 1, tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert max(map(len, tokenizer.get_vocab())) <= config.max_word_characters
    text = f"a river {'ACGT' * 2000} and a city"
    encoded = tokenizer.encode(text, add_special_tokens=False)
    if kind == "byte_level_bpe":
        assert tokenizer.decode(encoded.ids) == text
    if kind == "wordpiece":
        assert "[UNK]" in encoded.tokens


@given(
    st.lists(st.text(st.sampled_from("aÀ世1٣ .\n-=\u0301"), max_size=80)),
    st.integers(1, 9),
    st.sampled_from([*KINDS]),
)
def test_only_longer_runs_are_cut_and_their_first_parts_kept(texts, most, kind):
    runs = KINDS[kind][1]
    parts = list(cut_long_words(texts, runs, most))
    pattern = "|".join(f"(?:{run})+" for run in runs)
    kept = [regex.sub(pattern, lambda run: run[0][: PARTS * most], text) for text in texts]
    assert "".join(parts) == "".join(kept)
    assert all(len(word) <= most for part in parts for word in words(part, runs))
    unchanged = [text for text in texts if all(len(word) <= most for word in words(text, runs))]
    assert list(cut_long_words(unchanged, runs, most)) == unchanged


@pytest.mark.corpora
def test_no_word_of_real_text_is_cut(corpora: Path):
    files = [
        *sorted((corpora / "books" / "en").glob("*"))[:8],
        *sorted((corpora / "wikipedia" / "extracted-ko").glob("*"))[:2],
    ]
    texts = [file.read_text("utf-8-sig", "ignore") for file in files]
    for config, runs in KINDS.values():
        assert list(cut_long_words(texts, runs, config.max_word_characters)) == texts
