"""Language identification."""

import copy
import sys
from collections.abc import Iterator

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from pydantic import ValidationError

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.filters import Passed
from tests.data_prep.filters.bench import Bench, document

ENGLISH = "The committee met on Tuesday and decided that the bridge should be repaired before the winter. "
GERMAN = (
    "Der Ausschuss trat am Dienstag zusammen und beschloss, dass die Brücke vor dem Winter repariert wird. "
)
FRENCH = "Le comité s'est réuni mardi et a décidé de réparer le pont avant l'hiver."
NYNORSK = (
    "Utvalet møttest tysdag og vedtok at brua skal reparerast før vinteren. Eg veit ikkje kva dei seier. "
)
SERBIAN = (
    "Одбор се састао у уторак и одлучио да се мост поправи пре зиме. Нико није знао колико ће то коштати."
)
DANISH = (
    "Udvalget mødtes tirsdag og besluttede, at broen skal repareres før vinteren, hvis vejret tillader det."
)
EN_FR = {"allowed": ["en", "fr"]}
SURE = {"min_probability": 0.9}


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Each filter gets a copy of a model that is read once: that takes half a second, and there are many filters."""
    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LanguageIdentifier, "from_model_file", lambda *_, **__: copy.copy(model))
        yield


LANGUAGES = [
    (EN_FR, FRENCH, "fr"),
    ({"allowed": ["en"], "set_lang": False}, ENGLISH, "de"),
    (EN_FR, GERMAN, "other_language"),
    (EN_FR, "1234 !!! ###", "uncertain_language"),
    (EN_FR, "", "uncertain_language"),
    # A foreign preface of a long text does not decide.
    (EN_FR, GERMAN * 10 + ENGLISH * 500, "en"),
    (EN_FR, ENGLISH * 10 + GERMAN * 500, "other_language"),
    # Allowed languages do not compete with each other.
    ({"allowed": ["en"], **SURE}, ENGLISH + FRENCH, "uncertain_language"),
    (EN_FR | SURE, ENGLISH + FRENCH, "en"),
    # Norwegian takes half of a few Danish words, unless it is no candidate.
    ({"allowed": ["da"], **SURE}, "hus og have", "uncertain_language"),
    ({"allowed": ["da"], "candidates": ["da", "en"], **SURE}, "hus og have", "da"),
    # What is written otherwise or is a language of its own is no relative.
    ({"allowed": ["hr"]}, SERBIAN, "other_language"),
    ({"allowed": ["sr"]}, SERBIAN, "sr"),
    ({"allowed": ["no"]}, DANISH, "other_language"),
    # Relatives are kept apart where they are named or folding is off.
    ({"allowed": ["no"]}, NYNORSK, "no"),
    ({"allowed": ["no", "nn"]}, NYNORSK, "nn"),
    ({"allowed": ["no"], "fold_related": False}, NYNORSK, "other_language"),
    ({"allowed": ["no"], "candidates": ["no", "nn", "en"]}, NYNORSK, "other_language"),
]
ALONE = [
    ("zh", "香港科學館位於尖沙咀東部，佔地一萬三千多平方米，館內有展品約五百件。"),
    ("hr", "Odbor se sastao u utorak i odlučio da se most mora popraviti prije zime."),
    ("sr", "Odbor se sastao u utorak i odlučio da se most mora popraviti pre zime."),
    ("bs", "Komisija se sastala u utorak i odlučila da se most popravi prije zime."),
    ("id", "Semua orang berhak atas pendidikan."),
    ("no", "Utvalet møttest tysdag og vedtok at brua skal reparerast før vinteren."),
    ("en", "The Mill River Bridge, built in 1912, is a bridge in Ohio."),
]
"""Texts to which py3langid gives less than 0.6, among all languages."""


def found(text, **settings):
    """The language that a text gets, or why it is dropped."""
    outcome = Bench("language", **settings).apply(document(text, "de"))
    return outcome.document.lang if isinstance(outcome, Passed) else outcome.reason


@pytest.mark.parametrize(
    ("settings", "text", "expected"),
    [*LANGUAGES, *(({"allowed": [lang]}, text, lang) for lang, text in ALONE)],
)
def test_neither_relatives_nor_many_unlikely_languages_compete_and_others_are_dropped(
    settings, text, expected
):
    assert found(text, **settings) == expected


@pytest.mark.parametrize("left_out", [set(), {"zxx"}])
def test_text_without_evidence_is_uncertain_when_nearly_everything_is_allowed(left_out):
    most = sorted({*LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True).labels} - left_out)
    assert found("a", allowed=most) == "uncertain_language"
    assert found(GERMAN, allowed=most) == "de"


@pytest.mark.parametrize(
    "first",
    [0xA500, 0xA000, 0x13A0, 0x2D30, 0x10A00],
    ids=["Vai", "Yi", "Cherokee", "Tifinagh", "Kharoshthi"],
)
def test_scripts_that_the_model_does_not_know_are_no_language(first):
    words = ["".join(chr(first + (7 * word + 3 * n) % 60) for n in range(5)) for word in range(60)]
    allowed = ["ko", "zh", "en", "kab", "am"]
    assert found(" ".join(words), allowed=allowed) == "uncertain_language"
    assert found(f"{ENGLISH * 9} {' '.join(words[:7])}", allowed=allowed) == "en"


def test_settings_that_leave_no_choice_and_missing_models_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="tlh"):
        Bench("language", allowed=["en", "tlh"])
    for candidates in (["de", "fr"], ["en"]):
        with pytest.raises(ValidationError):
            Bench("language", allowed=["en"], candidates=candidates)
    with pytest.raises(MissingInputError, match=r"lid\.bin"):
        Bench("language", allowed=["en"], model=tmp_path / "lid.bin")
    (tmp_path / "lid.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(ConfigError) as caught:
        Bench("language", allowed=["en"], model=tmp_path / "lid.bin")
    assert "pip install fasttext" in caught.value.next_step


def test_fasttext_model_takes_the_place_of_py3langid(tmp_path):
    fasttext = pytest.importorskip("fasttext")
    lines = (f"__label__en {ENGLISH}\n" + f"__label__de {GERMAN}\n") * 500
    (tmp_path / "train.txt").write_text(lines, encoding="utf-8")
    model = fasttext.train_supervised(str(tmp_path / "train.txt"), dim=8, thread=1, verbose=0)
    model.save_model(str(tmp_path / "lid.bin"))
    only_german = {"allowed": ["de"], "model": tmp_path / "lid.bin", "min_probability": 0.6}
    assert found(GERMAN + "\n" + GERMAN, **only_german) == "de"
    assert found(ENGLISH + "\n", **only_german) == "other_language"
    assert found("", **only_german) == "uncertain_language"
