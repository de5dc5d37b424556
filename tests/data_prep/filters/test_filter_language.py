"""Language identification."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from pydantic import ValidationError

from cluster.artefacts.errors import ConfigError, MissingInputError
from data_prep.filters.language import excerpt

ENGLISH = "The committee met on Tuesday and decided that the bridge should be repaired before the winter. "
GERMAN = (
    "Der Ausschuss trat am Dienstag zusammen und beschloss, dass die Brücke vor dem Winter repariert wird. "
)


@pytest.fixture(scope="module")
def identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@pytest.fixture(scope="module")
def english_or_french(bench):
    return bench("language", allowed=["en", "fr"])


def test_allowed_language_passes_with_its_code(english_or_french):
    outcome = english_or_french.outcome(
        "Le comité s'est réuni mardi et a décidé de réparer le pont avant l'hiver."
    )
    assert outcome.document.lang == "fr"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GERMAN, "other_language"),
        ("1234 !!! ###", "uncertain_language"),
        ("", "uncertain_language"),
        # A foreign preface of a long text does not decide.
        (GERMAN * 10 + ENGLISH * 500, None),
        (ENGLISH * 10 + GERMAN * 500, "other_language"),
    ],
)
def test_other_languages_and_text_without_evidence_are_dropped(english_or_french, text, reason):
    assert english_or_french.reason(text) == reason


@pytest.mark.parametrize("left_out", [set(), {"zxx"}])
def test_text_without_evidence_is_uncertain_when_nearly_everything_is_allowed(bench, identifier, left_out):
    most = bench("language", allowed=sorted({*identifier.labels} - left_out))
    assert most.reason("a") == "uncertain_language"
    assert most.reason(GERMAN) is None


@pytest.mark.parametrize(
    "first",
    [0xA500, 0xA000, 0x13A0, 0x2D30, 0x10A00],
    ids=["Vai", "Yi", "Cherokee", "Tifinagh", "Kharoshthi"],
)
def test_scripts_that_the_model_does_not_know_are_no_language(bench, first: int):
    text = " ".join(
        "".join(chr(first + (7 * word + 3 * letter) % 60) for letter in range(5)) for word in range(60)
    )
    every = bench("language", allowed=["ko", "zh", "en", "kab", "am"])
    assert every.reason(text) == "uncertain_language"
    assert every.outcome(f"{ENGLISH * 9} {text[:40]}").document.lang == "en"


def test_lang_is_kept_where_wanted(bench):
    keep = bench("language", allowed=["en"], set_lang=False)
    assert keep.outcome(ENGLISH, lang="en-GB").document.lang == "en-GB"


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        ("zh", "香港科學館位於尖沙咀東部，佔地一萬三千多平方米，館內有展品約五百件。"),
        ("hr", "Odbor se sastao u utorak i odlučio da se most mora popraviti prije zime."),
        ("sr", "Odbor se sastao u utorak i odlučio da se most mora popraviti pre zime."),
        ("bs", "Komisija se sastala u utorak i odlučila da se most popravi prije zime."),
        ("id", "Semua orang berhak atas pendidikan."),
        ("no", "Utvalet møttest tysdag og vedtok at brua skal reparerast før vinteren."),
        ("en", "The Mill River Bridge, built in 1912, is a bridge in Ohio."),
    ],
)
def test_neither_relatives_nor_many_unlikely_languages_compete(bench, allowed: str, text: str):
    """py3langid gives each of these less than 0.6."""
    assert bench("language", allowed=[allowed]).outcome(text).document.lang == allowed


def test_relatives_are_kept_apart_where_they_are_named_or_folding_is_off(bench):
    nynorsk = (
        "Utvalet møttest tysdag og vedtok at brua skal reparerast før vinteren. Eg veit ikkje kva dei seier. "
    )
    assert bench("language", allowed=["no"]).outcome(nynorsk).document.lang == "no"
    assert bench("language", allowed=["no"], fold_related=False).reason(nynorsk) is not None
    assert bench("language", allowed=["no"], candidates=["no", "nn", "en"]).reason(nynorsk) is not None
    assert bench("language", allowed=["no", "nn"]).outcome(nynorsk).document.lang == "nn"


def test_what_is_written_otherwise_or_is_a_language_of_its_own_is_no_relative(bench):
    serbian = (
        "Одбор се састао у уторак и одлучио да се мост поправи пре зиме. Нико није знао колико ће то коштати."
    )
    danish = "Udvalget mødtes tirsdag og besluttede, at broen skal repareres før vinteren, hvis vejret tillader det."
    assert bench("language", allowed=["hr"]).reason(serbian) == "other_language"
    assert bench("language", allowed=["sr"]).reason(serbian) is None
    assert bench("language", allowed=["no"]).reason(danish) == "other_language"


def test_allowed_languages_do_not_compete_with_each_other(bench):
    both = ENGLISH + "Le comité s'est réuni mardi et a décidé de réparer le pont avant l'hiver."
    assert bench("language", allowed=["en"], min_probability=0.9).reason(both) == "uncertain_language"
    assert bench("language", allowed=["en", "fr"], min_probability=0.9).reason(both) is None


def test_candidates_take_part_alone(bench):
    """Norwegian takes half of a few Danish words, unless it is no candidate."""
    short = "hus og have"
    among_all = bench("language", allowed=["da"], min_probability=0.9)
    assert among_all.reason(short) == "uncertain_language"
    among_two = bench("language", allowed=["da"], candidates=["da", "en"], min_probability=0.9)
    assert among_two.reason(short) is None


def test_excerpt_is_bounded_and_reaches_both_ends():
    text = "".join(map(str, range(100_000)))
    sample = excerpt(text, 2000)
    assert len(sample) <= 2000 + 3
    assert text.startswith(sample[:500])
    assert text.endswith(sample[-500:])
    assert excerpt("short", 2000) == "short"


def test_unknown_language_is_refused_with_those_that_are_known(bench):
    with pytest.raises(ConfigError, match=r"does not know tlh\. It knows .*\bde, "):
        bench("language", allowed=["en", "tlh"])


@pytest.mark.parametrize("candidates", [["de", "fr"], ["en"]])
def test_candidates_must_leave_a_choice(bench, candidates: list[str]):
    with pytest.raises(ValidationError, match="at least one other"):
        bench("language", allowed=["en"], candidates=candidates)


def test_missing_model_is_named(bench, tmp_path: Path):
    with pytest.raises(MissingInputError, match=r"lid\.bin"):
        bench("language", allowed=["en"], model=tmp_path / "lid.bin")


def test_missing_package_is_answered_with_its_installation(
    bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "lid.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(ConfigError, match="fasttext") as caught:
        bench("language", allowed=["en"], model=tmp_path / "lid.bin")
    assert "pip install fasttext" in caught.value.next_step


def test_fasttext_model_takes_the_place_of_py3langid(bench, tmp_path: Path):
    fasttext = pytest.importorskip("fasttext")
    generator = random.Random(0)
    lines = [
        f"__label__{label} " + " ".join(generator.choices(sentence.split(), k=8))
        for _ in range(500)
        for label, sentence in (("en", ENGLISH), ("de", GERMAN))
    ]
    (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    model = fasttext.train_supervised(str(tmp_path / "train.txt"), dim=8, thread=1, verbose=0)
    model.save_model(str(tmp_path / "lid.bin"))
    only_german = bench("language", allowed=["de"], model=tmp_path / "lid.bin", min_probability=0.6)
    assert only_german.outcome(GERMAN + "\n" + GERMAN).document.lang == "de"
    assert only_german.reason(ENGLISH + "\n") == "other_language"
    assert only_german.reason("") == "uncertain_language"
