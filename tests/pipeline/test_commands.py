"""`cloze cluster render`, `runs` and `tokenizer encode|compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError, MissingInputError, StorageError
from cluster.artefacts.seals import write_sealed
from data_prep.tokenizers import ByteLevelBPE
from data_prep.tokenizers.wordpiece import SPECIAL_TOKENS
from pipeline.run.lifecycle import record_failure
from pipeline.run.tracking import connect, start_run
from tests.pipeline.command import cloze
from tests.pipeline.ranks import make_run

LINES = ["the city and the river", "the naïve city", "", "water"]


def test_rendered_files_render_again_alike_and_are_replaced_on_request_only(tmp_path: Path):
    def render(out: Path, what: object, *more: str) -> str:
        return cloze("cluster", "render", what, "--out", out, *more)

    out, again = tmp_path / "out", tmp_path / "again"
    assert render(out, "slurm", "--set", "verb=pretrain a.yaml") == (out / "NEXT.md").read_text()
    assert (out / "cloze.sbatch").stat().st_mode & 0o111
    render(again, out / "settings.yaml")
    assert all(path.read_bytes() == (again / path.name).read_bytes() for path in out.iterdir())
    (out / "cloze.sbatch").write_text("edited")
    with pytest.raises(ConfigError, match=r"cloze\.sbatch"):
        render(out, "slurm", "--set", "nodes=4")
    assert (out / "cloze.sbatch").read_text() == "edited"
    render(out, "slurm", "--set", "nodes=4", "--replace")
    assert "#SBATCH --nodes=4\n" in (out / "cloze.sbatch").read_text()
    with pytest.raises(StorageError):
        render(Path("/proc/there"), "slurm")
    with pytest.raises(ConfigError):
        render(out / "cloze.sbatch", "slurm")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A text, a byte-level BPE and a WordPiece vocabulary."""
    (tmp_path / "text.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "bpe").mkdir()
    trained = ByteLevelBPE(vocab_size=600, min_frequency=1).train(LINES)[0]
    (tmp_path / "bpe" / "tokenizer.json").write_text(trained, encoding="utf-8")
    pieces = [*SPECIAL_TOKENS, "the", "city", "and", "river", "na", "##ive"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    return tmp_path


def test_compare_tells_each_measure_of_each_tokenizer_and_encode_takes_any_format(made: Path):
    compared = ("tokenizer", "compare", made / "text.txt", made / "bpe", made / "vocab.txt")
    found = json.loads(cloze(*compared, "--json"))
    bpe, wordpiece = found[str(made / "bpe")], found[str(made / "vocab.txt")]
    expected = {
        "tokens": 5 + 4 + 1,
        "bytes_per_token": sum(len(line.encode()) for line in LINES) / 10,
        "fertility": 10 / 9,
        "unknown_rate": 1 / 10,
        "exact_round_trips": 1 / 3,
        "vocab_size": 11,
    }
    assert {name: wordpiece[name] for name in expected} == pytest.approx(expected)
    tokenizer = Tokenizer.from_file(str(made / "bpe" / "tokenizer.json"))
    encoded = tokenizer.encode_batch([line for line in LINES if line], add_special_tokens=False)
    assert bpe["tokens"] == sum(len(each.ids) for each in encoded)
    assert (bpe["unknown_rate"], bpe["exact_round_trips"]) == (0, 1)
    assert bpe["encode_mb_per_s"] > 0
    assert "3 lines" in cloze(*compared)
    encode = ("tokenizer", "encode", made / "vocab.txt", "The naïve")
    assert json.loads(cloze(*encode, "--json"))["tokens"] == ["the", "na", "##ive"]
    assert "##ive" in cloze(*encode)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe"])
def test_texts_that_cannot_be_compared_are_named(made: Path, data: bytes):
    (made / "text.txt").write_bytes(data)
    with pytest.raises(MissingInputError, match=r"text\.txt"):
        cloze("tokenizer", "compare", made / "text.txt", made / "bpe")


def test_what_a_run_says_acts_neither_on_the_terminal_nor_on_the_shell(tmp_path: Path):
    run = make_run(tmp_path, tmp_path / "tokens", "odd")
    record_failure(run, StorageError("a\x1b[2Jb"))
    identity = {"tracking_uri": "file:///\x1b[2J$(id)", "experiment_id": "1"}
    write_sealed(run.info_file, run.info.model_dump(mode="json") | identity)
    for verb in (("runs",), ("top", "--once")):
        printed = cloze(*verb, "--runs-dir", run.path.parent)
        assert "a\u241b[2Jb" in printed
        assert "\x1b" not in printed
        assert verb != ("runs",) or "--backend-store-uri 'file:///\u241b[2J$(id)'" in printed


def test_list_of_runs_names_the_page_of_their_experiments_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracked = [start_run(name, "run", config={}, tags={}, runs_dir=tmp_path) for name in ("one", "other")]
    for number, own in enumerate(tracked):
        identity = {"run_id": own.run_id, "tracking_uri": own.uri, "experiment_id": own.experiment_id}
        run = make_run(tmp_path, tmp_path / "tokens", f"run{number}")
        write_sealed(run.info_file, run.info.model_dump(mode="json") | identity)
    printed = "".join(cloze("runs", "--runs-dir", run.path.parent).split())
    assert f"`mlflowui--backend-store-uri{tracked[0].uri}`" in printed
    path, _, query = urlsplit(printed.rpartition("thenopen")[2]).fragment.partition("?")
    assert path == "/compare-experiments/s"
    asked = json.loads(dict(parse_qsl(query))["experiments"])
    assert len(connect(tracked[0].uri).search_runs(asked)) == 2
