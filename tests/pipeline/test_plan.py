"""`cloze plan`: any configuration can be planned on any machine, and what it says is arithmetic that can be checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from typer.testing import CliRunner

from cluster.artefacts.errors import ConfigError
from pipeline.commands.verbs import app
from pipeline.config.loading import load_config
from pipeline.engine.gpus import CPU, GPUS, find_gpu, peak_flops, require_gpu
from pipeline.plan.memory import kept_checkpoints
from pipeline.plan.network import make_network
from pipeline.plan.plan import advise, make_plan
from pipeline.run.config import PretrainConfig
from tests.benchmarks.plan_memory import Case
from tests.conftest import write_store

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "pretrain").glob("*.yaml"))


def teaching(directory: Path) -> list[str]:
    """Overrides that name a small teacher; a student of another shape does not start from it."""
    teacher = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=1000,
            num_hidden_layers=1,
            hidden_size=16,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    teacher.save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    own = (f"teacher={directory}", "start_from_teacher=false", "weights.cosine=0")
    return ["model.vocab_size=1000", *(f"objective.{one}" for one in own)]


def planned(*overrides: str, gpu: str = "h100", gpus: int = 8, **more):
    config = Case("", ("batch.samples=64", *overrides)).config()
    return make_plan(config, require_gpu(gpu), 1, gpus, **more)


@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if "tiny" not in path.name], ids=lambda path: path.stem
)
def test_every_published_configuration_can_be_planned_without_gpu_and_data(
    path: Path, tmp_path: Path
) -> None:
    config = load_config(PretrainConfig, path, ())
    if config.objective.kind == "distill":
        config = load_config(PretrainConfig, path, teaching(tmp_path / "teacher"))
    network = make_network(config, on_cuda=True)
    length = min(config.batch.sequence_length, 512)
    assert network.flops_per_sample(length) > 0
    assert network.activations(2, length, recomputes=False)[0].kept > 0


def test_drivers_names_find_their_cards() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H100 PCIe": "h100-pcie",
        "NVIDIA A100-SXM4-40GB": "a100-40gb",
        "NVIDIA A100 80GB PCIe": "a100",
        "Tesla V100-SXM2-16GB": "v100-16gb",
        "NVIDIA L40S": "l40s",
        "NVIDIA L4": "l4",
        "A100_40GB": "a100-40gb",
    }
    found = {name: gpu.name for name in names if (gpu := find_gpu(name)) is not None}
    assert found == names


def test_an_unknown_card_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError) as raised:
        require_gpu("h1000x")
    assert all(name in raised.value.next_step for name in GPUS)


def test_cards_without_units_for_a_format_have_no_peak_in_it() -> None:
    assert peak_flops("v100", "bf16") is None
    assert peak_flops("cpu", "fp32") is None
    assert peak_flops("h100", "bf16") == pytest.approx(989.4e12)


def test_hours_are_operations_over_peak_and_share() -> None:
    plan = planned("precision=bf16", mfu=0.5)
    assert plan.duration.flops is not None
    assert plan.duration.hours == pytest.approx(plan.duration.flops / (8 * 989.4e12 * 0.5) / 3600)
    assert plan.duration.device_hours == pytest.approx(8 * (plan.duration.hours or 0))


def test_hours_follow_the_share_that_finished_runs_like_this_one_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.config.loading import to_plain
    from pipeline.run.tracking import connect, start_run

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = Case("", ("batch.samples=64", "precision=bf16", f"runs_dir={tmp_path}")).config()
    for share, precision in ((0.2, "bf16"), (0.4, "bf16"), (0.3, "bf16"), (0.9, "fp32")):
        tracked = start_run(
            "pretrain",
            "before",
            config=to_plain(config) | {"precision": precision},
            tags={"cloze.event.started": '{"workers":[{"gpu":"NVIDIA H100 80GB HBM3"}]}'},
            runs_dir=tmp_path,
        )
        client = connect(tracked.uri)
        client.log_metric(tracked.run_id, "mfu", share)
        client.set_terminated(tracked.run_id)
    speed = make_plan(config, GPUS["h100"], 1, 8).duration.speed
    assert speed is not None
    assert speed.mfu == pytest.approx(0.3)
    assert "3 finished runs" in speed.source
    elsewhere = make_plan(config, GPUS["a100"], 1, 8).duration.speed
    assert elsewhere is not None
    assert "not measured" in elsewhere.source


def test_operations_are_about_six_for_each_weight_and_token() -> None:
    plan = planned("model.network=decoder", "objective.kind=clm", "model.vocab_size=64", "steps=7")
    flops, tokens = plan.duration.flops, plan.duration.tokens
    assert tokens == 7 * 64 * 128
    # Kaplan et al. 2020, section 2.1; attention and the projection come on top of it.
    assert flops == pytest.approx(6 * plan.parameters * tokens, rel=0.25)


def test_a_time_budget_gives_the_steps_that_fit_into_it() -> None:
    plan = planned("steps=null", "budget=1h", "precision=bf16", mfu=0.5)
    assert plan.duration.hours == pytest.approx(1.0, rel=1e-3)
    assert plan.duration.steps is not None
    assert plan.duration.steps > 1000


def test_a_budget_that_ends_before_the_steps_do_is_told() -> None:
    plan = planned("steps=100000000", "budget=60s", "precision=bf16")
    assert any("the budget ends" in warning for warning in plan.warnings)


def test_batches_that_cannot_be_shared_out_are_told_with_the_nearest() -> None:
    plan = planned(gpus=24)
    assert any("the nearest are 96 and 96" in warning for warning in plan.warnings), plan.warnings


def test_what_does_not_fit_is_told_with_what_would() -> None:
    plan = planned("zero.stage=0", memory_bytes=(11 << 30) // 10)
    assert plan.chosen.fits is False
    assert any("do not fit" in warning for warning in plan.warnings)


def test_offload_without_need_is_told() -> None:
    plan = planned("zero.stage=2", "zero.offload_optimizer.device=cpu")
    assert any("offload is not needed" in warning for warning in plan.warnings)


def test_checkpoints_beyond_the_free_disk_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.plan import memory

    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda _: usage)
    assert any("are free" in warning for warning in planned().warnings)


def test_kept_checkpoints_are_the_newest_the_best_and_those_for_good() -> None:
    def kept(*overrides: str) -> int | None:
        return kept_checkpoints(Case("", overrides).config())

    every = ("steps=1000", "checkpoint.every_steps=10", "checkpoint.keep_last=3")
    assert kept(*every) == 4
    assert kept(*every, "checkpoint.keep_every_steps=100") == 14
    assert kept("steps=20", "checkpoint.every_steps=10", "checkpoint.keep_last=3") == 2
    assert kept("steps=null", "budget=1h", "checkpoint.keep_every_steps=100") is None


def test_epochs_are_counted_from_the_stores_tokens_and_too_many_are_told(tmp_path: Path) -> None:
    store = write_store(tmp_path / "tokens")
    plan = planned(f"data.stores=[{{path: {store}}}]", "model.vocab_size=null", "steps=100")
    (use,) = plan.stores
    assert use.read == 100 * 64 * 128
    assert use.tokens is not None
    assert use.epochs == pytest.approx(use.read / use.tokens)
    assert any("Muennighoff" in warning for warning in plan.warnings)
    assert plan.vocabulary_note == ""
    assert plan.vocabulary == 200


def test_a_plan_for_cpus_compares_with_the_memory_of_this_machine() -> None:
    plan = planned(gpu="cpu", gpus=2)
    assert plan.gpu == CPU.name
    assert plan.chosen.fits
    giant = ("model.hidden_size=1048576", "model.intermediate_size=4194304", "model.num_heads=1024")
    assert "do not fit" in planned(*giant, gpu="cpu", gpus=2).warnings[0]
    assert plan.duration.hours is None
    assert plan.chosen.memory.total > plan.chosen.memory.allocated > 0


def test_advice_names_a_micro_batch_that_fits_and_never_raises() -> None:
    config = Case("", ("batch.micro_batch_size=16",)).config()
    said = advise(config, device_bytes=1 << 30)
    assert "batch.micro_batch_size=" in said
    broken = config.model_copy(update={"model": None})
    assert "No estimate" in advise(broken)


def test_json_has_the_keys_that_programs_read(tmp_path: Path) -> None:
    path = Path("configs/pretrain/roberta-tiny.yaml")
    arguments = ["plan", str(path), "--nodes", "2", "--gpus-per-node", "4", "--gpu", "a100", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["machines"]["world_size"] == 8
    assert found["chosen"]["memory"]["total"] >= found["chosen"]["memory"]["allocated"] > 0
    assert {"hours", "device_hours", "steps", "tokens", "flops", "speed"} <= found["duration"].keys()
    assert {"checkpoint", "kept", "total", "free"} <= found["disk"].keys()
    assert isinstance(found["warnings"], list)
    assert [option["zero"]["stage"] for option in found["options"]][:4] == [1, 0, 2, 3]


def test_tables_say_what_fits_and_what_it_takes() -> None:
    done = CliRunner().invoke(app, ["plan", "configs/pretrain/roberta-tiny.yaml", "--gpu", "l4"])
    assert done.exit_code == 0, done.output
    for words in (
        "optimizer state",
        "activations",
        "ways to spread the state",
        "disk for checkpoints",
        "hours",
    ):
        assert words in done.output
