"""Models by their names on the Hub: from the cache, else downloaded, else a message that says what was looked for;
their directories, tokenizers and lineages."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
import transformers
from huggingface_hub import constants
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from cluster.artefacts.errors import DownloadError, MismatchError, ReferenceNotFoundError
from cluster.artefacts.manifest import InputEntry, hash_file
from cluster.artefacts.storage import commit
from pipeline.checkpoint.hub import HubName, hub_name
from pipeline.checkpoint.references import resolve_model
from pipeline.inspect.lineage import trace
from tests.pipeline.command import cloze

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "mat", "."]
FOR_OTHER_PROGRAMS = {"README.md", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin"}
TEXT = "The cats sat on the mat."
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass
class Hub:
    """A Hugging Face Hub on this machine: answers to the requests that downloading a model's files makes."""

    models: Mapping[str, Path]
    """By name, each a directory whose files lie at its root."""
    url: str = ""
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    """Files that are answered with an error of the server."""
    asked: list[str] = field(default_factory=list)
    """The paths of all requests, in order."""

    def commit(self, name: str) -> str:
        """The only commit of a model."""
        files = sorted(self.models[name].iterdir())
        return _hash(name.encode(), *(file.name.encode() + file.read_bytes() for file in files))

    def answer(self, path: str) -> Answer:
        self.asked.append(path)
        for name in sorted(self.models, key=len, reverse=True):
            for start in (f"api/models/{name}", name):
                if path == start or path.startswith(f"{start}/"):
                    return self._of_model(name, path.removeprefix(start).strip("/").split("/"))
        return _error(404, "RepoNotFound")

    def _of_model(self, name: str, rest: list[str]) -> Answer:
        commit = self.commit(name)
        if name in self.gated and rest[0] == "resolve":  # anybody may read the description
            return _error(403, "GatedRepo")
        if rest[1:] and rest[1] not in ("main", commit):
            return _error(404, "RevisionNotFound")
        files = sorted(self.models[name].iterdir())
        if rest[0] in ("", "revision"):
            siblings = [{"rfilename": file.name} for file in files]
            return _json({"id": name, "sha": commit, "siblings": siblings, "tags": [], "private": False})
        if rest[0] == "tree":
            about = [(file.name, file.read_bytes()) for file in files]
            return _json(
                [{"type": "file", "path": path, "size": len(b), "oid": _hash(b)} for path, b in about]
            )
        file = self.models[name] / rest[2]
        if rest[2] in self.broken or not file.is_file():
            return _error(500 if rest[2] in self.broken else 404, "EntryNotFound")
        contents = file.read_bytes()
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{_hash(contents)}"'}, contents


def _hash(*contents: bytes) -> str:
    return hashlib.sha1(b"".join(contents)).hexdigest()


