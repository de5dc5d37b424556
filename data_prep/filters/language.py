"""Keep documents in given languages, as far as a classifier can tell.

A document is as certain as its likeliest allowed language is against the likeliest other one. Allowed languages do not
compete with each other, the many others do not add up, and close relatives that were not asked for are not rivals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import regex
from pydantic import Field, model_validator

from cluster.artefacts.errors import ConfigError
from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed, require_file

Classifier = Callable[[str], tuple[str, float]]
"""From a text to its likeliest allowed language, and that language's probability where only the likeliest other
language competes with it; 0 for a text without evidence."""
NUM_EXCERPTS = 4
"""A long text is judged by this many excerpts, evenly spaced, so that a foreign preface does not decide."""
FASTTEXT_LABELS = 30
"""Labels whose probabilities fastText is asked for; the others have next to none."""

SERBIAN_IN_LATIN = "sr-Latn"
"""The name here of Serbian in a text without Cyrillic letters; py3langid says `sr` in either script."""
SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Ethiopic", "Devanagari"),
    *("Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala"),
    *("Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Hangul", "Hiragana", "Katakana", "Han"),
)
"""Scripts of the languages that py3langid knows."""
_LETTER, _CYRILLIC = regex.compile(r"\p{L}"), regex.compile(r"\p{Cyrillic}")
_KNOWN = "".join(rf"\p{{{name}}}" for name in ("Common", "Inherited", *SCRIPTS))
_FOREIGN = regex.compile(rf"[\p{{L}}--[{_KNOWN}]]", regex.V1)

RELATED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ar": ("arz", "ary"),
        "bs": ("hr", "sh", SERBIAN_IN_LATIN),
        "he": ("hbo",),
        "hr": ("bs", "sh", SERBIAN_IN_LATIN),
        "id": ("ms",),
        "ku": ("ckb", "sdh"),
        "lv": ("ltg",),
        "ms": ("id",),
        "no": ("nn",),
        "sr": (SERBIAN_IN_LATIN, "bs", "hr", "sh"),
        "uz": ("uzs",),
        "zh": ("wuu", "yue", "gan", "hak", "lzh"),
    }
)
"""Languages that count as another one when they were not asked for themselves: varieties of the same macrolanguage (ISO
639-3), and the older stage of Hebrew. Only where both are written alike and the model mixes them up; the large one does
not count as the small one (Nynorsk, Cantonese, Egyptian Arabic). Danish and Norwegian, Galician and Portuguese, Czech
and Slovak, Zulu and Xhosa are distinguished well enough."""


class LanguageConfig(FilterConfig):
    """Languages that are kept, and the classifier that names them.

    The defaults lose of texts in the only language that is allowed, mean over 122 languages: 2.0% at 60 characters,
    0.9% at 120, 0.5% at 500 (without folding 5.8%, 4.1%, 2.9%); nothing in 75, 102 and 119 of the languages. Measured
    on messages of programs, the Universal Declaration of Human Rights, English and Korean Wikipedia, and novels. Of
    Arabic, Chinese (both scripts), English, French, German, Japanese, Korean, Persian, Russian, Thai and Ukrainian
    nothing is lost from 120 characters on; of Croatian, Bosnian, Serbian, Indonesian and Malay nothing from 500 on.
    Lost more often, at 60, 120 and 500 characters: Cantonese (42%, 47%, 60%) and Wu (19%, 11%, 0%) where they are
    allowed without `zh`, Nynorsk (21%, 14%, 0%) without `no`, Marathi (16%, 8%, 0%), Zulu (15%, 5%, 0%), Crimean Tatar
    (11%, 4%, 0%), Xhosa and Occitan (9%, 4%, 0%), Bosnian, Croatian and Serbian (1% to 8%, to 3%, 0%). Passing for
    another language: 2.1% at 60 characters, 0.5% at 2000, most of them in languages or spellings that the model does
    not know, such as Gascon or Uighur in Latin letters.
    """

    kind: Literal["language"] = "language"
    allowed: tuple[str, ...] = Field(min_length=1)
    """ISO 639-1 codes (639-3 where there is none); of a fastText model, its labels without `__label__`."""
    min_probability: float = Field(default=0.65, ge=0.5, le=1)
    """Documents whose language is less certain against the likeliest other language are dropped. FineWeb uses 0.65,
    CCNet 0.5, with fastText and against all others together."""
    fold_related: bool = True
    """Whether close relatives count as the language that was asked for, unless they are in `allowed` or `candidates`:
    Wu, Cantonese, Gan, Hakka as `zh`; Nynorsk as `no`; Egyptian and Moroccan Arabic as `ar`; `hr`, `bs` and Serbian in
    Latin letters as each other; `id` and `ms` as each other; Sorani and Southern Kurdish as `ku`; Latgalian as `lv`;
    Southern Uzbek as `uz`; Biblical Hebrew as `he`."""
    candidates: tuple[str, ...] = ()
    """Languages that py3langid chooses from; empty for all that it knows. Text in none of them gets the most
    similar, so name also languages that are to be dropped."""
    sample_characters: int = Field(default=1000, ge=100)
    """Longer texts are judged by four excerpts of this many characters together, from the beginning to the end."""
    set_lang: bool = True
    """Whether documents that pass get the detected language as their `lang`."""
    model: Path | None = None
    """A fastText model such as lid.176.bin to use instead of py3langid. Needs the package `fasttext`."""

    @model_validator(mode="after")
    def _consistent(self) -> LanguageConfig:
        if self.candidates and self.model:
            raise ValueError("`candidates` restricts py3langid and has no meaning with a fastText `model`")
        if self.candidates and not set(self.allowed) < set(self.candidates):
            raise ValueError("`candidates` must hold every allowed language and at least one other")
        return self

    def build(self) -> Apply:
        """A filter that may set `lang`.

        Raises:
            MissingInputError: the model does not exist.
            ConfigError: `fasttext` is not installed, or a language is not known.
        """
        classify = _load_fasttext(self, self.model) if self.model else _load_py3langid(self)

        def apply(document: Document) -> Passed | Dropped:
            lang, probability = classify(excerpt(document.text, self.sample_characters))
            if probability > 0.5 and probability >= self.min_probability:
                is_same = lang == document.lang or not self.set_lang
                return Passed(document if is_same else replace(document, lang=lang))
            is_other = lang and probability < 0.5 and 1 - probability >= self.min_probability
            return Dropped("other_language" if is_other else "uncertain_language")

        return apply


def excerpt(text: str, characters: int) -> str:
    """The text, or evenly spaced excerpts of it with `characters` characters together."""
    if len(text) <= characters:
        return text
    size = characters // NUM_EXCERPTS
    starts = [(len(text) - size) * number // (NUM_EXCERPTS - 1) for number in range(NUM_EXCERPTS)]
    return "\n".join(text[start : start + size] for start in starts)


def counts_as(config: LanguageConfig, labels: Collection[str]) -> dict[str, str]:
    """Allowed language by label; other labels are rivals."""
    own = {label: label for label in config.allowed}
    if "sr" in own:
        own[SERBIAN_IN_LATIN] = "sr"
    named = {*own, *config.candidates}
    related = {
        label: language
        for language in reversed(config.allowed)
        for label in RELATED.get(language, ())
        if config.fold_related and label in labels and label not in named
    }
    if "sr" in config.candidates:
        related.pop(SERBIAN_IN_LATIN, None)
    return related | own


def _load_py3langid(config: LanguageConfig) -> Classifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    unknown = sorted({*config.allowed, *config.candidates} - set(model.labels))
    if unknown:
        raise ConfigError(
            f"py3langid does not know {', '.join(unknown)}. It knows {', '.join(sorted(model.labels))}.",
            next_step="correct `allowed` and `candidates`, or name a fastText model in `model`",
        )
    language_of = counts_as(config, [*model.labels, SERBIAN_IN_LATIN])
    if config.candidates:
        model.set_languages({*config.candidates, *language_of} - {SERBIAN_IN_LATIN})
    without_evidence = model.rank("")

    def classify(text: str) -> tuple[str, float]:
        ranked = [] if in_unknown_script(text) else model.rank(text)
        if not ranked or ranked == without_evidence:
            return "", 0.0
        if not _CYRILLIC.search(text):
            ranked = [(SERBIAN_IN_LATIN if label == "sr" else label, p) for label, p in ranked]
        return against_rivals(ranked, language_of)

    return classify


def in_unknown_script(text: str) -> bool:
    """Return whether most letters of a text are of scripts that the model has never seen.

    The model reads bytes, and would take Vai for Korean and Yi for Chinese.
    """
    if text.isascii() or not (foreign := _FOREIGN.findall(text)):
        return False
    return 2 * len(foreign) > len(_LETTER.findall(text))


def against_rivals(ranked: Iterable[tuple[str, float]], language_of: Mapping[str, str]) -> tuple[str, float]:
    """Return the likeliest allowed language and its probability against the likeliest other one.

    Args:
        ranked: labels with their probabilities, best first.
        language_of: allowed language by label.
    """
    ranked = list(ranked)
    lang, best = next(((language_of[label], p) for label, p in ranked if label in language_of), ("", 0.0))
    rival = next((p for label, p in ranked if label not in language_of), 0.0)
    return (lang, best / (best + rival)) if best + rival else ("", 0.0)


def _load_fasttext(config: LanguageConfig, path: Path) -> Classifier:
    require_file(path, "model")
    try:
        import fasttext  # type: ignore[import-not-found]
    except ImportError as error:
        raise ConfigError(
            f"The language filter names {path}, and the package fasttext cannot be imported: {error}.",
            next_step="`pip install fasttext` on every machine, or leave `model` out to use py3langid",
        ) from error
    model = fasttext.load_model(str(path))
    labels = {label.removeprefix("__label__") for label in model.get_labels()}
    language_of = counts_as(config, labels)

    def classify(text: str) -> tuple[str, float]:
        # fastText takes one line, and has an opinion on empty ones too.
        line = text.replace("\n", " ").strip()
        if not line:
            return "", 0.0
        found = model.f.predict(line + "\n", FASTTEXT_LABELS, 0.0, "strict")
        ranked = [(label.removeprefix("__label__"), probability) for probability, label in found]
        lang, probability = against_rivals(ranked, language_of)
        return lang or config.allowed[0], probability

    return classify
