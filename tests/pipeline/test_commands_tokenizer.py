"""`cloze tokenizer encode|compare`, through the command line."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from cluster.artefacts.errors import MissingInputError
from data_prep.tokenizers import byte_level_bpe
from data_prep.tokenizers.config import ByteLevelBPE
from data_prep.tokenizers.wordpiece import SPECIAL_TOKENS
from pipeline.commands.verbs import app

LINES = ["the city and the river", "the naïve city", "", "water"]


@pytest.fixture
def made(tmp_path):
    """A text, a byte-level BPE and a WordPiece vocabulary."""
    (tmp_path / "text.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "bpe").mkdir()
    trained = byte_level_bpe.train(LINES, ByteLevelBPE(vocab_size=600, min_frequency=1))
    (tmp_path / "bpe" / "tokenizer.json").write_text(trained, encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*SPECIAL_TOKENS, "the", "city", "and", "river", "na", "##ive"])
    )
    return tmp_path


def cloze(*arguments) -> str:
    done = CliRunner().invoke(app, ["tokenizer", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_compare_tells_each_measure_of_each_tokenizer(made):
    found = json.loads(cloze("compare", made / "text.txt", made / "bpe", made / "vocab.txt", "--json"))
    bpe, wordpiece = found[str(made / "bpe")], found[str(made / "vocab.txt")]
    num_bytes = sum(len(line.encode()) for line in LINES)
    assert wordpiece["tokens"] == 5 + 4 + 1
    assert wordpiece["bytes_per_token"] == pytest.approx(num_bytes / 10)
    assert wordpiece["fertility"] == pytest.approx(10 / 9)
    assert wordpiece["unknown_rate"] == pytest.approx(1 / 10)
    assert wordpiece["exact_round_trips"] == pytest.approx(1 / 3)
    assert wordpiece["vocab_size"] == 11
    tokenizer = Tokenizer.from_file(str(made / "bpe" / "tokenizer.json"))
    encoded = tokenizer.encode_batch([line for line in LINES if line], add_special_tokens=False)
    assert bpe["tokens"] == sum(len(each.ids) for each in encoded)
    assert (bpe["unknown_rate"], bpe["exact_round_trips"]) == (0, 1)
    assert bpe["encode_mb_per_s"] > 0


def test_compare_shows_tokenizers_side_by_side(made):
    shown = cloze("compare", made / "text.txt", made / "bpe", made / "vocab.txt")
    assert "3 lines" in shown
    assert "fertility" in shown
    assert "exact round trips" in shown


def test_encode_takes_any_format(made):
    assert json.loads(cloze("encode", made / "vocab.txt", "The naïve", "--json"))["tokens"] == [
        "the",
        "na",
        "##ive",
    ]
    assert "##ive" in cloze("encode", made / "vocab.txt", "The naïve")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe"])
def test_a_text_that_cannot_be_compared_is_named(made, data):
    (made / "text.txt").write_bytes(data)
    with pytest.raises(MissingInputError, match=r"text\.txt"):
        cloze("compare", made / "text.txt", made / "bpe")


def test_a_tokenizer_that_is_not_there_is_named_with_the_known_formats(made):
    with pytest.raises(MissingInputError, match="none") as raised:
        cloze("compare", made / "text.txt", made / "none")
    assert "vocab.bpe" in raised.value.next_step
