"""Training of tokenizers: the same bytes every time, the special tokens of the papers, advice that can be followed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.document import Document
from data_prep.stages.make_tokenizer import Draw, train_tokenizer
from data_prep.token_writer import write_tokenizer
from data_prep.tokenizers import (
    ByteLevelBPE,
    SentencePiece,
    WordLexicon,
    WordPiece,
)
from data_prep.tokenizers.pretrained import Published, convert_tokenizer, find_tokenizer
from data_prep.tokenizers.special import SPECIAL_TOKENS, find_special_tokens, vocabulary_size
from tests.data_prep.tokenizers.materials import corpus, write_shard

ROBERTA = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
KINDS = {
    "byte-level BPE": (ByteLevelBPE(vocab_size=700), ROBERTA),
    "wordpiece": (WordPiece(vocab_size=700), {"bos": 2, "pad": 0, "eos": 3, "unk": 1, "mask": 4}),
    "word lexicon": (WordLexicon(vocab_size=1024), ROBERTA),
    "unigram": (SentencePiece(vocab_size=600), ROBERTA | {"mask": 599}),
    "SentencePiece BPE": (SentencePiece(vocab_size=600, model="bpe"), ROBERTA | {"mask": 599}),
}


@pytest.fixture(scope="module")
def trained():
    return ByteLevelBPE(vocab_size=700).train(corpus())[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_bytes_a_full_vocabulary_and_its_special_tokens(kind):
    config, specials = KINDS[kind]
    trained = config.train(iter(corpus()))[0]
    assert config.train(corpus())[0] == trained
    tokenizer = Tokenizer.from_str(trained)
    assert vocabulary_size(tokenizer) == config.vocab_size
    assert find_special_tokens(tokenizer) == specials


def test_special_tokens_come_first_as_in_roberta(trained):
    tokenizer = Tokenizer.from_str(trained)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert [tokenizer.encode("some text").ids[end] for end in (0, -1)] == [0, 2]


@given(text=st.text(max_size=50))
def test_every_text_can_be_encoded_and_decoded_back(trained, text):
    tokenizer = Tokenizer.from_str(trained)
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert 3 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_pretrained_tokenizer_is_copied_byte_for_byte_and_an_unusable_one_refused(trained, tmp_path):
    with pytest.raises(MissingInputError):
        find_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    published = Published("tokenizer.json", (path,))
    path.write_text(trained)
    assert find_tokenizer(tmp_path) == find_tokenizer(path)
    convert_tokenizer(published, "auto", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == trained
    for contents, reason in (
        ("{}", "loaded"),
        (trained.replace('"dropout": null', '"dropout": 0.1'), "dropout"),
        (trained.replace("<s>", "<one>").replace("</s>", "<two>"), "bos.*eos"),
    ):
        path.write_text(contents)
        with pytest.raises(ConfigError, match=reason):
            convert_tokenizer(published, "auto", tmp_path / "copy")


@pytest.mark.parametrize(("langs", "lowercase"), [(("en", "en"), True), (("en", "ko"), False)])
def test_text_is_lower_cased_by_itself_where_all_of_it_is_english(tmp_path, langs, lowercase):
    path = tmp_path / "documents.parquet"
    text = " ".join(corpus())
    documents = [Document(f"{number}", "s", "u", "t", lang, text) for number, lang in enumerate(langs)]
    shard = path, write_shard(path, documents), {lang: Draw(1, 0) for lang in langs}
    train_tokenizer([shard], WordPiece(vocab_size=600), 1, tmp_path / "tokenizer.json")
    write_tokenizer(tmp_path, (tmp_path / "tokenizer.json").read_bytes())
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert (opened.mask_token, opened.pad_token, opened.cls_token) == ("[MASK]", "[PAD]", "[CLS]")
    assert any(entry[:1].isupper() for entry in opened.get_vocab()) != lowercase
    first, second = opened(["Ab", "Ab Cd Ef"], padding=True)["input_ids"]
    assert len(first) == len(second)


@pytest.mark.parametrize("extra", [{}, {"sentinels": 100, "languages": ("en_XX",)}])
def test_the_size_that_is_advised_for_little_text_can_be_trained(extra):
    texts = [" ".join(corpus())]
    with pytest.raises(ConfigError) as caught:
        SentencePiece(vocab_size=60_000, **extra).train(texts)[0]
    size = next(int(word) for word in caught.value.next_step.split() if word.isdigit())
    SentencePiece(vocab_size=size, **extra).train(texts)[0]
    with pytest.raises(ConfigError) as caught:
        SentencePiece(vocab_size=600, **extra).train(["a few words"])[0]
    assert "more text" in caught.value.next_step
