"""A whole preparation on Ray: what it makes, that it is made once, and that damage costs one file."""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from cluster import shards as making
from cluster.artefacts.errors import (
    ConfigError,
    CorruptArtefactError,
    EmptyCorpusError,
    StorageError,
    TooManyRejectsError,
)
from cluster.artefacts.manifest import hash_file
from cluster.artefacts.owner import exclusive
from cluster.artefacts.shard_records import LOG_NAME, SHARD_RECORDS
from cluster.runtime import ray_runtime
from data_prep.job import prepare, prepare_tokenizer
from data_prep.layout import DECONTAMINATION, STAGES, TAKEDOWN
from data_prep.plan import plan_preparation
from data_prep.ragged import Ragged
from data_prep.stages import tokenize
from data_prep.stages.collect import require_documents
from data_prep.stages.tokenize import tokenize_documents
from data_prep.stats import describe_store
from data_prep.token_store import TokenStore
from data_prep.tokenizers.reference import ReferenceEncoder
from data_prep.verify import verify_preparation
from tests.data_prep.conftest import NUM_ARTICLES, NUM_BOOKS, NUM_DUPLICATES, NUM_SHORT, small_config
from tests.surroundings import flip_bit

MADE = [stage for stage in STAGES if stage not in (DECONTAMINATION, TAKEDOWN)]
NUM_KEPT = NUM_ARTICLES + NUM_BOOKS - NUM_SHORT - NUM_DUPLICATES


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ray_runtime("local", num_cpus=2):
        yield


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished preparation, to be damaged."""
    return Path(shutil.copytree(finished.out, tmp_path / "out"))


def identities(out: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every artefact file: what was not touched keeps both. Logs are there to be added to."""
    paths = [path for name in STAGES for path in sorted((out / name).rglob("*"))]
    files = [path for path in paths if path.is_file() and path.name != LOG_NAME]
    return {str(path.relative_to(out)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def made_again(config, finished) -> set[str]:
    """Files that a preparation makes again to have what it had."""
    before = identities(config.out)
    assert prepare(config).fingerprint == finished.fingerprint
    after = identities(config.out)
    verify_preparation(config.out)
    return {name for name in after if after[name] != before.get(name)}


# -- what is made -----------------------------------------------------------------------------------------------


def test_statistics_account_for_every_document(finished):
    store = TokenStore.open(finished.out)
    found = describe_store(store)
    total, sources = found["total"], found["sources"]
    assert total["documents"] == store.num_documents == NUM_KEPT
    assert total["documents_read"] == NUM_ARTICLES + NUM_BOOKS
    assert (total["documents_too_short"], total["duplicates"], total["rejects"]) == (2, 2, 0)
    assert sources["wiki"]["documents"] == NUM_KEPT - NUM_BOOKS
    assert sources["books"]["documents"] == NUM_BOOKS
    assert total["tokens"] == sum(own["tokens"] for own in sources.values()) == store.num_tokens
    assert total["sentences"] > 1000
    text_bytes = sum(len(store.document(n).text.encode()) for n in range(store.num_documents))
    assert total["kept_bytes"] == found["languages"]["en"]["kept_bytes"] == text_bytes
    assert total["bytes_per_token"] == pytest.approx(text_bytes / store.num_tokens, abs=0.001)


def test_lineage_leads_from_the_tokens_to_the_bytes_of_the_source_files(finished, corpus):
    inputs = {entry.kind: entry.fingerprint for entry in finished.tokens.inputs}
    assert inputs["documents"] == finished.documents.fingerprint
    assert inputs["tokenizer"] == finished.tokenizer.fingerprint
    hashes = [hash_file(path)[0] for path in sorted((corpus / "wiki").iterdir())]
    assert [entry.fingerprint for entry in finished.documents.inputs][:4] == hashes


def test_preparing_again_redoes_nothing_and_nothing_temporary_is_left(finished, configure, monkeypatch):
    monkeypatch.setattr(making, "map_shards", None)
    monkeypatch.setattr("data_prep.input_hashes.run_tasks", None)
    assert made_again(configure(finished.out), finished) == set()
    names = {name for _, names, files in os.walk(finished.out) for name in [*names, *files]}
    assert not [name for name in names if name.endswith((".tmp", ".partial"))]


def test_without_dedup_or_sentences_documents_are_one_sentence_each_and_a_tokenizer_can_be_shared(
    tmp_path, configure, finished
):
    settings = {"dedup": "none", "sentences": "none", "shard_bytes": 1 << 20}
    config = configure(tmp_path / "out", tokenizer={"path": finished.out}, **settings)
    prepared = prepare(config)
    first, second = TokenStore.open(finished.out), TokenStore.open(prepared.out)
    assert second.num_documents == NUM_KEPT + NUM_DUPLICATES
    assert (second.sentence_counts == 1).all()
    assert len(prepared.documents.files) == 2
    assert second.tokenizer_path.read_bytes() == first.tokenizer_path.read_bytes()
    tokens = {second.doc_id(n): second.tokens(n).tolist() for n in range(second.num_documents)}
    assert all(tokens[first.doc_id(n)] == first.tokens(n).tolist() for n in range(first.num_documents))


def test_a_shard_on_which_encoders_differ_anywhere_is_encoded_by_the_reference(
    finished, tmp_path, monkeypatch
):
    class Wrong(ReferenceEncoder):
        def encode(self, texts, cuts):
            ids, starts = super().encode(texts, cuts)
            return Ragged(np.append(ids.values[:-1], ids.values[-1] + 1), ids.offsets), starts

    monkeypatch.setattr(tokenize, "make_fast_encoder", Wrong)
    # Encoders are kept for the next task with the same file.
    tokenizer = Path(shutil.copy(finished.out / "tokenizer" / "tokenizer.json", tmp_path))
    files = {
        "documents": finished.out / "documents" / "documents-00001-of-00007.parquet",
        "selection": finished.out / "dedup" / "selection-00001-of-00007.parquet",
    }
    settings = {"source": "wiki", "sentences": "blingfire", "dtype": "uint16"}
    result = tokenize_documents(tmp_path / "shard.arrow", tokenizer=tokenizer, **files, **settings)
    assert result.stats["shards_by_tokenizers"] == 1
    expected = finished.out / "tokens" / "data-00001-of-00007.arrow"
    assert (tmp_path / "shard.arrow").read_bytes() == expected.read_bytes()


def test_tokens_are_those_of_hf_tokenizers_on_whole_documents_and_give_their_text(finished):
    store = TokenStore.open(finished.out)
    tokenizer = Tokenizer.from_file(str(store.tokenizer_path))
    tokenizer.encode_special_tokens = True
    assert finished.tokens.stats["shards_by_tokie"] == 7
    assert store.num_documents > 40
    every_third = store.documents(np.arange(store.num_documents)[::3])
    for number in range(store.num_documents):
        document, ids = store.document(number), store.tokens(number).tolist()
        assert number % 3 or document == next(every_third)
        assert (document.doc_id, document.source) == (store.doc_id(number), store.source(number))
        assert ids == tokenizer.encode(document.text, add_special_tokens=False).ids
        starts = store.sentence_starts(number).tolist()
        assert starts == sorted({0, *starts})
        assert starts[-1] < len(ids)
        assert tokenizer.decode(ids) == document.text


def test_repeated_ids_and_templates_left_out_are_counted_and_ids_in_tokens_differ(tmp_path, configure):
    text = "A {{mystery|x}} sentence of the page, with words enough to be kept for what it says. " * 4
    pages = "".join(
        f"<page><title>T</title><ns>0</ns><id>{number}</id><revision><id>9</id><text>{text}{at}</text></revision></page>"
        for at, number in enumerate((7, 8, 7))
    )
    (tmp_path / "it.xml").write_text(f'<mediawiki xml:lang="it">{pages}</mediawiki>')
    source = {"kind": "wikipedia_dump", "name": "wiki", "paths": [str(tmp_path / "it.xml")]}
    made = prepare(configure(tmp_path / "out", sources=[source], tokenizer={"vocab_size": 512}))
    store = TokenStore.open(made.token_store)
    last = store.document(2)
    name = f"wiki:7 @ it.xml:{last.meta['byte_start']}"
    assert store.doc_ids().to_pylist() == ["wiki:7", "wiki:8", name]
    assert last.doc_id == store.document_and_removed(2)[1].doc_id == name
    facts = describe_store(store)
    assert (facts["sources"]["wiki"]["repeated_ids"], list(facts["languages"])) == (1, ["it"])
    assert facts["left_out"] == {"wiki": {"templates": {"mystery": 12}}}


def test_dry_run_counts_files_and_shards_and_writes_nothing(tmp_path, configure, finished):
    plan = plan_preparation(configure(tmp_path / "out", shard_bytes=20_000))
    assert not (tmp_path / "out").exists()
    assert (plan["files"], set(plan["stages"].values())) == (7, {"absent"})
    assert plan["size_bytes"] == sum(own["size_bytes"] for own in plan["sources"].values())
    assert all(own["largest_shard_bytes"] <= 20_000 for own in plan["sources"].values())
    assert 2 < plan["shards"] < 7
    assert set(plan_preparation(configure(finished.out))["stages"].values()) == {"committed"}


# -- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        "documents/documents-00002-of-00007.parquet",
        "dedup/selection-00003-of-00007.parquet",
        "tokenizer/tokenizer.json",
        "tokens/data-00004-of-00007.arrow",
        "tokens/tokenizer.json",
        "tokens/state.json",
    ],
)
def test_a_flipped_byte_or_a_lost_file_is_found_and_costs_one_file(copy, configure, finished, file):
    path = copy / file
    good = flip_bit(path)
    damaged = path.read_bytes()
    with pytest.raises(CorruptArtefactError, match=path.name) as raised:
        verify_preparation(copy)
    assert "cloze data prepare" in raised.value.next_step
    assert raised.value.runbook == "corrupt-shard.md"
    beside = {str((path.parent / "shard-records" / f"{path.name}.json").relative_to(copy))}
    quarantined = path.parent / "quarantine" / path.name
    assert made_again(configure(copy), finished) - beside == {file, str(quarantined.relative_to(copy))}
    assert path.read_bytes() == good
    assert quarantined.read_bytes() == damaged
    path.unlink()
    assert made_again(configure(copy), finished) - beside == {file}


