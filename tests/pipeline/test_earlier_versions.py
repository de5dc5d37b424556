"""What earlier versions wrote is read, verified and continued bit for bit: stores, runs, checkpoints, scores, settings.

`tests/pipeline/earlier/` holds an archive for each such version, named by its commit; `write.py` there made them.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from cluster.artefacts.manifest import hash_file
from cluster.operators import has_compiler
from cluster.runtime import ray_runtime
from pipeline.commands.verbs import app
from pipeline.config.loading import load_config
from pipeline.pretrain.resume_checks import check_resume
from pipeline.runs.config import PretrainConfig, identity_of
from pipeline.runs.directory import RunDirectory
from pipeline.runs.log.lines import read_metrics
from tests.pipeline.earlier.write import DETERMINISTIC, RUNS, SAVED, prepare_texts
from tests.pipeline.process_group import run_group

ARCHIVES = sorted((Path(__file__).parent / "earlier").glob("*.tar.gz"))
TOLERANCE = 2e-4
"""Largest relative difference of a loss: arithmetic in another order, and other processors."""
RATE_TOLERANCE = 1e-2
"""The same where learning rates differ, by less than a tenth."""


@dataclass(frozen=True)
class Earlier:
    """What an earlier version wrote, unpacked."""

    path: Path
    expected: dict[str, Any]

    def cloze(self, *arguments: object) -> Any:
        """The answer of a verb that must succeed, as a program reads it."""
        done = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def archive(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def earlier(archive: Path, tmp_path: Path) -> Earlier:
    with tarfile.open(archive) as tar:
        # Python 3.11 has the filter since 3.11.4; the archive is the project's own.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(tmp_path, **safely)
    return Earlier(tmp_path, orjson.loads((tmp_path / "expected.json").read_bytes()))


def test_every_artefact_verifies_with_the_fingerprint_that_it_had(earlier: Earlier):
    verified = earlier.cloze("data", "verify", earlier.path / "data")
    fingerprints = earlier.expected["fingerprints"]
    assert {f"data/{row['name']}": row["fingerprint"] for row in verified}.items() <= fingerprints.items()
    assert sum(name.startswith("data/") for name in fingerprints) == len(verified)
    for name in RUNS:
        (row,) = earlier.cloze("checkpoints", earlier.path / "runs" / name, "--verify")
        assert (row["reference"].rpartition("@")[2], row["state"]) == (str(SAVED), "verified")


def test_preparing_again_confirms_an_earlier_store_and_elsewhere_makes_the_same(earlier: Earlier):
    texts, out = earlier.path / "texts", earlier.path / "data"
    before = {path: path.stat() for path in out.rglob("*") if path.is_file()}
    # Ray's end takes along every process that was started meanwhile: no other test may run beside it.
    with ray_runtime("local", num_cpus=1):
        prepare_texts(texts, out)
        prepare_texts(texts, earlier.path / "anew")
    changed = {path for path, old in before.items() if path.stat().st_ino != old.st_ino}
    assert changed == set()
    made = (earlier.path / "anew").rglob("manifest.json")
    found = {
        f"data/{path.parent.relative_to(earlier.path / 'anew')}": orjson.loads(path.read_bytes())[
            "fingerprint"
        ]
        for path in made
    }
    fingerprints = earlier.expected["fingerprints"]
    assert found == {name: value for name, value in fingerprints.items() if name.startswith("data/")}


@pytest.mark.skipif(not has_compiler(), reason="the archives hold the state of DeepSpeed's own optimizers")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_from_an_earlier_checkpoint_with_the_same_losses(name: str, earlier: Earlier):
    run = RunDirectory(earlier.path / "runs" / name)
    moved = (f"data.stores=[{{path: {earlier.path / 'data/tokens'}}}]", f"runs_dir={earlier.path / 'runs'}")
    settings = run.config(moved)
    start = check_resume(run, settings)
    assert start == run.checkpoints / f"step-{SAVED:08}"
    run.reconfigure(settings)
    run_group("pipeline.pretrain", [run.path], RUNS[name][0], DETERMINISTIC)
    losses = [step["loss"] for step in read_metrics(run)]
    held_out = [step["loss"] for step in read_metrics(run, "held_out")]
    expected = earlier.expected
    # The update after the checkpoint reads the earlier weights; from there on, the learning rate falls otherwise.
    assert losses[: SAVED + 1] == pytest.approx(expected["losses"][name][: SAVED + 1], rel=TOLERANCE)
    assert losses == pytest.approx(expected["losses"][name], rel=RATE_TOLERANCE)
    assert held_out == pytest.approx(expected["held_out"][name], rel=RATE_TOLERANCE)


def test_scores_lead_back_to_their_checkpoint_and_a_store_to_the_bytes_of_its_sources(earlier: Earlier):
    (scores,) = (earlier.path / "scores").glob("*/*")
    fingerprints = earlier.expected["fingerprints"]
    # The store is not where the checkpoint found it: its line ends with the fingerprint.
    way = ("runs/adamw/checkpoints/step-00000005", "data/tokens")
    told = json.dumps(earlier.cloze("lineage", scores, "--runs-dir", earlier.path / "runs"))
    assert [name for name in way if fingerprints[name] not in told] == []
    told = json.dumps(earlier.cloze("lineage", earlier.path / "data/tokens"))
    way = ("data/tokens", "data/tokenizer", "data/dedup", "data/documents")
    assert [name for name in way if fingerprints[name] not in told] == []
    stories = (earlier.path / "texts" / "stories").iterdir()
    assert [file.name for file in stories if hash_file(file)[0] not in told] == []


def test_settings_of_an_earlier_version_are_read_and_decide_the_same(earlier: Earlier):
    files = sorted((earlier.path / "settings").glob("*.yaml"))
    found = {path.stem: flat(identity_of(load_config(PretrainConfig, path))) for path in files}
    assert found == {name: flat(settings) for name, settings in earlier.expected["settings"].items()}


def flat(settings: Any, key: str = "") -> dict[str, Any]:
    """By dotted key, all values of nested settings but null, which is what a setting has that was not known before."""
    if isinstance(settings, dict):
        return {k: v for name, inner in settings.items() for k, v in flat(inner, f"{key}.{name}").items()}
    return {} if settings is None else {key: orjson.loads(orjson.dumps(settings))}