def _json(value: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _error(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code}, b""


@contextmanager
def serve(models: Mapping[str, Path]) -> Iterator[Hub]:
    """Answer on a free port until the block ends."""
    hub = Hub(models)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(unquote(urlsplit(self.path).path).strip("/"))
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def bert_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as it lies on the Hub: with the tokenizer in both forms, and much that is for other programs."""
    directory = tmp_path_factory.mktemp("bert")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer(vocab=str(vocabulary)).save_pretrained(directory)
    vocabulary.write_text("\n".join(WORDS) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        max_position_embeddings=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    transformers.BertForMaskedLM(config).save_pretrained(directory)
    for other in FOR_OTHER_PROGRAMS:
        (directory / other).write_bytes(b"not read")
    return directory


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_directory: Path) -> Iterator[Hub]:
    """A Hub, and an empty cache."""
    with serve({"bert-tiny": bert_directory, "org/bert.v1-Tiny": bert_directory}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cloze-cache"))
        yield hub


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("bert-base-uncased", HubName("bert-base-uncased")),
        ("facebook/bart-base", HubName("facebook/bart-base")),
        ("org/name@refs/pr/3", HubName("org/name", "refs/pr/3")),
        ("name@latest", None),
        ("name@best", None),
        ("name@1200", None),
        ("./name", None),
        ("a/b/c", None),
        ("", None),
        ("näme", None),
        ("name\n", None),
        ("a--b", None),
        ("name@../../x", None),
        ("models:/name@best", None),
        ("s3://bucket/name", None),
        *((name, None) for name in ("../name", "/name", "~/name", "a/", "a b", "name@")),
    ],
)
def test_names_on_the_hub_are_told_from_paths_runs_and_uris(reference: str, name: HubName | None):
    assert hub_name(reference) == name


@pytest.mark.parametrize("name", ["bert-tiny", "org/bert.v1-Tiny"])
def test_a_model_of_the_hub_is_the_model_of_its_directory(
    online: Hub, name: str, tmp_path: Path, bert_directory: Path
):
    local = resolve_model(str(bert_directory), tmp_path)
    found = resolve_model(name, tmp_path)
    assert found.reference == f"{name}@{online.commit(name)}"
    assert found.name == name.replace("/", "_")
    assert (found.fingerprint, found.model, found.head) == (local.fingerprint, local.model, local.head)
    assert found.tokenizer_path.read_bytes() == local.tokenizer_path.read_bytes()
    torch.testing.assert_close(found.state_dict(), local.state_dict(), rtol=0, atol=0)


def test_only_files_that_are_read_and_not_there_are_downloaded(online: Hub, tmp_path: Path):
    found = resolve_model("bert-tiny", tmp_path)
    there = {file.name for file in found.directory.iterdir()}
    assert there >= {"config.json", "tokenizer.json", "vocab.txt", "model.safetensors"}
    assert not there & FOR_OTHER_PROGRAMS
    asked = len(online.asked)
    for reference in ("bert-tiny", "bert-tiny@main", f"bert-tiny@{online.commit('bert-tiny')}"):
        assert resolve_model(reference, tmp_path) == found
    assert len(online.asked) == asked
    weights = found.directory / "model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    assert resolve_model("bert-tiny", tmp_path) == found
    assert weights.is_file()


def test_what_the_hub_cannot_give_is_answered_with_what_to_do(
    online: Hub, bert_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(reference: str) -> str:
        with pytest.raises(ReferenceNotFoundError) as caught:
            resolve_model(reference, tmp_path / "runs")
        return str(caught.value)

    unknown = refused("bert-tinny")
    for named in (f"no run bert-tinny in {tmp_path / 'runs'}", online.url, "cloze runs", "HF_TOKEN"):
        assert named in unknown
    assert "leave out the revision: bert-tiny" in refused("bert-tiny@v2")
    weights = (bert_directory / "model.safetensors").rename(bert_directory / "kept")
    old = refused("bert-tiny")
    weights.rename(bert_directory / "model.safetensors")
    for named in ("only in flax_model.msgpack", "from_pretrained('bert-tiny')", "save_pretrained('DIR')"):
        assert named in old
    assert not any(path.endswith((".bin", ".msgpack", ".h5")) for path in online.asked)
    online.gated.add("bert-tiny")
    assert f"{online.url}/bert-tiny" in refused("bert-tiny")
    asked = len(online.asked)
    with pytest.raises(MismatchError, match="moving average"):
        resolve_model("bert-tiny", tmp_path, "ema")
    assert len(online.asked) == asked
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    unreachable = refused("bert-tiny")
    assert address in unreachable
    assert "hf download bert-tiny --local-dir DIR" in unreachable


def test_a_download_that_fails_says_so_and_is_continued(online: Hub, tmp_path: Path):
    online.broken.add("model.safetensors")
    with pytest.raises(DownloadError):
        resolve_model("bert-tiny", tmp_path)
    online.broken.clear()
    assert resolve_model("bert-tiny", tmp_path).model.num_layers == 1


def test_paths_and_places_in_the_directory_of_runs_are_not_asked_for(
    online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "deeper").mkdir(parents=True)
    for reference, lacking in (
        ("runs/secret", "run"),
        ("runs/secret@10", "run"),
        ("secret@best", "run"),
        ("./secret", "no directory secret"),
        ("a/b/c", "no directory a/b/c"),
        ("/missing/model", "no directory /missing/model"),
        ("own/deeper", r"config\.json"),
    ):
        with pytest.raises(ReferenceNotFoundError, match=lacking):
            resolve_model(reference, Path("runs"))
    assert not online.asked
    with pytest.raises(ReferenceNotFoundError, match=r"config\.json"):
        resolve_model("own", Path("runs"))


def test_offline_the_cache_is_used_and_the_hub_is_not_asked(
    online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = resolve_model("bert-tiny", tmp_path)
    asked = len(online.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("bert-tiny", tmp_path) == found
    with pytest.raises(ReferenceNotFoundError, match="HF_HUB_OFFLINE"):
        resolve_model("org/bert.v1-Tiny", tmp_path)
    assert len(online.asked) == asked


def test_the_command_line_takes_a_name_and_asks_hf_endpoint(bert_directory: Path, tmp_path: Path):
    command = [sys.executable, "-m", "pipeline.cli", "export", "org/tiny", str(tmp_path / "out")]
    with serve({"org/tiny": bert_directory}) as hub:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
        commit = hub.commit("org/tiny")
    assert done.returncode == 0, done.stderr
    assert f"org/tiny@{commit}" in (tmp_path / "out" / "manifest.json").read_text()


@pytest.fixture
def old(bert_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose tokenizer has a vocabulary only, and an empty cache."""
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(bert_directory, tmp_path / "old")
    (tmp_path / "old" / "tokenizer.json").unlink()
    return tmp_path / "old"


def test_a_tokenizer_with_a_vocabulary_only_is_converted(old: Path, bert_directory: Path, tmp_path: Path):
    found = resolve_model(str(old), tmp_path)
    assert found.tokenizer_path.is_relative_to(tmp_path / "cache")
    own = Tokenizer.from_file(str(bert_directory / "tokenizer.json"))
    converted = Tokenizer.from_file(str(found.tokenizer_path))
    assert converted.encode(TEXT).ids == own.encode(TEXT).ids
    assert not (old / "tokenizer.json").exists()
    assert resolve_model(str(old), tmp_path).tokenizer_path == found.tokenizer_path
    (old / "vocab.txt").write_text("\n".join([*WORDS, "dog"]) + "\n")
    with pytest.raises(MismatchError, match=" 12"):
        resolve_model(str(old), tmp_path)


def test_byte_level_vocabulary_and_merges_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [TEXT] * 3, vocab_size=280, special_tokens=["<|endoftext|>"], show_progress=False
    )
    config = transformers.GPT2Config(
        vocab_size=trained.get_vocab_size(), n_positions=32, n_embd=16, n_layer=1, n_head=2
    )
    directory = tmp_path / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    trained.save_model(str(directory))
    found = resolve_model(str(directory), tmp_path)
    assert Tokenizer.from_file(str(found.tokenizer_path)).encode(TEXT).ids == trained.encode(TEXT).ids


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("vocab.txt", b""),
        ("vocab.txt", b"\xff\xfe\x00"),
        ("vocab.json", b"{"),
        ("vocab.json", b"[1]"),
        ("spiece.model", b""),
        ("spiece.model", b"\xff\xfe\x00"),
    ],
)
def test_a_vocabulary_that_cannot_be_converted_keeps_the_hint(
    name: str, contents: bytes, old: Path, tmp_path: Path
):
    (old / "vocab.txt").unlink()
    (old / name).write_bytes(contents)
    with pytest.raises(ReferenceNotFoundError, match=name) as caught:
        resolve_model(str(old), tmp_path)
    assert "save its fast tokenizer there" in str(caught.value)


