"""SentencePiece (Kudo and Richardson 2018), trained for T5 and mBART, and models converted to a `tokenizer.json`.

Trained ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, with `byte_fallback` the 256 bytes, the pieces, language tags,
`<mask>`, and last T5's sentinels from the highest number down (Raffel et al. 2020, section 3.1.4; as published).

A converted model gives the same ids, except where a character that its normalisation rewrites carries further
combining marks, or Hangul is written in single letters: Hugging Face tokenizers looks graphemes up instead of the
longest match (putting NFC or NFKC before it makes more texts differ). There the `tokenizer.json` is what counts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from cluster.artefacts.errors import ConfigError
from data_prep.tokenizers.special import SPECIAL_TOKENS
from data_prep.tokenizers.training import NO_SPACE, TrainedTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUM_THREADS = 8
"""Fixed, because the unigram trainer's sums, and so its pieces, depend on it."""
MAX_LINE_BYTES = 1 << 20
"""Longer lines would be skipped by the trainer, so they are cut."""
CHECK_TEXTS = 2000
"""Texts whose ids are compared with SentencePiece's own."""
_REQUIRED_CHARACTERS = "<>/_0123456789ABCDEFabdeiknpstux"
"""Every letter in the names of control symbols and bytes: text that spells one can then be made of these."""


class SentencePiece(TrainedTokenizer):
    """Train a SentencePiece model, as T5 and mBART use it."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    model: Literal["unigram", "bpe"] = "unigram"
    """Unigram language model (Kudo 2018) or byte-pair encoding."""
    character_coverage: float = Field(default=0.9995, gt=0.9, le=1)
    """Share of all characters of the text that must be in the vocabulary by themselves."""
    byte_fallback: bool = True
    """Spell characters that the vocabulary lacks by their bytes instead of `<unk>`."""
    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's normalisation rule; T5 and mBART use `nmt_nfkc`, `_cf` folds case."""
    sentinels: int = Field(default=0, ge=0, le=1000)
    """T5's sentinels: the last entries, `<extra_id_0>` being the very last. T5 has 100."""
    languages: tuple[str, ...] = ()
    """Language tags, such as mBART's `en_XX` and `de_DE`; entries after the pieces, in this order."""

    words: ClassVar[tuple[str, ...]] = NO_SPACE

    @model_validator(mode="after")
    def _room_for_pieces(self) -> SentencePiece:
        if self.vocab_size < self.sentinels + len(self.languages) + (400 if self.byte_fallback else 100):
            raise ValueError("vocab_size leaves no room for pieces beside bytes, sentinels and languages")
        if len(set(self.languages)) < len(self.languages) or not all(self.languages):
            raise ValueError("languages must be different, non-empty tags")
        return self

    def train(self, texts: Iterable[str]) -> tuple[str, dict[str, int]]:
        """As `TrainedTokenizer.train`; the counts tell on how many pieces of text the tokenizer was compared with
        SentencePiece (see `check_conversion`).

        Raises:
            ConfigError: the texts have too few different pieces for `vocab_size`, or too many characters; or the
                converted tokenizer does not give SentencePiece's ids on these very texts.
        """
        kept = list(texts)
        sentinels = (f"<extra_id_{n}>" for n in reversed(range(self.sentinels)))
        extra = [*self.languages, "<mask>", *sentinels]
        model = train_model(kept, self, self.vocab_size - len(extra))
        converted = convert(model, extra)
        sample = kept[:: max(1, len(kept) // CHECK_TEXTS)]
        counts = check_conversion(
            model,
            converted,
            (text[:4096] for text in sample),
            "set `tokenizer.normalization` to identity and normalise the text with a filter",
        )
        return converted, counts


def train_model(texts: Iterable[str], config: SentencePiece, vocab_size: int) -> bytes:
    """The serialised SentencePiece model; its training takes all lines, in order.

    Raises:
        ConfigError: `vocab_size` does not fit the texts.
    """
    import sentencepiece

    written = io.BytesIO()
    bos, pad, eos, unk, _ = SPECIAL_TOKENS
    try:
        sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
            # A character has at most four bytes.
            sentence_iterator=(
                line[start : start + MAX_LINE_BYTES // 4]
                for text in texts
                for line in text.split("\n")
                for start in range(0, len(line), MAX_LINE_BYTES // 4)
            ),
            model_writer=written,
            model_type=config.model,
            vocab_size=vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            required_chars=_REQUIRED_CHARACTERS,
            input_sentence_size=0,
            shuffle_input_sentence=False,
            max_sentence_length=MAX_LINE_BYTES,
            num_threads=NUM_THREADS,
            minloglevel=2,
            bos_id=0,
            pad_id=1,
            eos_id=2,
            unk_id=3,
            bos_piece=bos,
            pad_piece=pad,
            eos_piece=eos,
            unk_piece=unk,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].partition("\n")[0]
        raise ConfigError(
            f"SentencePiece cannot train {vocab_size:,} pieces on this text: {reason}",
            next_step=_other_size(str(error), config, config.vocab_size - vocab_size),
        ) from None
    return written.getvalue()


def _other_size(error: str, config: SentencePiece, num_appended: int) -> str:
    """The next step where `vocab_size` does not fit; SentencePiece names a size without the appended entries."""
    if found := re.search(r"<=? ?(\d+)\.?\s*$", error):
        largest = int(found[1]) + num_appended
        try:
            SentencePiece.model_validate(config.model_dump() | {"vocab_size": largest})
            return f"set `tokenizer.vocab_size` to {largest} or less, or train on more text"
        except ValueError:
            return "train on more text: it has fewer different pieces than the smallest vocabulary"
    return "change `tokenizer.vocab_size`, or train on more text"


SPACE = "▁"
"""SentencePiece's mark for a space."""
CHECK_CHARACTERS = 256
"""Length of the pieces of text that are compared. SentencePiece adds scores in single precision over the whole text,
so that in long texts rounding decides between segmentations."""
PROBE_WORDS = 20_000
"""Words that a converted model is compared on, or a little more."""
_PROBE = (
    "The naïve café — 12½ €, “quoted”… www.example.org/?q=1\n\tTabs  and   spaces. "
    "Straße, ﬁn, Ｗｉｄｅ, Привет, Ελλάδα, שלום, مرحبا, नमस्ते, ไทย, 日本語カタカナ, 中文。한국어 👍"
)
_NORMAL, _BYTE = 1, 6
"""Types of pieces in `sentencepiece_model.proto`."""
_UNIGRAM, _BPE = 1, 2
"""Types of models."""
_NEVER = -1e6
"""Score of entries that text must never become: control symbols, and names of bytes."""
_ROUNDING = 2e-6
"""Relative difference of the scores of two segmentations that single precision cannot distinguish."""


def convert(model: bytes, extra: Sequence[str] = ()) -> str:
    """The `tokenizer.json` of a serialised SentencePiece model.

    Args:
        extra: special tokens that get the ids after the model's, in this order.

    Raises:
        ConfigError: it is no SentencePiece model, or one of a kind that has no `tokenizer.json`.
    """
    from tokenizers import AddedToken, Tokenizer, processors

    proto = _parse(model)
    specials = [piece.piece for piece in proto.pieces if piece.type not in (_NORMAL, _BYTE)]
    tokenizer = Tokenizer(_model(proto))
    tokenizer.normalizer = _normalizer(proto)
    tokenizer.pre_tokenizer = _pre_tokenizer(proto, specials)
    tokenizer.decoder = _decoder(proto)
    added = [AddedToken(name, special=True, normalized=False) for name in (*specials, *extra)]
    tokenizer.add_special_tokens(added)
    end = proto.trainer_spec.eos_piece
    if end in specials:
        number = tokenizer.token_to_id(end)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, number)]
        )
    return tokenizer.to_str(pretty=True)


