"""What py3langid's model makes of a text, by a compiled loop over its arrays.

Log probabilities are rounded to 256 steps, so that the table stays in caches: probabilities differ from py3langid's by
less than 0.02, and an excerpt of 1,000 characters takes a tenth of its time.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

import numpy as np

SERBIAN_IN_LATIN = "sr-Latn"
"""The name here of the model's second Serbian column."""
_SERBIAN = "Сва људска бића рађају се слободна", "Sva ljudska bića rađaju se slobodna"

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
    negated = -np.asarray(model.nb_ptc, np.float32)
    assert negated.min() >= 0
    step = negated.max() / np.float32(255)
    num_labels = negated.shape[1]
    weights = np.zeros((len(negated), -(-num_labels // LANES) * LANES), np.uint8)
    weights[:, :num_labels] = np.round(negated / step)
    del negated
    prior = np.zeros(weights.shape[1], np.float32)
    prior[:num_labels] = model.nb_pc
    automaton = next_state, first_of_row, feature_of
    counts, factors = np.zeros(len(weights), np.int32), count_factors(COUNTS, step)

    def score(text: str) -> np.ndarray | None:
        encoded = np.frombuffer(_as_trained(text), np.uint8)
        scores = prior.copy()
        if not add_up(encoded, *automaton, weights, step, factors, counts, scores):
            return None
        return scores[:num_labels] / np.float32(np.sqrt(len(encoded)))

    return _with_scripts(list(model.nb_classes), score), score


def _as_trained(text: str) -> bytes:
    """As `LanguageIdentifier` prepares it: text in capitals in small letters, composed characters."""
    text = text.lower() if text.isupper() else text
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


def _with_scripts(labels: list[str], score: Scores) -> list[str]:
    """The labels with the Latin of two Serbian columns told from the Cyrillic."""
    columns = [number for number, label in enumerate(labels) if label == "sr"]
    cyrillic, latin = map(score, _SERBIAN)
    assert cyrillic is not None
    assert latin is not None
    gain = (latin - cyrillic)[columns]
    return [
        SERBIAN_IN_LATIN if len(columns) > 1 and number == columns[int(gain.argmax())] else label
        for number, label in enumerate(labels)
    ]
