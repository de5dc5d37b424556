"""A fingerprint holds no place and no time: artefacts of every kind, made twice, with all that may differ different."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

KINDS = {
    *("documents", "dedup", "decontamination", "tokenizer", "tokens", "checkpoint", "scores", "export"),
    *("id-hashes", "id-repeats", "document-hashes", "document-repeats", "tokenizer-sample"),
    *(
        "paragraph-hashes",
        "paragraph-repeats",
        "paragraphs-removed",
        "evaluation-ngrams",
        "decontamination-hits",
    ),
    *("near-buckets", "near-edges", "near-pairs", "near-repeats", "near-shingles"),
    *("near-round-00-large", "near-round-00-small"),
}
"""All that is made; the layout of an epoch is a cache and is named by its inputs."""
ANOTHER_HOST = """
import getpass, os, platform, socket
getpass.getuser = lambda: "somebody"
platform.node = socket.gethostname = lambda: "another-host"
"""
"""What Python runs at its start in the second place, in Ray's workers and training ranks too."""
FIRST = {"PYTHONHASHSEED": "1", "FRESH_MEMORY": "85", "TZ": "UTC"}
SECOND = {
    "PYTHONHASHSEED": "2",
    # Memory that is used without having been written looks different.
    "FRESH_MEMORY": "170",
    "TZ": "Asia/Kathmandu",
    "LANG": "C",
    "USER": "somebody",
    "HOSTNAME": "another-host",
}
NOW = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
DAY_S = 86400


def make(
    directory: Path, place: Path | str, num_cpus: int, environment: Mapping[str, str], umask: int
) -> Any:
    """Start making everything, in `place` as seen from `directory`."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.every_artefact", str(place), str(num_cpus)]
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([environment.get("PYTHONPATH", ""), str(root)])
    whole = {**os.environ, **environment, "PYTHONPATH": paths}
    with (directory / "output").open("wb") as output:
        return subprocess.Popen(command, cwd=directory, env=whole, umask=umask, stdout=output, stderr=output)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two directories with everything in them."""
    first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two") / "further" / "down"
    customised = tmp_path_factory.mktemp("site")
    (customised / "sitecustomize.py").write_text(ANOTHER_HOST)
    elsewhere = {**SECOND, "PYTHONPATH": str(customised), "TMPDIR": str(tmp_path_factory.mktemp("tmp"))}
    runs = (
        (first, first / "made", make(first / "cwd", first / "made", 1, FIRST, 0o022)),
        (second, second / "cwd" / "other", make(second / "cwd", "other", 2, elsewhere, 0o077)),
    )
    for directory, _, process in runs:
        assert process.wait() == 0, (directory / "cwd" / "output").read_text()[-3000:]
    return runs[0][1], runs[1][1]


def manifests(place: Path) -> dict[str, dict[str, Any]]:
    """By an artefact's place in `place`, its manifest."""
    paths = sorted(place.rglob("manifest.json"))
    return {str(path.parent.relative_to(place)): orjson.loads(path.read_bytes()) for path in paths}


def fingerprinted(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a fingerprint is made of."""
    return {
        "kind": manifest["kind"],
        "config": manifest["config"],
        "inputs": [(entry["kind"], entry["fingerprint"]) for entry in manifest["inputs"]],
        "files": {entry["path"]: entry["xxh3_128"] for entry in manifest["files"]},
    }


def leaves(value: Any) -> Iterator[str | int | float]:
    """All names and values in nested settings."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    elif value is not None:
        yield value


def test_artefacts_made_at_another_place_and_time_have_the_same_fingerprints(places: tuple[Path, Path]):
    here, there = (manifests(place) for place in places)
    assert {manifest["kind"] for manifest in here.values()} == KINDS
    assert here.keys() == there.keys()
    hosts = {manifest["created_by"]["host"] for manifest in there.values()}
    assert hosts == {"another-host"}
    for name in here:
        assert fingerprinted(here[name]) == fingerprinted(there[name]), name
        assert here[name]["fingerprint"] == there[name]["fingerprint"], name


def test_nothing_that_enters_a_fingerprint_looks_like_a_place_or_a_time(places: tuple[Path, Path]):
    suspicious = [
        (name, leaf)
        for place in places
        for name, manifest in manifests(place).items()
        for leaf in leaves(fingerprinted(manifest))
        if (isinstance(leaf, str) and (leaf.startswith(("/", "~")) or "://" in leaf or NOW.search(leaf)))
        or leaf in (manifest["created_by"]["host"], manifest["created_by"]["commit"])
        or (
            isinstance(leaf, int | float)
            and any(abs(leaf / unit - time.time()) < DAY_S for unit in (1, 1e3, 1e9))
        )
    ]
    assert suspicious == []