def commit_scores(place: Path, reference: str, fingerprint: str) -> Path:
    """Scores as fine-tuning from this model records them."""
    staging = place.with_name("staging")
    staging.mkdir()
    (staging / "scores.json").write_text("[]")
    entry = InputEntry(kind="checkpoint", uri=reference, fingerprint=fingerprint)
    commit(staging, place, "scores", config={}, inputs=[entry])
    return place


def test_directory_tells_network_weights_and_that_its_training_is_unknown(bert_directory: Path):
    node = trace(str(bert_directory), Path("runs"))
    network = transformers.BertForMaskedLM.from_pretrained(bert_directory)
    parameters = sum(each.numel() for each in network.parameters())
    told = {"architecture": "BertForMaskedLM", "parameters": parameters, "precision": "F32"}
    assert {name: node.facts[name] for name in told} == told
    assert node.fingerprint == hash_file(bert_directory / "model.safetensors")[0]
    assert "training" in node.facts["unknown"]
    assert node.facts["unknown"] in cloze("lineage", bert_directory)


@pytest.mark.parametrize(
    ("name", "contents", "told"),
    [
        ("model.safetensors", b"{", "is damaged"),
        ("model.safetensors", None, "has its weights only in pytorch_model.bin"),
        ("config.json", b"[1]", ""),
    ],
)
def test_damaged_directory_tells_the_rest_and_what_is_wrong(
    bert_directory: Path, tmp_path: Path, name: str, contents: bytes | None, told: str
):
    place = shutil.copytree(bert_directory, tmp_path / "model")
    (place / name).unlink()
    if contents is not None:
        (place / name).write_bytes(contents)
    node = trace(str(place), tmp_path)
    assert told in node.problem
    assert bool(told) == bool(node.problem)
    assert node.facts["unknown"]


def test_scores_lead_to_the_directory_that_they_were_fine_tuned_from_and_to_no_other(
    bert_directory: Path, tmp_path: Path
):
    reference = str(bert_directory)
    fingerprint = resolve_model(reference, tmp_path).fingerprint
    for used, problem in ((fingerprint, ""), ("0" * 32, f"{reference} now holds other weights")):
        (node,) = trace(str(commit_scores(tmp_path / used, reference, used)), tmp_path).inputs
        assert node.problem == problem
        assert problem or node.kind == "hugging-face-directory"


def test_model_of_the_hub_tells_its_commit_wherever_it_lies(
    bert_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "cache" / "models--org--small"
    snapshot = shutil.copytree(bert_directory, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    fingerprint = trace(str(snapshot), tmp_path).fingerprint
    scores = commit_scores(tmp_path / "scores", f"org/small@{COMMIT}", fingerprint)
    (of_scores,) = trace(str(scores), tmp_path).inputs
    for node in (trace("org/small", tmp_path), trace(str(snapshot), tmp_path), of_scores):
        assert (node.facts["hub_model"], node.facts["hub_commit"]) == ("org/small", COMMIT)
