"""Models by their names on the Hub: from the cache, else downloaded, else a message that says what was looked for;
their directories, tokenizers and lineages."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
import transformers
from huggingface_hub import constants
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from cluster.artefacts.errors import DownloadError, MismatchError, ReferenceNotFoundError
from cluster.artefacts.manifest import InputEntry, hash_file, read_manifest
from pipeline.checkpoint.hub import HubName, hub_name
from pipeline.checkpoint.references import resolve_model
from pipeline.inspect.lineage import trace
from tests.pipeline.command import cloze
from tests.pipeline.test_lineage import make
from tests.surroundings import serving

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "mat", "."]
FOR_OTHER_PROGRAMS = {"README.md", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin"}
TEXT = "The cats sat on the mat."
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


class Hub:
    """A Hugging Face Hub on this machine: answers to the requests that downloading a model's files makes."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, Answer] = {}
        """By path."""
        self.asked: list[str] = []
        """The paths of all requests, in order."""

    def add(self, name: str, files: Mapping[str, bytes]) -> None:
        """Offer a model in one commit."""
        about = {"id": name, "sha": commit_of(name), "siblings": [{"rfilename": file} for file in files]}
        tree = [{"type": "file", "path": file, "size": len(b), "oid": sha1(b)} for file, b in files.items()]
        for revision in ("main", commit_of(name)):
            for kind, content in (("revision", about), ("tree", tree)):
                body = json.dumps(content).encode()
                self.answers[f"api/models/{name}/{kind}/{revision}"] = 200, {}, body
            for file, content in files.items():
                headers = {"X-Repo-Commit": commit_of(name), "ETag": f'"{sha1(content)}"'}
                self.answers[f"{name}/resolve/{revision}/{file}"] = 200, headers, content
        self.answers[f"api/models/{name}"] = self.answers[f"api/models/{name}/revision/main"]

    def refuse(self, part: str, status: int, code: str) -> None:
        """Answer requests for paths with this part with an error."""
        for path in self.answers:
            if part in path:
                self.answers[path] = status, {"X-Error-Code": code}, b""

    def answer(self, path: str) -> Answer:
        self.asked.append(path)
        is_known = path.partition("/revision/")[0] in self.answers
        missing = (
            "RevisionNotFound" if is_known else "EntryNotFound" if "/resolve/" in path else "RepoNotFound"
        )
        return self.answers.get(path, (404, {"X-Error-Code": missing}, b""))


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def commit_of(name: str) -> str:
    """The only commit of a model."""
    return sha1(name.encode())


@contextmanager
def serve(hub: Hub) -> Iterator[None]:
    """Answer on a free port until the block ends."""

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

    with serving(Handler) as host:
        hub.url = f"http://{host}"
        yield


@pytest.fixture(scope="module")
def bert_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as it lies on the Hub: with the tokenizer in both forms, and much that is for other programs."""
    directory = tmp_path_factory.mktemp("bert")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer(vocab=str(vocabulary)).save_pretrained(directory)
    vocabulary.write_text("\n".join(WORDS) + "\n")
    sizes: Any = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    config = transformers.BertConfig(
        vocab_size=len(WORDS), num_hidden_layers=1, num_attention_heads=2, **sizes
    )
    transformers.BertForMaskedLM(config).save_pretrained(directory)
    for other in FOR_OTHER_PROGRAMS:
        (directory / other).write_bytes(b"not read")
    return directory


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_directory: Path) -> Iterator[Hub]:
    """A Hub, and an empty cache."""
    hub = Hub()
    files = {file.name: file.read_bytes() for file in sorted(bert_directory.iterdir())}
    for name in ("bert-tiny", "org/bert.v1-Tiny", "gated"):
        hub.add(name, files)
    hub.refuse("gated/resolve", 403, "GatedRepo")  # anybody may read the description
    hub.add("old", {name: content for name, content in files.items() if name != "model.safetensors"})
    with serve(hub):
        set_hub(monkeypatch, hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cloze-cache"))
        yield hub


def set_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """As HF_ENDPOINT does for a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("bert-base-uncased", HubName("bert-base-uncased")),
        ("facebook/bart-base", HubName("facebook/bart-base")),
        ("org/name@refs/pr/3", HubName("org/name", "refs/pr/3")),
        *((name, None) for name in ("name@latest", "name@best", "name@1200", "models:/name@best")),
        *(
            (name, None)
            for name in ("./name", "../name", "/name", "~/name", "a/b/c", "a/", "s3://bucket/name")
        ),
        *((name, None) for name in ("", "a b", "näme", "name\n", "a--b", "name@", "name@../../x")),
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
    assert found.reference == f"{name}@{commit_of(name)}"
    assert found.name == name.replace("/", "_")
    assert (found.fingerprint, found.model, found.head) == (local.fingerprint, local.model, local.head)
    assert found.tokenizer_path.read_bytes() == local.tokenizer_path.read_bytes()
    torch.testing.assert_close(found.state_dict(), local.state_dict(), rtol=0, atol=0)