def check_conversion(
    model: bytes, tokenizer_json: str, texts: Iterable[str], next_step: str
) -> dict[str, int]:
    """Compare ids with SentencePiece's own, on pieces of text.

    Returns:
        `compared` pieces of text, and how many of them were `tied`: segmented otherwise with the same score, up to
        the rounding of single precision.

    Raises:
        ConfigError: they differ; names the first piece of text where they do.
    """
    import sentencepiece
    from tokenizers import Tokenizer

    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)  # pyright: ignore[reportCallIssue]
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    counts = {"compared": 0, "tied": 0}
    for text in texts:
        for start in range(0, len(text), CHECK_CHARACTERS):
            piece = text[start : start + CHECK_CHARACTERS]
            ours = tokenizer.encode(piece, add_special_tokens=False).ids
            theirs = processor.encode(piece)
            counts["compared"] += 1
            if ours == theirs:
                continue
            if not _tied(processor, ours, theirs):
                raise ConfigError(_difference(processor, tokenizer, piece, ours, theirs), next_step=next_step)
            counts["tied"] += 1
    return counts


def probe_texts(model: bytes) -> list[str]:
    """Texts that use a model's vocabulary: the same for the same model. Words are two pieces that follow each other
    in the vocabulary; the last text is of many scripts."""
    pieces = [piece.piece.replace(SPACE, "") for piece in _parse(model).pieces if piece.type == _NORMAL]
    words = [left + right for left, right in pairwise(filter(str.isalnum, pieces))]
    kept = words[:: max(1, len(words) // PROBE_WORDS)]
    return [" ".join(kept[start : start + 32]) for start in range(0, len(kept), 32)] + [_PROBE]


def _tied(processor: Any, ours: list[int], theirs: list[int]) -> bool:
    if max(ours, default=0) >= processor.get_piece_size():
        return False
    spelled = ["".join(processor.id_to_piece(ids)) for ids in (ours, theirs)]
    mine, other = (sum(map(processor.get_score, ids)) for ids in (ours, theirs))
    return spelled[0] == spelled[1] and abs(mine - other) <= _ROUNDING * max(abs(mine), abs(other))


def _difference(processor: Any, tokenizer: Tokenizer, text: str, ours: list[int], theirs: list[int]) -> str:
    pairs = zip(ours, theirs, strict=False)
    first = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    mine = [tokenizer.id_to_token(number) for number in ours[first : first + 4]]
    other = [processor.id_to_piece(number) for number in theirs[first : first + 4]]
    return (
        f"tokenizer.json and the SentencePiece model it was made from differ on {text!r}:"
        f" from token {first} on, {mine} instead of {other}."
    )


def _parse(model: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        proto.ParseFromString(model)
    except DecodeError as error:
        raise ConfigError(f"This is no SentencePiece model: {error}.") from None
    settings = proto.trainer_spec
    if settings.model_type not in (_UNIGRAM, _BPE) or not proto.pieces:
        raise ConfigError(
            "Only SentencePiece models of type unigram or BPE can be converted.",
            next_step="train one with `model_type` unigram or bpe",
        )
    unsupported = {
        "treat_whitespace_as_suffix": settings.treat_whitespace_as_suffix,
        "a denormalizer": bool(proto.denormalizer_spec.precompiled_charsmap),
        "escape_whitespaces off": not proto.normalizer_spec.escape_whitespaces,
    }
    if wrong := [name for name, present in unsupported.items() if present]:
        raise ConfigError(
            f"This SentencePiece model uses {', '.join(wrong)}, which tokenizer.json cannot express.",
            next_step="train one without",
        )
    return proto


def _model(proto: Any) -> Any:
    from tokenizers import models

    settings = proto.trainer_spec
    if settings.model_type == _UNIGRAM:
        scores = [(piece.piece, piece.score if piece.type == _NORMAL else _NEVER) for piece in proto.pieces]
        return models.Unigram(scores, settings.unk_id, settings.byte_fallback)
    return models.BPE(
        {piece.piece: number for number, piece in enumerate(proto.pieces)},
        _merges(proto),
        unk_token=proto.pieces[settings.unk_id].piece,
        fuse_unk=True,
        byte_fallback=settings.byte_fallback,
    )


def _merges(proto: Any) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, pairs of the best scored piece first: SentencePiece merges what makes
    the piece with the highest score, whatever its parts are."""
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
    ranked = sorted(scores, key=lambda name: -scores[name])
    return [
        (name[:cut], name[cut:])
        for name in ranked
        for cut in range(1, len(name))
        if name[:cut] in scores and name[cut:] in scores
    ]


def _normalizer(proto: Any) -> Any:
    from tokenizers import Regex, normalizers

    settings, steps = proto.normalizer_spec, []
    if settings.precompiled_charsmap:
        steps.append(normalizers.Precompiled(settings.precompiled_charsmap))
    if settings.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r"\A "), ""),
            # At the end SentencePiece also removes the character that it writes for a space.
            normalizers.Replace(Regex(rf"[ {SPACE}]+\z"), ""),
        ]
    steps.append(normalizers.Replace(" ", SPACE))
    if settings.add_dummy_prefix:
        # Not by the pre-tokenizer, which leaves it out where the text itself begins with that character.
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence(steps)


def _pre_tokenizer(proto: Any, specials: Sequence[str]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    split = proto.normalizer_spec.remove_extra_whitespaces
    steps: list[Any] = [pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=split)]
    single = {piece.piece for piece in proto.pieces if piece.type == _NORMAL and len(piece.piece) == 1}
    # If their letters are no pieces, the worst score cannot keep text from becoming control symbols.
    patterns = []
    for name in specials:
        if len(name) > 1 and not set(name) <= single:
            # Cut inside the name, beside a known letter: unknown ones beside each other are one token.
            cuts = (k for k in range(1, len(name)) if name[k - 1] in single or name[k] in single)
            cut = next(cuts, 1)
            patterns.append(f"{_quote(name[:cut])}(?={_quote(name[cut:])})")
    if patterns:
        steps.append(pre_tokenizers.Split(Regex("|".join(patterns)), "merged_with_previous"))
    return pre_tokenizers.Sequence(steps)


def _quote(text: str) -> str:
    return "".join(character if character.isalnum() else f"\\{character}" for character in text)


def _decoder(proto: Any) -> Any:
    from tokenizers import decoders

    fallback = [decoders.ByteFallback()] if proto.trainer_spec.byte_fallback else []
    steps: list[Any] = [decoders.Replace(SPACE, " "), *fallback, decoders.Fuse()]
    if proto.normalizer_spec.add_dummy_prefix:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    return decoders.Sequence(steps)