@pytest.mark.parametrize("damage", ["flipped", "lost"])
def test_a_damaged_record_of_a_shard_is_found_and_made_again(copy, configure, finished, damage):
    path = copy / "documents" / "shard-records" / "documents-00002-of-00007.parquet.json"
    good = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(good.replace(b'"documents_read":', b'"documents_read":1', 1))
    with pytest.raises(CorruptArtefactError, match=path.name):
        verify_preparation(copy)
    made_again(configure(copy), finished)
    assert path.read_bytes() == good


def test_damage_of_what_only_led_to_the_artefacts_is_found_and_may_be_deleted(copy):
    path = copy / "work" / "document-hashes"
    file = next(one for one in sorted(path.iterdir()) if one.is_file() and one.name != "manifest.json")
    assert "work/document-hashes" in {row["name"] for row in verify_preparation(copy)}
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptArtefactError, match=file.name) as raised:
        verify_preparation(copy)
    assert raised.value.next_step.startswith(f"rm -r {path} ")
    shutil.rmtree(path)
    verify_preparation(copy)


@pytest.mark.parametrize("stage", MADE)
def test_a_damaged_manifest_is_made_again_without_redoing_any_shard(copy, configure, finished, stage):
    path = copy / stage / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"xxh3_128": "', b'"xxh3_128": "0', 1))
    with pytest.raises(CorruptArtefactError, match=f"1 damaged files .*\n  {path}: "):
        verify_preparation(copy)
    changed = made_again(configure(copy), finished)
    # Only shards have records by which they can be told from what somebody else put there; sidecars are written again.
    manifests = {f"{stage}/manifest.json", f"{stage}/quarantine/manifest.json"}
    assert {name for name in changed if "-of-" in name or "manifest" in name} == manifests
    assert f"{stage}/tokenizer.json" not in changed or stage == "tokens"


