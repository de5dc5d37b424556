"""Documents of one form with different contents are all kept, beside edited copies, which are all found."""

import numpy as np

from data_prep.dedup.config import DedupConfig
from tests.data_prep.dedup.corpus import dedup, kept_documents

NUM_EACH = 40
FORMS = (
    "Year and medals won" + 12 * "\n| {} | {} |",
    "{} is an asteroid of the main belt. It was found on day {} of {} and goes around the Sun every {} days. Its"
    " diameter is {} km, its rotation takes {} seconds and its absolute magnitude is {}.",
    "Temperatures between {} and {} degrees. Wind {} km per hour from {} degrees. Rain {} mm, pressure {} hPa. Sunrise"
    " {}:{}, sunset {}:{}.",
    "Notice is hereby given under the provisions of the Act that all persons who have claims against the estate of the"
    " late John N{} of S{}, who died on day {}, are asked to send particulars of such claims in writing to the"
    " undersigned, at {} High Street, S{}, on or before day {}, after which date the executors will distribute the"
    " assets of the deceased among the persons entitled to them, having regard only to the claims of which they shall"
    " then have had notice.",
)
"""Tables, stubs of articles, weather reports and legal notices."""


def test_documents_that_differ_in_numbers_and_names_are_kept_and_edited_copies_found(tmp_path):
    draw = np.random.Generator(np.random.Philox(4))
    own = [form.format(*draw.integers(10, 2000, form.count("{}"))) for form in FORMS for _ in range(NUM_EACH)]
    words = ["".join(draw.choice([*"abcdefghijklm"], 6)) for _ in range(3000)]
    articles = [" ".join(draw.choice(words, 400)) for _ in range(NUM_EACH)]
    copies = [text.replace(text.split(" ")[200], "edited", 1) for text in articles]
    manifest = dedup(tmp_path / "out", [own + articles, copies], "full")
    assert kept_documents(tmp_path / "out", 2) == list(range(len(own + articles)))
    assert manifest.stats["near_duplicates"] == len(copies)


def test_digits_are_folded_on_request_only(tmp_path):
    tables = [f"Year and medals won\n| {year} | {year // 40} |" for year in (1890, 1990)]
    for fold in (False, True):
        near = DedupConfig.model_validate({"documents": False, "near": {"fold_digits": fold}})
        dedup(tmp_path / "out", [tables], near.model_dump())
        assert kept_documents(tmp_path / "out", 1) == ([0] if fold else [0, 1])