def test_an_export_of_a_name_records_the_commit(online: Hub, tmp_path: Path):
    cloze("export", "org/bert.v1-Tiny", tmp_path / "out")
    (source,) = read_manifest(tmp_path / "out").inputs
    assert source.uri == f"org/bert.v1-Tiny@{commit_of('org/bert.v1-Tiny')}"


def test_only_files_that_are_read_and_not_there_are_downloaded(online: Hub, tmp_path: Path):
    found = resolve_model("bert-tiny", tmp_path)
    there = {file.name for file in found.directory.iterdir()}
    assert there >= {"config.json", "tokenizer.json", "vocab.txt", "model.safetensors"}
    assert not there & FOR_OTHER_PROGRAMS
    asked = len(online.asked)
    for reference in ("bert-tiny", "bert-tiny@main", f"bert-tiny@{commit_of('bert-tiny')}"):
        assert resolve_model(reference, tmp_path) == found
    assert len(online.asked) == asked
    weights = found.directory / "model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    assert resolve_model("bert-tiny", tmp_path) == found
    assert weights.is_file()


@pytest.mark.parametrize(
    ("reference", "remedy"),
    [
        ("bert-tinny", "no run bert-tinny in .*cloze runs.*HF_TOKEN"),
        ("bert-tiny@v2", "leave out the revision: bert-tiny"),
        ("old", r"from_pretrained\('old'\).*save_pretrained\('DIR'\)"),
        ("gated", "127.0.0.1:[0-9]+/gated .*HF_TOKEN"),
    ],
)
def test_what_the_hub_does_not_give_is_answered_with_what_to_do(
    online: Hub, reference: str, remedy: str, tmp_path: Path
):
    with pytest.raises(ReferenceNotFoundError) as caught:
        resolve_model(reference, tmp_path / "runs")
    assert re.search(remedy, str(caught.value), re.DOTALL)
    assert not any(path.endswith((".bin", ".msgpack", ".h5")) for path in online.asked)


def test_hub_that_does_not_answer_is_named_with_the_command_for_a_machine_that_it_answers(
    online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    set_hub(monkeypatch, address)
    with pytest.raises(ReferenceNotFoundError, match=address) as caught:
        resolve_model("bert-tiny", tmp_path)
    assert "hf download bert-tiny --local-dir DIR" in str(caught.value)


def test_average_of_weights_is_not_asked_for(online: Hub, tmp_path: Path):
    with pytest.raises(MismatchError):
        resolve_model("bert-tiny", tmp_path, "ema")
    assert not online.asked


def test_a_download_that_fails_says_so_and_is_continued(online: Hub, tmp_path: Path):
    answers = dict(online.answers)
    online.refuse("/model.safetensors", 500, "EntryNotFound")
    with pytest.raises(DownloadError):
        resolve_model("bert-tiny", tmp_path)
    online.answers = answers
    assert resolve_model("bert-tiny", tmp_path).model.num_layers == 1


def test_paths_and_places_in_the_directory_of_runs_are_not_asked_for(
    online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "deeper").mkdir(parents=True)
    references = ("runs/secret", "runs/secret@10", "secret@best", "./secret", "a/b/c", "/missing/model")
    for reference in (*references, "own/deeper"):
        with pytest.raises(ReferenceNotFoundError):
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
    with pytest.raises(MismatchError):
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
        *(("vocab.txt", contents) for contents in (b"", b"\xff\xfe\x00")),
        *(("vocab.json", contents) for contents in (b"{", b"[1]")),
        *(("spiece.model", contents) for contents in (b"", b"\xff\xfe\x00")),
    ],
)
def test_a_vocabulary_that_cannot_be_converted_is_named(
    name: str, contents: bytes, old: Path, tmp_path: Path
):
    (old / "vocab.txt").unlink()
    (old / name).write_bytes(contents)
    with pytest.raises(ReferenceNotFoundError, match=name):
        resolve_model(str(old), tmp_path)


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
        ("model.safetensors", b"{", "model.safetensors"),
        ("model.safetensors", None, "pytorch_model.bin"),
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
        make(tmp_path / used, "scores", InputEntry("checkpoint", reference, used))
        (node,) = trace(str(tmp_path / used), tmp_path).inputs
        assert node.problem == problem
        assert problem or node.kind == "hugging-face-directory"


def test_model_of_the_hub_tells_its_commit_wherever_it_lies(
    bert_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    model, commit = tmp_path / "cache" / "models--org--small", commit_of("org/small")
    snapshot = shutil.copytree(bert_directory, model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    fingerprint = trace(str(snapshot), tmp_path).fingerprint
    make(tmp_path / "scores", "scores", InputEntry("checkpoint", f"org/small@{commit}", fingerprint))
    (of_scores,) = trace(str(tmp_path / "scores"), tmp_path).inputs
    for node in (trace("org/small", tmp_path), trace(str(snapshot), tmp_path), of_scores):
        assert (node.facts["hub_model"], node.facts["hub_commit"]) == ("org/small", commit)
