"""Kinds of tokenizers: published vocabularies give the published ids; pieces, words of a lexicon, SentencePiece."""

import io
import json
import re
import shutil
import unicodedata
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import regex
import sentencepiece
from hypothesis import example, given
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers import ByteLevelBPE, SentencePiece, WordLexicon, WordPiece, pretrained
from data_prep.tokenizers.byte_level_bpe import byte_alphabet
from data_prep.tokenizers.fast import make_fast_encoder
from data_prep.tokenizers.pretrained import convert_tokenizer, find_tokenizer, read_tokenizer
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.tokenizers.sentencepiece import convert, train_model
from data_prep.tokenizers.special import find_special_tokens, vocabulary_size
from data_prep.tokenizers.word_lexicon import Lexicon
from data_prep.tokenizers.wordpiece import SPECIAL_TOKENS
from tests.data_prep.tokenizers.materials import corpus, encode, settled_texts, texts
from tests.golden.tokens import LETTERS

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END = "<|endoftext|>"


@pytest.fixture(scope="module", params=["small", "published"])
def directory(request, tmp_path_factory):
    if request.param == "published":
        return request.getfixturevalue("corpora") / "tokenizers" / "gpt2"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*corpus(), *LETTERS.values()] * 2, trainer)
    folder = tmp_path_factory.mktemp("small")
    vocabulary, merges = map(Path, tokenizer.model.save(str(folder)))
    entries = json.loads(vocabulary.read_text(encoding="utf-8")) | {END: tokenizer.get_vocab_size()}
    (folder / "encoder.json").write_text(json.dumps(entries), encoding="utf-8")
    vocabulary.unlink()
    merges.rename(folder / "vocab.bpe")
    return folder


