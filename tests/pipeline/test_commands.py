"""`cloze cluster render`, `doctor`, `runs` and `tokenizer encode|compare` on the command line."""

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
from pipeline.commands.output import show
from pipeline.run.lifecycle import record_failure
from pipeline.run.tracking import connect, runs_page, start_run
from tests.pipeline.command import cloze, invoke
from tests.pipeline.ranks import make_run

LINES = ["the city and the river", "the naïve city", "", "water"]


def test_rendered_files_are_written_with_their_settings_and_what_comes_next_is_printed(tmp_path: Path):
    out, again = tmp_path / "out", tmp_path / "again"
    settings = ("--set", "nodes=4", "--set", "verb=pretrain a.yaml")
    assert cloze("cluster", "render", "slurm", *settings, "--out", out) == (out / "NEXT.md").read_text()
    assert "#SBATCH --nodes=4\n" in (out / "cloze.sbatch").read_text()
    assert (out / "cloze.sbatch").stat().st_mode & 0o111
    cloze("cluster", "render", out / "settings.yaml", "--out", again)
    for path in sorted(out.iterdir()):
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_rendered_files_that_were_changed_are_replaced_on_request_only(tmp_path: Path):
    def render(out: object, *more: str) -> None:
        cloze("cluster", "render", "ssh", "--out", out, *more)

    for _ in range(2):
        render(tmp_path)
    (tmp_path / "node.sh").write_text("edited")
    with pytest.raises(ConfigError, match=r"node\.sh") as caught:
        render(tmp_path, "--set", "port=7000")
    assert "start.sh" not in str(caught.value)
    assert (tmp_path / "node.sh").read_text() == "edited"
    render(tmp_path, "--set", "port=7000", "--replace")
    assert ":7000" in (tmp_path / "node.sh").read_text()
    with pytest.raises(StorageError):
        render("/proc/there")
    with pytest.raises(ConfigError):
        render(tmp_path / "node.sh")


def test_doctor_answers_programs_and_exits_1_only_when_something_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI", "CLOZE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOZE_LOCAL_CLUSTER", str(tmp_path / "no-cluster.json"))
    answer = json.loads(cloze("doctor", "--runs-dir", tmp_path, "--json"))
    assert answer["ok"] is True
    assert set(answer["checks"][0]) == {"name", "status", "found", "remedy"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    ill = invoke("doctor", "--runs-dir", tmp_path, "--address", "http://127.0.0.1:2")
    assert ill.exit_code == 1
    assert "2 failed" in ill.output
    assert "MLFLOW_TRACKING_URI" in ill.output


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
def test_texts_and_tokenizers_that_cannot_be_compared_are_named(made: Path, data: bytes):
    with pytest.raises(MissingInputError, match="none"):
        cloze("tokenizer", "compare", made / "text.txt", made / "none")
    (made / "text.txt").write_bytes(data)
    with pytest.raises(MissingInputError, match=r"text\.txt"):
        cloze("tokenizer", "compare", made / "text.txt", made / "bpe")


def test_a_column_may_have_any_name(capsys: pytest.CaptureFixture[str]):
    show([{"lr 0.1": "first", "a.b": "second"}], "rows", as_json=False, columns=("lr 0.1", "a.b"))
    printed = capsys.readouterr().out
    assert [word in printed for word in ("lr 0.1", "a.b", "first", "second")] == [True] * 4


@pytest.mark.parametrize("verb", [("runs",), ("top", "--once")], ids=" ".join)
def test_what_a_run_says_of_its_end_does_not_act_on_the_terminal(verb: tuple[str, ...], tmp_path: Path):
    run = make_run(tmp_path, tmp_path / "tokens", "odd")
    record_failure(run, StorageError("a\x1b[2Jb"))
    printed = cloze(*verb, "--runs-dir", run.path.parent)
    assert "a\u241b[2Jb" in printed
    assert "\x1b" not in printed


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


def test_address_that_a_run_names_acts_neither_on_the_terminal_nor_on_the_shell(tmp_path: Path):
    run = make_run(tmp_path, tmp_path / "tokens", "stranger")
    identity = {"tracking_uri": "file:///\x1b[2J$(id)", "experiment_id": "1"}
    write_sealed(run.info_file, run.info.model_dump(mode="json") | identity)
    printed = cloze("runs", "--runs-dir", run.path.parent)
    assert "--backend-store-uri 'file:///\u241b[2J$(id)'" in printed
    assert "\x1b" not in printed


def test_page_of_one_experiment_on_a_server_is_opened_there():
    assert runs_page("http://tracking:5000/", ["3"]).startswith(
        "Open http://tracking:5000/#/experiments/3/runs?"
    )


def test_list_of_runs_names_its_directory_and_the_list_of_fine_tunings_where_there_are_any(
    tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    empty = cloze("runs")
    assert "runs in runs" in empty
    assert "finetune list" not in empty
    made = tmp_path / "scores" / "glue" / "run@100"
    made.mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    assert "Fine-tunings: cloze finetune list scores" in cloze("runs")
