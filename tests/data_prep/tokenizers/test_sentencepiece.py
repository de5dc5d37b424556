"""SentencePiece: training is reproducible, and tokenizer.json gives the ids of SentencePiece itself."""

import io

import pytest
import regex
import sentencepiece
from hypothesis import example, given
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers import SentencePiece, pretrained
from data_prep.tokenizers.pretrained import convert_tokenizer, find_tokenizer, read_tokenizer
from data_prep.tokenizers.sentencepiece import check_conversion, convert, train_model
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from tests.data_prep.tokenizers.materials import INPUTS, corpus, texts
from tests.golden.tokens import LETTERS

_OTHER_GRAPHEMES = regex.compile(
    r"(?<![A-Za-z])\p{M}+|(?<=[A-Za-z]\p{M})\p{M}+|[\u1100-\u11ff\uff9e\uff9f\u200c\u200d]"
    r"|[\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\u0600-\u0605\u06dd\u070f]"
)
"""Marks that do not follow a plain letter by themselves, single letters of Hangul, joiners; skin tones and tags of
emoji, and the signs that stand before Arabic numbers, which make one grapheme with their neighbours too."""


def config(model: str, **changes) -> SentencePiece:
    plain = {"model": model, "vocab_size": 600, "character_coverage": 1.0}
    return SentencePiece.model_validate(plain | changes)


def both(model: bytes) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    """SentencePiece's processor and our tokenizer of one model."""
    tokenizer = Tokenizer.from_str(convert(model))
    tokenizer.encode_special_tokens = True
    return sentencepiece.SentencePieceProcessor(model_proto=model), tokenizer


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def pair(request):
    """Both of a model whose text is taken as it is."""
    return both(train_model(corpus(), config(request.param, normalization="identity"), 600))


@pytest.fixture(scope="module", params=["nmt_nfkc", "nfkc"])
def normalizing_pair(request):
    return both(train_model(corpus(), config("unigram", normalization=request.param), 600))


@given(text=texts)
def test_ids_are_those_of_sentencepiece_on_any_text(pair, text):
    processor, tokenizer = pair
    assert tokenizer.encode(text, add_special_tokens=False).ids == processor.encode(text)


@given(text=texts)
@example("\u00e9\U0001f3fb")
@example("Cafe\u0301 nai\u0308ve A\u030a scho\u0308n ﬁ ½ Ｗ ㍿ ﷺ ｶ 한국어 \xa0 \u200b \u3000x\r\ny \ufeff")
def test_normalised_ids_are_those_of_sentencepiece_where_marks_stand_on_plain_letters(normalizing_pair, text):
    processor, tokenizer = normalizing_pair
    kept = _OTHER_GRAPHEMES.sub("", text)
    assert tokenizer.encode(kept, add_special_tokens=False).ids == processor.encode(kept)


def test_tags_and_sentinels_are_the_last_entries_as_in_mbart_and_t5():
    chosen = config("unigram", sentinels=100, languages=("en_XX", "de_DE"), vocab_size=700)
    tokenizer = Tokenizer.from_str(chosen.train(corpus())[0])
    assert vocabulary_size(tokenizer) == 700
    last = [tokenizer.id_to_token(number) for number in range(597, 700)]
    assert last == ["en_XX", "de_DE", "<mask>", *(f"<extra_id_{n}>" for n in reversed(range(100)))]
    assert find_special_tokens(tokenizer) == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 599}
    assert tokenizer.encode("Hello<extra_id_0>").ids[-2:] == [699, 2]


def test_a_published_model_whose_letters_lack_brackets_still_has_no_holes(tmp_path):
    """As in T5's vocabulary, which has no piece for `<`."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
        sentence_iterator=iter("\n".join(corpus()).split("\n")),
        model_writer=written,
        vocab_size=300,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    path = tmp_path / "spiece.model"
    path.write_bytes(written.getvalue())
    tokenizer = Tokenizer.from_str(read_tokenizer(find_tokenizer(path)))
    tokenizer.encode_special_tokens = True
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())  # pyright: ignore[reportCallIssue]
    assert find_special_tokens(tokenizer) == {"bos": 1, "pad": 0, "eos": 1, "unk": 2}
    for text in ("a</s>b", "</s>", "<<pad>>", "a < b <unk> s>"):
        assert tokenizer.encode(text, add_special_tokens=False).ids == processor.encode(text), text


def test_characters_without_a_piece_are_spelled_by_their_bytes():
    tokenizer = Tokenizer.from_str(config("unigram").train(corpus())[0])
    encoded = tokenizer.encode("日", add_special_tokens=False)
    assert encoded.tokens == ["▁", "<0xE6>", "<0x97>", "<0xA5>"]
    assert tokenizer.decode(encoded.ids) == "日"


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_a_model_that_is_given_is_compared_with_its_conversion(tmp_path, model, monkeypatch):
    path = tmp_path / "x.model"
    path.write_bytes(train_model(corpus(), config(model), 600))
    published = find_tokenizer(path)
    stats = convert_tokenizer(published, "auto", tmp_path / "tokenizer.json").stats
    assert stats["compared"] > 10
    assert stats["tied"] <= 1
    other = convert(train_model(corpus(), config(model), 500))
    monkeypatch.setattr(pretrained, "read_tokenizer", lambda *arguments: other)
    with pytest.raises(ConfigError):
        convert_tokenizer(published, "auto", tmp_path / "tokenizer.json")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.model"
    path.write_bytes(b"no model at all")
    with pytest.raises(ConfigError, match="SentencePiece"):
        read_tokenizer(find_tokenizer(path))


def test_text_in_several_scripts_gives_equal_ids():
    """Normalised by NFKC, as T5 and mBART do; equal on the very text, and on text that it was not trained on."""
    seen = [*corpus(), *LETTERS.values(), *INPUTS]
    model = train_model(seen, config("bpe", character_coverage=0.9995), 900)
    unseen = [f"{one.lower()} {other}" for one in LETTERS.values() for other in INPUTS]
    counts = check_conversion(model, convert(model), [*seen, *unseen], "")
    assert counts["compared"] > 300
    assert counts["tied"] == 0