# -- changes ----------------------------------------------------------------------------------------------------


def test_other_settings_are_refused_until_replacing_is_allowed(copy, configure, finished):
    changed = configure(copy, min_characters=1)
    with pytest.raises(ConfigError, match="min_characters") as raised:
        prepare(changed)
    assert "--replace" in raised.value.next_step
    assert verify_preparation(copy)[3]["fingerprint"] == finished.fingerprint
    replaced = prepare(changed, replace=True)
    assert replaced.fingerprint != finished.fingerprint
    assert TokenStore.open(copy).num_documents == NUM_KEPT + 1


def test_a_document_is_gone_from_the_tokens_and_only_its_shard_is_made_again(
    copy, configure, finished, tmp_path, caplog
):
    listed = tmp_path / "takedown.txt"
    known = TokenStore.open(copy).doc_ids().to_pylist()
    listed.write_text(f"{known[3]}\nwiki:never-was\n")
    files = {path: path.read_bytes() for path in (copy / "tokens").glob("data-*.arrow")}
    with pytest.raises(ConfigError):
        prepare(configure(copy, takedown=listed))
    with caplog.at_level(logging.WARNING):
        taken = prepare(configure(copy, takedown=listed), replace=True)
    assert "1 of the 2 ids" in caplog.text
    assert TokenStore.open(copy).doc_ids().to_pylist() == [*known[:3], *known[4:]]
    assert taken.fingerprint != finished.fingerprint
    assert taken.tokenizer.fingerprint == finished.tokenizer.fingerprint
    assert sum(path.read_bytes() != contents for path, contents in files.items()) == 1
    assert "never-was" not in "".join(path.read_text() for path in (copy / "takedown").glob("*.json"))