@pytest.fixture(scope="module")
def vocabulary(directory):
    return json.loads((directory / "encoder.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def converted(directory):
    return read_tokenizer(find_tokenizer(directory))


@pytest.fixture(scope="module")
def encoders(converted):
    return ReferenceEncoder(converted), make_fast_encoder(converted)


@pytest.fixture(scope="module")
def oracle(vocabulary):
    import tiktoken

    to_byte = {character: byte for byte, character in enumerate(byte_alphabet())}
    ranks = {
        bytes(to_byte[character] for character in token): number
        for token, number in vocabulary.items()
        if token != END
    }
    special = {END: vocabulary[END]}
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special)


@given(text=texts)
def test_ids_are_those_of_tiktoken_on_any_text(encoders, oracle, text):
    expected = oracle.encode_ordinary(text)
    for encoder in encoders:
        assert encode(encoder, text).tolist() == expected, encoder.name


def test_ids_are_those_of_tiktoken_on_characters_of_all_planes(encoders, oracle):
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    for start in range(0, len(characters), 1 << 16):
        # Between a letter, a space and a figure, each character shows which class it belongs to.
        # The planes behind the third hold hardly any, and the encoder is tried with each before it is used.
        step = 13 if start < 3 << 16 else 389
        text = "".join(f"a{each} {each}1" for each in characters[start : start + (1 << 16)][::step])
        assert encode(encoders[1], text).tolist() == oracle.encode_ordinary(text)


def test_the_only_special_token_serves_all_roles_but_mask(converted, vocabulary):
    tokenizer = Tokenizer.from_str(converted)
    assert vocabulary_size(tokenizer) == len(vocabulary) == vocabulary[END] + 1
    assert find_special_tokens(tokenizer) == dict.fromkeys(("bos", "pad", "eos", "unk"), vocabulary[END])
    assert tokenizer.encode(END).ids == [vocabulary[END]]


def test_both_pairs_of_file_names_are_known(directory, converted, tmp_path):
    shutil.copy(directory / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(directory / "vocab.bpe", tmp_path / "merges.txt")
    assert read_tokenizer(find_tokenizer(tmp_path)) == converted
    (tmp_path / "tokenizer.json").write_text(converted, encoding="utf-8")
    assert find_tokenizer(tmp_path).files == (tmp_path / "tokenizer.json",)


_CASED = "The the na ##ïve ##ive Word word İ ##s ß Å e E ##\u0301 1 ##9 ##8 ##4 日 本 語 ! ' s $ 5 . 0 ##0 x"
CASED = [*SPECIAL_TOKENS, *_CASED.split(), "한국어", "한", "##국"]


@pytest.fixture(scope="module", params=["small", "published"])
def uncased(request, tmp_path_factory):
    """A folder with BERT's vocabulary, or a small one."""
    if request.param == "published":
        return request.getfixturevalue("corpora") / "tokenizers" / "bert-base-uncased"
    folder = tmp_path_factory.mktemp("small")
    entries = Tokenizer.from_str(
        WordPiece(vocab_size=700).train([*corpus(), *LETTERS.values()])[0]
    ).get_vocab()
    lines = [*sorted(entries, key=entries.__getitem__), "hello", "world"]
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def cased(tmp_path_factory):
    path = tmp_path_factory.mktemp("cased") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in CASED), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(uncased, cased):
    """(our encoder, BERT's own algorithm) for an uncased and a cased vocabulary."""
    from transformers import BertTokenizerLegacy

    made = []
    for path, file, lowercase in ((uncased, uncased / "vocab.txt", True), (cased, cased, False)):
        oracle = BertTokenizerLegacy(str(file), do_lower_case=lowercase)
        made.append((ReferenceEncoder(read_tokenizer(find_tokenizer(path))), oracle))
    return made


def oracle_ids(oracle, text):
    # What text spells is never a special token, so the oracle must not look for them either.
    tokens = [
        piece
        for word in oracle.basic_tokenizer.tokenize(text)
        for piece in oracle.wordpiece_tokenizer.tokenize(word)
    ]
    return oracle.convert_tokens_to_ids(tokens)


@given(text=settled_texts)
def test_ids_are_those_of_bert_on_any_text(pairs, text):
    # The oracle composes characters, which BERT's published code (tokenization.py of google-research/bert) does not. It
    # makes no difference to a text that is composed already, nor where accents are removed.
    visible = "".join(each for each in text if not unicodedata.category(each).startswith("C"))
    composed = unicodedata.is_normalized("NFC", visible)
    for ours, oracle in pairs:
        if composed or oracle.do_lower_case:
            assert encode(ours, text).tolist() == oracle_ids(oracle, text)


def test_characters_are_not_composed(pairs):
    ours, _ = pairs[1]
    assert encode(ours, "e\u0301").tolist() == [CASED.index("e"), CASED.index("##\u0301")]


def test_case_is_read_off_the_vocabulary_unless_it_is_given(uncased, cased):
    def lowercases(path, **choice):
        return '"lowercase": true' in read_tokenizer(find_tokenizer(path), **choice)

    assert [lowercases(uncased), lowercases(cased)] == [True, False]
    assert [lowercases(uncased, lowercase=False), lowercases(cased, lowercase=True)] == [False, True]


def test_sequences_get_berts_special_tokens(uncased):
    tokenizer = Tokenizer.from_str(read_tokenizer(find_tokenizer(uncased)))
    lines = (uncased / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert vocabulary_size(tokenizer) == len(lines)
    roles = {"bos": "[CLS]", "pad": "[PAD]", "eos": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    assert find_special_tokens(tokenizer) == {role: lines.index(token) for role, token in roles.items()}
    assert tokenizer.encode("hello", "world").tokens == ["[CLS]", "hello", "[SEP]", "world", "[SEP]"]


@pytest.mark.parametrize(("entries", "reason"), [("a\nb\n", r"no \[UNK\]"), ("[UNK]\na\na\n", "once")])
def test_a_damaged_vocabulary_is_refused_with_the_reason(tmp_path, entries, reason):
    (tmp_path / "vocab.txt").write_text(entries)
    with pytest.raises(ConfigError, match=reason):
        read_tokenizer(find_tokenizer(tmp_path / "vocab.txt"))


def test_characters_that_text_needs_are_in_the_alphabet_of_a_large_vocabulary():
    syllables = [chr(0xAC00 + number) for number in range(0, 11_172, 8)]
    config = WordPiece(vocab_size=8000, lowercase=False)
    tokenizer = Tokenizer.from_str(config.train([" ".join(syllables)] * 3)[0])
    assert "[UNK]" not in tokenizer.encode(" ".join(syllables)).tokens


TEXTS = ["The river, the city and the naïve river.", "the city naïve river 日本 日本", "rare 日本"]


@pytest.fixture(scope="module")
def trained():
    return WordLexicon(vocab_size=1024).train(iter(TEXTS))[0]


@pytest.fixture(scope="module")
def lexicon(trained):
    return Lexicon.read(trained)


@pytest.fixture(scope="module")
def ids_of(trained):
    """Gives the ids of a text."""
    return partial(encode, ReferenceEncoder(trained))


def test_words_are_ids_by_frequency_and_others_are_spelled(trained, lexicon, ids_of):
    tokenizer = Tokenizer.from_str(trained)
    names = [tokenizer.id_to_token(number) for number in range(517, vocabulary_size(tokenizer))]
    assert names[:2] == ["river", "the"]
    assert set(names) == {"the", "river", "city", "naÃ¯ve", "æĹ¥æľ¬"}
    ids = ids_of("the rare naïve")
    assert lexicon.words(ids) == ["the", "rare", "naïve"]
    assert lexicon.word_starts(ids).tolist() == [0, 1, 5]
    known = [tokenizer.token_to_id("the"), 3, tokenizer.token_to_id("naÃ¯ve")]
    assert lexicon.word_ids(ids, 3).tolist() == known


@given(text=texts)
def test_every_character_but_white_space_is_kept(trained, lexicon, ids_of, text):
    ids = ids_of(text)
    words = lexicon.words(ids)
    # Python alone takes these separators for white space; Unicode does not.
    kept = [character for character in text if not character.isspace() or character in "\x1c\x1d\x1e\x1f"]
    assert "".join(words) == "".join(kept)
    assert not any(re.search(r"[ \t\n\u3000]", word) for word in words)
    spelled = lexicon.spell(ids)
    assert [row.tobytes().decode() for row in (spelled[n] for n in range(len(spelled)))] == words
    tokenizer = Tokenizer.from_str(trained)
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == " ".join(words)


def test_a_single_byte_is_a_word_and_the_first_byte_of_a_longer_character_is_not(lexicon, ids_of):
    ids = ids_of("a é")
    assert lexicon.words(ids) == ["a", "é"]
    assert lexicon.word_ids(ids, 3).tolist() == [ids[0], 3]


def test_a_sample_may_begin_and_end_inside_a_word(lexicon, ids_of):
    ids = ids_of("rare words")[2:-1].astype(np.uint16)
    assert lexicon.words(ids) == ["re", "word"]
    assert lexicon.word_ids(ids, 3).tolist() == [3, 3]
    assert lexicon.word_ids(ids_of("rare")[3:], 3).tolist() == [3]
    cut = ids_of("é")
    assert lexicon.word_ids(cut[:1], 3).tolist() == [3]
    assert lexicon.words(cut[:1]) == ["\ufffd"]
    assert lexicon.words(ids[:0]) == []


def test_another_tokenizer_is_no_lexicon():
    with pytest.raises(ValueError, match="lexicon"):
        Lexicon.read(ByteLevelBPE(vocab_size=600).train(TEXTS)[0])


# -- SentencePiece: tokenizer.json gives the ids of SentencePiece itself ----------------------------------------

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


@pytest.fixture(scope="module", params=[("unigram", "nmt_nfkc"), ("unigram", "nfkc"), ("bpe", "nmt_nfkc")])
def normalizing_pair(request):
    model, normalization = request.param
    return both(train_model(corpus(), config(model, normalization=normalization), 600))


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
