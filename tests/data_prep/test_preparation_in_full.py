"""Everything at once: all cheap sources, filters, every deduplication, decontamination, a tokenizer by temperature."""

import gzip
import random
import shutil
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import shards as making
from cluster.artefacts.errors import ConfigError, MissingInputError
from cluster.artefacts.manifest import hash_file
from cluster.runtime import ray_runtime
from data_prep.config import PreparationConfig
from data_prep.decontaminate.config import EvaluationText, EvaluationTexts
from data_prep.job import Prepared, prepare
from data_prep.plan import plan_preparation
from data_prep.token_store import TokenStore
from data_prep.verify import verify_preparation
from tests.data_prep.conftest import sentences, small_config, write_corpus
from tests.pipeline.command import cloze
from tests.surroundings import flip_bit

EVALUATED = "Nobody but the old keeper knew why both lamps had burned through that whole winter night"
BLURB = "This paragraph stands under every page of the site, and nobody reads it a second time."
GERMAN = (
    "Der Fluss war im Winter so hoch, dass niemand über die alte Brücke gehen konnte, und das Licht auf dem Wasser"
    " blieb bis in die Nacht hinein hell. "
)
GREEK = "Το ποτάμι ήταν τόσο ψηλό τον χειμώνα που κανείς δεν μπορούσε να περάσει την παλιά γέφυρα. "


def records() -> list[dict[str, str]]:
    """Web documents, of which the settings have something to remove, to change or to drop."""
    generator = random.Random(3)
    pages = [sentences(generator, 30) for _ in range(12)]
    lines = " ".join(pages[0].split())
    texts = [
        *(f"{page}\n{BLURB}" for page in pages),
        f"{pages[0]}\n{BLURB}",
        lines,
        lines.replace(" of ", " off ", 1),
        f"{pages[1][:500]}\n{EVALUATED}.\n{sentences(generator, 40)}",
        f"Write to keeper@lamps.example or not.\n{sentences(generator, 20)}",
        f"A cafÃ© by the river.\n{sentences(generator, 20)}",
        "Buy one lamp today. " * 60,
        GREEK * 5,
    ]
    return [{"id": f"page-{number}", "text": text, "lang": "en"} for number, text in enumerate(texts)]


def texts_in(file: Path) -> EvaluationTexts:
    """Evaluation texts of one file with one example per line, as a registry of tasks would give them. Workers do not
    know this module, so a function inside it is handed out."""

    def texts(config):
        if unknown := set(config.tasks) - {"lamps"}:
            raise ConfigError(f"unknown: {unknown}")
        if not file.is_file():
            raise MissingInputError(f"There is no {file}.")
        lines = file.read_text().splitlines()
        return iter([EvaluationText("lamps", f"dev-{n}", line, file) for n, line in enumerate(lines)])

    return texts


@pytest.fixture(scope="module")
def full_corpus(tmp_path_factory) -> Path:
    directory = write_corpus(tmp_path_factory.mktemp("full-corpus"))
    web = records()
    (directory / "web").mkdir()
    (directory / "web" / "a.jsonl").write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in web[:9]))
    packed = gzip.compress(b"".join(orjson.dumps(each) + b"\n" for each in web[9:]), mtime=0)
    (directory / "web" / "b.jsonl.gz").write_bytes(packed)
    generator = random.Random(5)
    german = [GERMAN * 3 + " ".join(generator.sample(GERMAN.split(), 20)) for _ in range(4)]
    rows = [{"id": number, "text": text, "lang": "de"} for number, text in enumerate(german)]
    pq.write_table(pa.Table.from_pylist(rows), directory / "german.parquet")
    (directory / "lamps.txt").write_text(
        f"{EVALUATED}\nA text that is in none of the documents, wherever one looks\n"
    )
    return directory


def configured(corpus: Path, out: Path, tasks: tuple[str, ...] = ("lamps",)) -> PreparationConfig:
    web = {"kind": "json_lines", "name": "web", "paths": [f"{corpus}/web/*"]}
    german = {"kind": "parquet", "name": "german", "paths": [f"{corpus}/german.parquet"]}
    by_id = {"id_field": "id", "lang_field": "lang"}
    plain = small_config(corpus, out).model_dump(mode="json", exclude_unset=True)
    wiki, books = plain["sources"]
    changes = {
        "name": "full",
        "sources": [wiki, books | {"filters": []}, web | by_id, german | by_id],
        "filters": [
            {"kind": "unicode"},
            {"kind": "language", "allowed": ["en", "de"], "candidates": ["en", "de", "el"]},
            {"kind": "gopher_repetition", "top_ngram_characters": {2: 0.3}, "duplicate_ngram_characters": {}},
            {"kind": "pii"},
            {"kind": "length", "min_characters": 300},
        ],
        "dedup": "full",
        "decontaminate": {"tasks": tasks, "action": "cut", "window_characters": 0},
        "tokenizer": {"vocab_size": 600, "train_bytes": 80_000, "alpha": 0.5},
        "shard_bytes": 30_000,
    }
    return PreparationConfig.model_validate(plain | changes)


@pytest.fixture(scope="module")
def one_worker(full_corpus, tmp_path_factory) -> Prepared:
    with ray_runtime("local", num_cpus=1):
        return prepared(full_corpus, tmp_path_factory.mktemp("one") / "out")


@pytest.fixture(scope="module")
def two_workers(one_worker, full_corpus, tmp_path_factory):
    """The same with two workers, whose cluster stays for the tests."""
    with ray_runtime("local", num_cpus=2):
        yield prepared(full_corpus, tmp_path_factory.mktemp("two") / "out")