def test_changed_source_bytes_are_noticed(tmp_path, corpus):
    moved = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    prepare_tokenizer(small_config(moved, tmp_path / "out"))
    book = moved / "books" / "book1.txt"
    book.write_text(book.read_text().replace("the", "teh"))
    with pytest.raises(ConfigError, match="inputs"):
        prepare_tokenizer(small_config(moved, tmp_path / "out"))


# -- refusals ---------------------------------------------------------------------------------------------------


def test_unreadable_inputs_fail_only_past_max_rejects(tmp_path, configure, corpus):
    shutil.copytree(corpus / "wiki", tmp_path / "wiki")
    damaged = tmp_path / "wiki" / "wiki_01"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    source = {"kind": "wikipedia_extracted", "name": "wiki", "paths": [str(tmp_path / "wiki" / "*")]}
    out = tmp_path / "out"
    with pytest.raises(TooManyRejectsError, match="wiki_01"):
        prepare_tokenizer(configure(out, sources=[source]))
    assert not (out / "documents").exists()
    prepare_tokenizer(configure(out, sources=[source], max_rejects=1))
    (reject,) = [reject for record in SHARD_RECORDS.read_all(out / "documents") for reject in record.rejects]
    assert reject.uri == "wiki_01"
    assert damaged.read_bytes()[reject.byte_offset :].startswith(b'<doc id="23"')


def test_a_corpus_without_usable_documents_is_refused_and_commits_nothing(tmp_path, configure):
    with pytest.raises(EmptyCorpusError, match="min_characters"):
        prepare(configure(tmp_path / "out", min_characters=1_000_000))
    assert not any((tmp_path / "out" / stage).exists() for stage in STAGES)
    with pytest.raises(EmptyCorpusError, match="no_text 3"):
        require_documents({"rows": 0, "documents_read": 0, "skipped.no_text": 3}, 0, 10)


def test_a_directory_that_is_in_use_or_cannot_be_written_is_a_storage_error(copy, tmp_path, configure):
    with exclusive(copy, "a preparation"), pytest.raises(StorageError, match="in use"):
        prepare(configure(copy))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="Cannot write"):
        prepare(configure(tmp_path / "file" / "out"))


def test_weights_that_do_not_name_the_sources_are_refused(tmp_path):
    with pytest.raises(ValidationError, match="wiki, books"):
        small_config(tmp_path, tmp_path / "out", tokenizer={"weights": {"wiki": 1}})
    small_config(tmp_path, tmp_path / "out", tokenizer={"weights": {"wiki": 1, "books": 0}})
