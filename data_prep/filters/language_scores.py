"""Scores of a text by py3langid's model, in a compiled loop over its arrays.

Log probabilities are rounded to 256 steps, so that the table stays in caches: probabilities differ from py3langid's by
less than 0.02, and an excerpt of 1,000 characters takes a tenth of its time.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable
from functools import cache

import numpy as np
import regex

SERBIAN_IN_LATIN = "sr-Latn"
"""The name here of the model's second Serbian column."""
_SERBIAN = "Сва људска бића рађају се слободна", "Sva ljudska bića rađaju se slobodna"

SCRIPTS = (
    *(
        "Latin",
        "Cyrillic",
        "Greek",
        "Armenian",
        "Georgian",
        "Hebrew",
        "Arabic",
        "Ethiopic",
        "Devanagari",
        "Bengali",
    ),
    *(
        "Gurmukhi",
        "Gujarati",
        "Oriya",
        "Tamil",
        "Telugu",
        "Kannada",
        "Malayalam",
        "Sinhala",
        "Thai",
        "Lao",
        "Tibetan",
    ),
    *("Myanmar", "Khmer", "Hangul", "Hiragana", "Katakana", "Han"),
)
"""Scripts of the languages that the model knows."""
_LETTER = regex.compile(r"\p{L}")
_KNOWN = "".join(rf"\p{{{name}}}" for name in ("Common", "Inherited", *SCRIPTS))
_FOREIGN = regex.compile(rf"[\p{{L}}--[{_KNOWN}]]", regex.V1)

COUNTS = 1024
"""How often a feature may occur in a text for its factor to be looked up instead of computed."""

Scores = Callable[[str], np.ndarray | None]
"""From a text to a score per label, [labels] float32: differences are logarithms of odds, softened by the length of the
text. None for a text in which the model sees nothing."""


@cache
def load_py3langid() -> tuple[list[str], Scores]:
    """The labels of the model that comes with py3langid, a few twice (languages of two scripts), and its scores."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    from data_prep.filters.language_kernel import LANES, add_up, count_factors

    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    next_state = np.asarray(model.tk_nextmove, np.uint32)
    first_of_row = np.asarray(model.tk_row, np.int32) << 8
    feature_of = np.asarray(model.tk_output, np.int32)
    weights, step = _quantized(np.asarray(model.nb_ptc, np.float16), LANES)
    num_labels = len(model.nb_pc)
    prior = np.zeros(weights.shape[1], np.float32)
    prior[:num_labels] = model.nb_pc
    automaton = next_state, first_of_row, feature_of
    factors, own = count_factors(COUNTS, step), threading.local()

    def score(text: str) -> np.ndarray | None:
        if not hasattr(own, "counts"):
            # Compiled loops hold no lock.
            own.counts = np.zeros(len(weights), np.int32)
        encoded = np.frombuffer(_as_trained(text), np.uint8)
        scores = prior.copy()
        if not add_up(encoded, *automaton, weights, step, factors, own.counts, scores):
            return None
        return scores[:num_labels] / np.float32(np.sqrt(len(encoded)))

    return _with_scripts(list(model.nb_classes), score), score


def in_unknown_script(text: str) -> bool:
    """Return whether most letters of a text are of scripts that the model has never seen.

    The model reads bytes, and would take Vai for Korean and Yi for Chinese.
    """
    if text.isascii() or not (foreign := _FOREIGN.findall(text)):
        return False
    return 2 * len(foreign) > len(_LETTER.findall(text))


def _quantized(log_probabilities: np.ndarray, lanes: int) -> tuple[np.ndarray, np.float32]:
    """([features, labels] uint8 steps of negated log probabilities, the step); rows are padded to whole lanes.

    Args:
        log_probabilities: [features, labels] float16, of which there are few different values among very many.
    """
    bits = log_probabilities.view(np.uint16)
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    # Of negative numbers, the one with the highest bits is the lowest.
    step = np.float32(-values[bits.max()] / np.float32(255))
    assert ((bits == 0) | (bits >> 15 == 1)).all()
    with np.errstate(invalid="ignore"):
        steps = np.round(-values / step).astype(np.uint8)
    num_labels = bits.shape[1]
    weights = np.zeros((len(bits), -(-num_labels // lanes) * lanes), np.uint8)
    weights[:, :num_labels] = steps[bits]
    return weights, step


def _as_trained(text: str) -> bytes:
    """As `LanguageIdentifier` prepares it: text in capitals in small letters, composed characters."""
    text = text.lower() if text.isupper() else text
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


def _with_scripts(labels: list[str], score: Scores) -> list[str]:
    """The labels, with Serbian in Latin and in Cyrillic letters as two columns."""
    columns = [number for number, label in enumerate(labels) if label == "sr"]
    cyrillic, latin = map(score, _SERBIAN)
    assert cyrillic is not None
    assert latin is not None
    gain = (latin - cyrillic)[columns]
    return [
        SERBIAN_IN_LATIN if len(columns) > 1 and number == columns[int(gain.argmax())] else label
        for number, label in enumerate(labels)
    ]
