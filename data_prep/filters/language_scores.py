"""What py3langid's model makes of a text, as a score for every label."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

import numpy as np

SERBIAN_IN_LATIN = "sr-Latn"
"""The name here of the model's second Serbian column."""
_SERBIAN = "Сва људска бића рађају се слободна", "Sva ljudska bića rađaju se slobodna"

Scores = Callable[[str], np.ndarray | None]
"""From a text to a score per label, [labels] float32: differences are logarithms of odds, softened by the length of the
text. None for a text in which the model sees nothing."""


@cache
def load_py3langid() -> tuple[list[str], Scores]:
    """The labels of the model that comes with py3langid, a few twice (languages of two scripts), and its scores."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier, visit_counts

    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    first_of_row = [row << 8 for row in model.tk_row]

    def score(text: str) -> np.ndarray | None:
        encoded = _as_trained(text)
        visits = visit_counts(model.tk_nextmove, first_of_row, model.tk_output, encoded)
        if not visits:
            return None
        # `classify` would add up the two columns of Serbian.
        counts = np.fromiter(visits.values(), dtype=np.float32)
        return (np.log1p(counts) @ model.nb_ptc[list(visits)] + model.nb_pc) / np.float32(
            np.sqrt(len(encoded))
        )

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
