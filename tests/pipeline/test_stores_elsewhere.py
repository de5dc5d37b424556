"""Runs whose tokens lie in an object store: the fingerprint of the tokens identifies them, not their place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import ConfigError, ResumeRefusedError
from cluster.publication import push
from pipeline.checkpoint.checkpoint import MODEL_FILE, list_checkpoints
from pipeline.inspect.lineage import trace
from pipeline.pretrain.launch import settled
from pipeline.pretrain.resume_checks import check_resume
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import read_metrics
from tests.conftest import write_store
from tests.object_store import behind_proxy, running_store
from tests.pipeline.command import invoke
from tests.pipeline.ranks import make_config, make_run, start_ranks, train
from tests.pipeline.test_exactness import kill_after_step

URI = "s3://bucket/data/tokens"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[str]:
    """A server with the tokens of `store` at URI."""
    with running_store() as address:
        push(store, URI)
        yield address


@pytest.fixture(autouse=True)
def cache(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run.checkpoints)[-1] / MODEL_FILE)


def test_run_on_tokens_of_a_store_resumes_with_an_empty_cache_under_either_name_bit_for_bit(
    tmp_path: Path, store: Path, cache: Path, server: str
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    expected = make_run(tmp_path / "here", store, "run")
    train(expected, 2)
    run = make_run(tmp_path / "there", URI, "run")  # pyright: ignore[reportArgumentType]
    with behind_proxy(server) as proxy:
        kill_after_step(start_ranks(run, 2), run, 3)
        assert proxy.count("GET", "tokens/data-00000-of-00002.arrow") == 1
    shutil.rmtree(cache)
    group = start_ranks(run, 2)
    while not list_checkpoints(run.checkpoints):
        assert group.poll() is None, group.output[-3000:]
    assert [entry["uri"] for entry in inputs_of(run)] == [URI]
    kill_after_step(group, run, 5)
    run.reconfigure(run.config((f"data.stores.0.path={store}",)))
    train(run, 2)
    assert [entry["uri"] for entry in inputs_of(run)] == [str(store)]
    assert [row["loss"] for row in read_metrics(run)] == [row["loss"] for row in read_metrics(expected)]
    found = weights(run)
    assert all(torch.equal(tensor, found[name]) for name, tensor in weights(expected).items())
    for place in (URI, store):
        assert check_resume(run, run.config((f"data.stores.0.path={place}",)), look_only=True) is not None
    (node,) = [one for one in trace(str(run.path), tmp_path).inputs[0].inputs if one.kind == "tokens"]
    assert (node.uri, node.problem) == (str(store), "")


def inputs_of(run: RunDirectory) -> list[dict[str, Any]]:
    return orjson.loads((list_checkpoints(run.checkpoints)[-1] / "manifest.json").read_bytes())["inputs"]


def test_other_tokens_at_the_same_uri_are_refused_by_fingerprint(tmp_path: Path, store: Path):
    place = "s3://bucket/changing/tokens"
    push(store, place)
    run = make_run(tmp_path, place, "run", "steps=4")  # pyright: ignore[reportArgumentType]
    train(run, 1)
    push(write_store(tmp_path / "other", seed=1), place, replace=True)
    with pytest.raises(ResumeRefusedError, match=r"data\.tokens"):
        check_resume(run, run.config(), look_only=True)


def test_settings_of_a_run_keep_a_uri_as_it_is_and_refuse_credentials(tmp_path: Path):
    config = make_config(tmp_path, URI)  # pyright: ignore[reportArgumentType]
    assert settled(config).data.stores[0].path == URI
    with pytest.raises(ConfigError, match="credentials") as caught:
        make_config(tmp_path, "'s3://user:planted@bucket/tokens'")  # pyright: ignore[reportArgumentType]
    assert "planted" not in str(caught.value)


def test_dry_run_fetches_no_tokens(tmp_path: Path, cache: Path):
    make_config(tmp_path, URI)  # pyright: ignore[reportArgumentType]
    config = str(tmp_path / "tiny.yaml")
    done = invoke("pretrain", config, "--dry-run", "--json")
    assert orjson.loads(done.stdout)["stores to fetch"] == URI
    assert not list(cache.rglob("*.arrow"))
