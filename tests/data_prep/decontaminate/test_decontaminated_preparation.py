"""Decontamination in a whole preparation on Ray: planted texts never reach the tokens, and damage is repaired."""

import shutil
from pathlib import Path

import orjson
import pytest

from cluster import sharded_artefact
from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import hash_file
from cluster.runtime import ray_runtime
from data_prep.decontaminate.config import EvaluationText, EvaluationTexts
from data_prep.job import prepare
from data_prep.plan import plan_preparation
from data_prep.token_store import TokenStore
from data_prep.verify import verify_preparation
from tests.data_prep.conftest import small_config, write_corpus
from tests.surroundings import flip_bit

PLANTED = "Nobody but the old keeper knew why both lamps had burned through that whole winter night"
WIKI = ["wiki:3", "wiki:20"]
"""Articles in which it is planted; 41 is a copy of 3 that deduplication removes."""


def texts_in(file: Path) -> EvaluationTexts:
    """Evaluation texts of one file with one example per line, as a registry of tasks would give them."""

    def texts(config):
        if unknown := set(config.tasks) - {"lamps"}:
            raise ConfigError(f"unknown: {unknown}")
        if not file.is_file():
            raise MissingInputError(f"There is no {file}.")
        lines = file.read_text().splitlines()
        return iter([EvaluationText("lamps", f"dev-{n}", line, file) for n, line in enumerate(lines)])

    return texts


def plant(text: str, number: int) -> str:
    """Put the text into an article's block, at the same place of articles with the same text."""
    end = text.index("</doc>", text.index(f'<doc id="{number}"'))
    place = text.index(" ", end - 150)
    return f"{text[:place]}\n{PLANTED.upper().replace(' ', ', ', 3)}.\n{text[place:]}"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The small corpus with a text planted in two articles and in the copy of one, and the evaluation set."""
    place = tmp_path_factory.mktemp("planted")
    corpus = write_corpus(place / "corpus")
    for number in (3, 41, 20):
        path = corpus / "wiki" / f"wiki_{number // 12:02d}"
        path.write_text(plant(path.read_text(encoding="utf-8"), number), encoding="utf-8")
    unseen = "A text that is in none of the documents, wherever one looks"
    (place / "lamps.txt").write_text(f"{PLANTED}\n{unseen}\n")
    return place


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ray_runtime("local", num_cpus=2):
        yield


def configured(planted, out, tasks=("lamps",)):
    return small_config(planted / "corpus", out, decontaminate=tasks, shard_bytes=30_000)


@pytest.fixture(scope="module")
def finished(cluster, planted, tmp_path_factory):
    config = configured(planted, tmp_path_factory.mktemp("finished") / "out")
    return prepare(config, evaluation_texts=texts_in(planted / "lamps.txt"))


def test_documents_with_planted_texts_are_not_tokenised_and_the_report_names_them(finished):
    store = TokenStore.open(finished.out)
    documents = [store.document(number) for number in range(store.num_documents)]
    assert not {document.doc_id for document in documents} & set(WIKI)
    assert store.num_documents == finished.dedup.stats["documents_kept"] - 2
    assert not any("LAMPS HAD BURNED" in document.text for document in documents)
    lines = (finished.out / "decontamination" / "report.jsonl").read_bytes().splitlines()
    report = [orjson.loads(line) for line in lines]
    assert [(line["doc_id"], line["task"], line["example"], line["action"]) for line in report] == [
        (doc_id, "lamps", "dev-0", "dropped") for doc_id in WIKI
    ]
    stats = finished.selection.stats
    assert (stats["documents_dropped"], stats["documents_cut"], stats["overlaps"]) == (2, 0, 2)
    assert stats["tasks"]["lamps"]["examples_found"] == 1
    assert [stats["sources"][name]["documents_dropped"] for name in ("wiki", "books")] == [2, 0]


def test_lineage_leads_to_the_bytes_of_the_evaluation_files(finished, planted):
    assert finished.selection.fingerprint in {entry.fingerprint for entry in finished.tokens.inputs}
    inputs = {entry.kind: entry.fingerprint for entry in finished.selection.inputs}
    assert inputs == {
        "documents": finished.documents.fingerprint,
        "dedup": finished.dedup.fingerprint,
        "evaluation-file": hash_file(planted / "lamps.txt")[0],
    }


def test_preparing_again_redoes_nothing_and_changed_evaluation_texts_are_noticed(
    finished, planted, tmp_path, monkeypatch
):
    monkeypatch.setattr(sharded_artefact, "map_shards", None)
    again = prepare(configured(planted, finished.out), evaluation_texts=texts_in(planted / "lamps.txt"))
    assert again.fingerprint == finished.fingerprint
    other = tmp_path / "lamps.txt"
    other.write_text((planted / "lamps.txt").read_text() + "One more text that nobody has seen in any book\n")
    with pytest.raises(ConfigError, match="inputs"):
        prepare(configured(planted, finished.out), evaluation_texts=texts_in(other))


@pytest.mark.parametrize(
    ("damaged", "work"),
    [
        ("selection-00001-of-*.parquet", ["hits-00000-of-*.parquet", "document_counts.npy", "ngrams.npy"]),
        ("report.jsonl", ["texts.parquet"]),
        ("selection-00000-of-*.parquet", None),
    ],
)
def test_damage_is_repaired_even_when_what_led_to_it_is_damaged_or_gone(
    finished, planted, tmp_path, damaged, work
):
    out = Path(shutil.copytree(finished.out, tmp_path / "out"))
    (path,) = (out / "decontamination").glob(damaged)
    good = flip_bit(path)
    if work is None:
        shutil.rmtree(out / "work")
    for pattern in work or []:
        flip_bit(next((out / "work").rglob(pattern)))
    again = prepare(configured(planted, out), evaluation_texts=texts_in(planted / "lamps.txt"))
    assert again.fingerprint == finished.fingerprint
    assert path.read_bytes() == good
    verify_preparation(out)


@pytest.mark.parametrize("start", [prepare, plan_preparation])
def test_tasks_that_nobody_knows_are_refused_before_anything_is_done(planted, tmp_path, start):
    config = configured(planted, tmp_path / "out")
    unknown = configured(planted, tmp_path / "out", ["lanterns"])
    with pytest.raises(ConfigError, match="lamps"):
        start(config)
    with pytest.raises(ConfigError, match="lanterns"):
        start(unknown, evaluation_texts=texts_in(planted / "lamps.txt"))
    with pytest.raises(MissingInputError, match=r"gone\.txt"):
        start(config, evaluation_texts=texts_in(tmp_path / "gone.txt"))
    assert not (tmp_path / "out").exists()
