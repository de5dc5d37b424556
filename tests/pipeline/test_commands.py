"""Commands about templates, tokenizers and runs; jobs run anywhere as they would here, and are tried again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from tokenizers import Tokenizer

from cluster.artefacts.errors import ConfigError, MissingInputError, ReferenceNotFoundError, StorageError
from cluster.artefacts.seals import write_sealed
from cluster.jobs import STOP_SIGNAL
from cluster.local_cluster import resolve_address
from data_prep.tokenizers import ByteLevelBPE
from data_prep.tokenizers.wordpiece import SPECIAL_TOKENS
from pipeline.commands.verbs import app
from pipeline.run import submission
from pipeline.run.lifecycle import record_failure
from pipeline.run.tracking import connect, start_run
from tests.pipeline.command import cloze, invoke
from tests.pipeline.ranks import make_config, make_run

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


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    """Invokes the verbs; the local cluster that the first submission starts is stopped at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOZE_LOCAL_CLUSTER", str(tmp_path_factory.mktemp("state") / "cluster.json"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.chdir(tmp_path_factory.mktemp("work"))
        try:
            yield invoke
        finally:
            assert "Stopped the cluster" in invoke("stop", "--cluster").output
            assert "No local cluster" in invoke("stop", "--cluster").output


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_config(tmp_path, Path("tokens"))
    return tmp_path / "tiny.yaml"


def test_submitted_verb_outlives_the_command_and_is_listed_with_its_log(cli):
    submitted = cli("submit", "--wait", "--", "doctor", "--json")
    assert submitted.exit_code == 0, submitted.output
    assert '"ok": true' in submitted.output
    (job,) = json.loads(cli("jobs", "--json").stdout)
    assert (job["verb"], job["status"], job["exit_code"]) == ("doctor", "SUCCEEDED", 0)
    assert job["submission_id"] in cli("jobs").output
    assert '"ok": true' in cli("logs", job["submission_id"]).output
    assert "SUCCEEDED" in cli("stop", job["submission_id"]).output


def test_job_starts_after_another_has_succeeded_and_not_after_a_failure(cli):
    first = json.loads(cli("submit", "--json", "--", "doctor", "--runs-dir", "first").stdout)["submission_id"]
    then = ("--after", first, "--retries", "1", "--", "doctor", "--runs-dir", "later", "--json")
    later = cli("submit", "--wait", *then)
    assert later.exit_code == 0, later.output
    assert '"ok": true' in later.output
    failing = ("--env", "MLFLOW_TRACKING_URI=http://127.0.0.1:1", "--", "doctor", "--runs-dir", "failing")
    failed = json.loads(cli("submit", "--json", *failing).stdout)["submission_id"]
    refused = cli("submit", "--wait", "--after", failed, "--", "doctor", "--runs-dir", "never")
    assert refused.exit_code == 1
    assert f"{failed}, which is FAILED" in refused.output
    unknown = cli("submit", "--after", "cloze-doctor-0000000000", "--", "doctor")
    assert isinstance(unknown.exception, ReferenceNotFoundError)


def test_group_of_nodes_becomes_settings_of_the_verb(config):
    sized, resume = submission.with_group_size, ["resume", "run"]
    for group, settings in (
        ((2, 4, None), ["cluster.workers=8", "cluster.gpus_per_worker=1"]),
        ((3, None, None), ["cluster.workers=3", "cluster.gpus_per_worker=0"]),
        ((None, 1, "2:8"), ["cluster.workers=8", "cluster.gpus_per_worker=1", "cluster.min_workers=2"]),
    ):
        assert sized(resume, *group) == resume + settings
    for wrong in ("8", "a:b", ":"):
        with pytest.raises(ConfigError):
            sized(resume, None, None, wrong)
    assert sized(["doctor"], None, None) == ["doctor"]
    with pytest.raises(ConfigError):
        sized(["doctor"], 2, None)
    with pytest.raises(ConfigError, match=r"batch\.samples"):
        submission.prepare(app, sized(["pretrain", str(config)], 3, None))


def test_failed_job_gives_its_exit_code_and_is_attempt_2_when_it_is_submitted_again(cli):
    failing = ("--env", "MLFLOW_TRACKING_URI=http://127.0.0.1:1", "--", "doctor")
    failed = cli("submit", "--wait", *failing)
    job = failed.stdout.splitlines()[0]
    assert failed.exit_code == 1
    assert json.loads(cli("submit", "--json", *failing).stdout)["submission_id"] == f"{job}-2"
    described = json.loads(cli("describe", job, "--json").stdout)
    assert (described["job"]["status"], described["ending"]["error"]) == ("FAILED", "ClozeError")
    assert (described["job"]["verb"], described["run"]) == ("doctor", None)
    told = json.loads(cli("top", "--json", "--address", resolve_address(None)).stdout)
    (node,) = told["nodes"]
    assert (node["of"], node["is_alive"]) == ("cluster", True)
    assert {row["verb"] for row in told["jobs"]} == {"doctor"}
    assert isinstance(cli("logs", "cloze-doctor-0000000000").exception, ReferenceNotFoundError)
    assert cli("stop").exit_code == 2


def test_a_job_that_trains_is_stopped_by_sigterm_and_gets_its_grace_time(config):
    job = submission.prepare(app, ["pretrain", str(config), "guards.grace_s=90"])
    assert (STOP_SIGNAL, job.stop_grace_s) == ("SIGTERM", 120)
    assert submission.prepare(app, ["doctor"]).stop_grace_s == 30


def test_submission_id_follows_from_arguments_configuration_and_directory(config, tmp_path, monkeypatch):
    def prepared(steps: int = 4) -> str:
        return submission.prepare(app, ["pretrain", str(config), f"steps={steps}"]).base_id

    found = [prepared(), prepared(5)]
    assert found[0] == prepared()
    assert found[0].startswith("cloze-pretrain-")
    config.write_text(config.read_text().replace("1e-3", "2e-3"))
    found.append(prepared())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found.append(prepared())
    assert len(set(found)) == 4


def test_mistakes_are_reported_before_anything_is_submitted(config):
    for error, said, words in (
        (ConfigError, "did you mean steps", ["pretrain", str(config), "stepz=4"]),
        (ConfigError, "Did you mean pretrain", ["pretrian", str(config)]),
        (ConfigError, "submit", ["submit", "--", "doctor"]),
        (MissingInputError, "nowhere", ["pretrain", "nowhere.yaml"]),
        (ReferenceNotFoundError, "no-such-run", ["resume", "no-such-run"]),
    ):
        with pytest.raises(error, match=said):
            submission.prepare(app, words)
    assert "No such option" in invoke("submit", "--", "doctor", "--no-such").output


def test_what_is_passed_on_is_named_or_refused(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/cache")
    assert submission.given_variables(["A=b=c", "HF_HOME"]) == {"A": "b=c", "HF_HOME": "/cache"}
    for refused in ("NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE=https://user:planted@host"):
        with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE") as caught:
            submission.given_variables([refused])
        assert "planted" not in str(caught.value)


def test_the_code_that_a_job_gets_finds_the_configurations_that_come_with_cloze(tmp_path: Path):
    root = Path(__file__).parents[2]
    for name in submission.CODE:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, tmp_path / name)
    script = "from pipeline.config import shipped; print(shipped.require_shipped('bert-tiny'))"
    found = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, text=True)
    assert found.strip() == str(tmp_path / "configs" / "pretrain" / "bert-tiny.yaml")
