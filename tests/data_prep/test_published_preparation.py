"""A preparation in an object store: the verbs that read data take its URI, and a fresh machine goes on from it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError, CorruptArtefactError
from data_prep.config import PreparationConfig
from data_prep.input_hashes import CACHE_NAME
from data_prep.job import prepare, publish
from data_prep.token_store import TokenStore
from data_prep.tokenizers.pretrained import find_tokenizer
from tests.object_store import behind_proxy, flip_byte, objects
from tests.pipeline.command import cloze, invoke

URI = "s3://bucket/corpus"


@pytest.fixture(scope="module")
def published(server: str, finished: Any) -> Path:
    """The directory of the preparation that is at URI."""
    publish(finished.out, URI)
    return finished.out


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache of a fresh machine."""
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def answer(*arguments: object) -> Any:
    """What a verb says for programs."""
    return json.loads(cloze(*arguments, "--json"))


def test_tokens_at_a_uri_are_those_of_the_directory(published: Path):
    here, there = TokenStore.open(published), TokenStore.open(URI)
    assert (there.fingerprint, there.place) == (here.fingerprint, f"{URI}/tokens")
    assert all((here.tokens(n) == there.tokens(n)).all() for n in range(here.num_documents))
    assert there.document(5) == here.document(5)


def test_verbs_say_the_same_of_a_uri_as_of_a_directory(published: Path):
    rows, whole = answer("data", "verify", URI), answer("data", "verify", published)
    there = {row["name"]: row["fingerprint"] for row in rows}
    assert there.keys() == {"documents", "dedup", "tokenizer", "tokens"}
    assert there.items() <= {row["name"]: row["fingerprint"] for row in whole}.items()
    here, there = answer("data", "stats", published), answer("data", "stats", URI)
    assert here["stages"]
    assert there == here | {"path": f"{URI}/tokens", "stages": {}}
    document = answer("data", "inspect", URI, "--document", 7)
    assert document == answer("data", "inspect", published, "--document", 7)
    (found,) = answer("data", "find", URI, "--id", document["doc_id"])["documents"]
    assert (found["number"], found["store"]) == (7, f"{URI}/tokens")
    by_text = answer("data", "find", URI, "--text", document["text"][:40])["documents"]
    assert 7 in [row["number"] for row in by_text]


def test_one_document_costs_one_shard_of_documents(server: str, published: Path):
    with behind_proxy(server) as proxy:
        answer("data", "inspect", URI, "--document", 7)
        shards = {one.path for one in proxy.requests if one.method == "GET" and ".parquet" in one.path}
    assert sum("/documents/documents-" in path for path in shards) == 1
    assert len(list((published / "documents").glob("*.parquet"))) == 7


def test_plan_counts_tokens_at_a_uri_without_fetching_them(published: Path, cache: Path):
    machines = ("--nodes", 1, "--gpus-per-node", 1, "--gpu", "h100")
    here, there = (
        answer("plan", "gpt-tiny", f"data.stores=[{{path: {place}/tokens}}]", *machines)
        for place in (published, URI)
    )
    (store,), (expected,) = there["stores"], here["stores"]
    assert (store["path"], store["tokens"]) == (f"{URI}/tokens", pytest.approx(expected["tokens"], rel=0.05))
    assert there["parameters"] == here["parameters"]
    assert not list(cache.rglob("*.arrow"))


def test_lineage_of_tokens_at_a_uri_is_followed_there(published: Path):
    tree = answer("lineage", f"{URI}/tokens")
    assert (tree["kind"], tree["uri"]) == ("tokens", f"{URI}/tokens")
    assert not [node for node in tree["inputs"] if node["problem"]]
    assert {node["kind"] for node in tree["inputs"]} == {"documents", "dedup", "tokenizer"}


def test_flipped_byte_is_found_and_named(published: Path):
    victim = "s3://bucket/victim"
    publish(published, victim)
    shard = next(name for name in objects(f"{victim}/documents") if name.endswith(".parquet"))
    flip_byte(f"{victim}/documents/{shard}", 300)
    failed = invoke("data", "verify", victim)
    assert isinstance(failed.exception, CorruptArtefactError)
    assert f"{victim}/documents/{shard}" in failed.exception.problem
    again = failed.exception.next_step.rpartition(": ")[2].replace("DIRECTORY", str(published / "documents"))
    cloze(*again.split()[1:])
    answer("data", "verify", victim)


def test_tokenizer_of_a_store_serves_another_preparation(
    published: Path, configure: Callable[..., PreparationConfig], tmp_path: Path
):
    found = find_tokenizer(URI)
    whole = Tokenizer.from_file(str(published / "tokens" / "tokenizer.json"))
    assert Tokenizer.from_file(str(found.files[0])).to_str() == whole.to_str()
    config = configure(tmp_path / "out", tokenizer={"path": f"{URI}/tokens"})
    assert config.tokenizer.model_dump()["path"] == f"{URI}/tokens"
    rows = answer("tokenizer", "encode", f"{URI}/tokens", "a few words")
    assert rows["ids"] == whole.encode("a few words", add_special_tokens=False).ids


def test_preparation_that_is_pulled_is_confirmed_without_work(
    published: Path, configure: Callable[..., PreparationConfig], tmp_path: Path, finished: Any
):
    out = tmp_path / "fresh"
    with pytest.raises(ConfigError) as caught:
        prepare(configure(out, publish=URI))
    assert not out.exists()
    command = caught.value.next_step.partition(",")[0].split()
    assert command[2:] == [URI, str(out)]
    cloze(*command[1:])
    # The hashes of the source files. Whatever else had to be made would need a Ray cluster, and none is connected.
    shutil.copy(published / CACHE_NAME, out / CACHE_NAME)
    prepared = prepare(configure(out, publish=URI))
    assert prepared.fingerprint == finished.fingerprint
    assert answer("data", "rejects", out) == answer("data", "rejects", published)