def prepared(corpus: Path, out: Path) -> Prepared:
    return prepare(configured(corpus, out), evaluation_texts=texts_in(corpus / "lamps.txt"))


def fingerprints(made: Prepared) -> list[str]:
    manifests = (made.documents, made.dedup, made.selection, made.tokenizer, made.tokens)
    return [manifest.fingerprint for manifest in manifests]


def test_every_artefact_is_the_same_with_one_and_with_two_workers(one_worker, two_workers):
    assert fingerprints(one_worker) == fingerprints(two_workers)


def test_every_method_had_something_to_do(one_worker):
    store = TokenStore.open(one_worker.out)
    texts = {store.doc_id(n): store.document(n).text for n in range(store.num_documents)}
    read, dedup, decontaminated = (
        each.stats for each in (one_worker.documents, one_worker.dedup, one_worker.selection)
    )
    counts = ("00_unicode.repaired", "01_language.dropped", "02_gopher_repetition.dropped", "03_pii.emails")
    assert [read[f"filters.{count}"] for count in counts] == [1] * 4
    assert read["filters.04_length.dropped.too_short"] == 2
    assert min(dedup[count] for count in ("duplicates", "near_duplicates", "removed_paragraphs")) > 0
    assert (decontaminated["overlaps"], decontaminated["documents_cut"]) == (1, 1)
    assert sum(BLURB in text for text in texts.values()) == 1
    assert not any(EVALUATED in text or "keeper@" in text for text in texts.values())
    assert any("A café by" in text for text in texts.values())
    assert not any("Buy one lamp" in text or "ποτάμι" in text for text in texts.values())
    assert set(store.langs()[1]) == {"en", "de"}


def test_every_overlap_is_reported_and_leads_to_the_bytes_of_the_evaluation_file(one_worker, full_corpus):
    report = (one_worker.out / "decontamination" / "report.jsonl").read_bytes()
    (found,) = map(orjson.loads, report.splitlines())
    named = {"doc_id": "web:page-15", "task": "lamps", "example": "dev-0", "action": "cut"}
    assert found.items() >= named.items()
    stats = one_worker.selection.stats
    assert [stats["sources"][name]["documents_cut"] for name in ("wiki", "books", "web")] == [0, 0, 1]
    assert (stats["tasks"]["lamps"]["examples"], stats["tasks"]["lamps"]["examples_found"]) == (2, 1)
    assert one_worker.selection.fingerprint in {entry.fingerprint for entry in one_worker.tokens.inputs}
    assert {entry.kind: entry.fingerprint for entry in one_worker.selection.inputs} == {
        "documents": one_worker.documents.fingerprint,
        "dedup": one_worker.dedup.fingerprint,
        "evaluation-file": hash_file(full_corpus / "lamps.txt")[0],
    }


def test_preparing_again_redoes_nothing_and_changed_evaluation_texts_are_noticed(
    two_workers, full_corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(making, "map_shards", None)
    assert fingerprints(prepared(full_corpus, two_workers.out)) == fingerprints(two_workers)
    other = tmp_path / "lamps.txt"
    other.write_text(
        (full_corpus / "lamps.txt").read_text() + "One more text that nobody has seen in any book\n"
    )
    with pytest.raises(ConfigError, match="inputs"):
        prepare(configured(full_corpus, two_workers.out), evaluation_texts=texts_in(other))


@pytest.mark.parametrize("start", [prepare, plan_preparation])
def test_tasks_that_nobody_knows_are_refused_before_anything_is_done(full_corpus, tmp_path, start):
    config = configured(full_corpus, tmp_path / "out")
    unknown = configured(full_corpus, tmp_path / "out", ("lanterns",))
    with pytest.raises(ConfigError, match="lamps"):
        start(config)
    with pytest.raises(ConfigError, match="lanterns"):
        start(unknown, evaluation_texts=texts_in(full_corpus / "lamps.txt"))
    with pytest.raises(MissingInputError, match=r"gone\.txt"):
        start(config, evaluation_texts=texts_in(tmp_path / "gone.txt"))
    assert not (tmp_path / "out").exists()


def test_the_curve_of_near_duplicates_is_told_before_and_after(one_worker, full_corpus, tmp_path):
    config = configured(full_corpus, tmp_path / "out").model_dump(mode="json")
    (tmp_path / "full.yaml").write_bytes(orjson.dumps(config | {"decontaminate": []}))
    for arguments in (["prepare", tmp_path / "full.yaml", "--dry-run"], ["stats", one_worker.out]):
        told = " ".join(cloze("data", *arguments).split())
        assert "21 bands of 9 values" in told
        assert "95.2%" in told


@pytest.mark.parametrize(
    ("damaged", "work"),
    [
        ("selection-00001-of-*.parquet", ["hits-00000-of-*.parquet", "document_counts.npy", "ngrams.npy"]),
        ("report.jsonl", ["texts.parquet"]),
        ("selection-00000-of-*.parquet", None),
    ],
)
def test_damage_is_repaired_even_when_what_led_to_it_is_damaged_or_gone(
    two_workers, full_corpus, tmp_path, damaged, work
):
    out = Path(shutil.copytree(two_workers.out, tmp_path / "out"))
    (path,) = (out / "decontamination").glob(damaged)
    good = flip_bit(path)
    if work is None:
        shutil.rmtree(out / "work")
    for pattern in work or []:
        flip_bit(next((out / "work").rglob(pattern)))
    assert fingerprints(prepared(full_corpus, out)) == fingerprints(two_workers)
    assert path.read_bytes() == good
    verify_preparation(out)
