"""`cloze plan`: any configuration can be planned on any machine, its arithmetic can be checked, and the memory that it
predicts is what training takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import load_config, to_plain
from pipeline.engine.gpus import CPU, GPUS, find_gpu, peak_flops, require_gpu
from pipeline.plan.activations import activations_of
from pipeline.plan.memory import Machines, Sharding, kept_checkpoints
from pipeline.plan.network import Network, make_network
from pipeline.plan.plan import Plan, advise, make_plan, option_of, options
from pipeline.run.config import PretrainConfig
from pipeline.run.tracking import connect, start_run
from tests.benchmarks.plan_memory import CASES, TOLERANCE, Case, measure, predict
from tests.conftest import write_store
from tests.pipeline.command import cloze

CARDS = Machines(nodes=1, devices_per_node=8, device_bytes=80 << 30, on_cuda=True)
CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "pretrain").glob("*.yaml"))


def config_of(*overrides: str) -> PretrainConfig:
    return Case("", ("batch.samples=64", "zero.reduce_bucket_elements=100000", *overrides)).config()


def teaching(directory: Path) -> list[str]:
    """Overrides that name a small teacher; a student of another shape does not start from it."""
    sizes: Any = {"vocab_size": 1000, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    teacher = transformers.BertConfig(**sizes, num_attention_heads=2)
    transformers.BertForMaskedLM(teacher).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    own = {"teacher": directory, "start_from_teacher": "false", "weights.cosine": 0}
    return ["model.vocab_size=1000", *(f"objective.{name}={value}" for name, value in own.items())]


def planned(*overrides: str, gpu: str = "h100", gpus: int = 8, **more: Any) -> Plan:
    return make_plan(config_of(*overrides), require_gpu(gpu), 1, gpus, **more)


@pytest.fixture(scope="module")
def network() -> Network:
    return make_network(config_of(), on_cuda=True)


def state_of(network: Network, *overrides: str, ranks: int = 8) -> Sharding:
    return Sharding(config_of(*overrides), network, replace(CARDS, devices_per_node=ranks))


def test_hours_follow_the_share_that_finished_runs_like_this_one_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = config_of("precision=bf16", f"runs_dir={tmp_path}")
    tags = {"cloze.event.started": '{"workers":[{"gpu":"NVIDIA H100 80GB HBM3"}]}'}
    for share, precision in ((0.2, "bf16"), (0.4, "bf16"), (0.3, "bf16"), (0.9, "fp32")):
        settings = to_plain(config) | {"precision": precision}
        tracked = start_run("pretrain", "before", config=settings, tags=tags, runs_dir=tmp_path)
        client = connect(tracked.uri)
        client.log_metric(tracked.run_id, "mfu", share)
        client.set_terminated(tracked.run_id)
    speeds: list[Any] = [make_plan(config, GPUS[card], 1, 8).duration.speed for card in ("h100", "a100")]
    assert speeds[0].mfu == pytest.approx(0.3)
    assert "3 finished runs" in speeds[0].source
    assert "not measured" in speeds[1].source


def test_operations_are_about_six_for_each_weight_and_token() -> None:
    plan = planned("model.network=decoder", "objective.kind=clm", "model.vocab_size=64", "steps=7")
    flops, tokens = plan.duration.flops, plan.duration.tokens
    assert tokens == 7 * 64 * 128
    # Kaplan et al. 2020, section 2.1; attention and the projection come on top of it.
    assert flops == pytest.approx(6 * plan.parameters * tokens, rel=0.25)


def test_kept_checkpoints_are_the_newest_the_best_and_those_for_good() -> None:
    every = ("steps=1000", "checkpoint.every_steps=10", "checkpoint.keep_last=3")
    for overrides, kept in (
        (every, 4),
        ((*every, "checkpoint.keep_every_steps=100"), 14),
        ((*every, "steps=20"), 2),
        ((*every, "checkpoint.keep_every_steps=100", "steps=null", "budget=1h"), None),
    ):
        assert kept_checkpoints(config_of(*overrides)) == kept


def test_epochs_are_counted_from_the_stores_tokens_and_too_many_are_told(tmp_path: Path) -> None:
    store = write_store(tmp_path / "tokens")
    plan = planned(f"data.stores=[{{path: {store}}}]", "model.vocab_size=null", "steps=100")
    (use,) = plan.stores
    assert use.read == 100 * 64 * 128
    assert use.epochs == pytest.approx(use.read / (use.tokens or 0))
    assert any("Muennighoff" in warning for warning in plan.warnings)
    assert (plan.vocabulary, plan.vocabulary_note) == (200, "")


def test_a_plan_for_cpus_compares_with_the_memory_of_this_machine() -> None:
    plan = planned(gpu="cpu", gpus=2)
    assert (plan.gpu, plan.duration.hours) == (CPU.name, None)
    assert plan.chosen.fits
    assert plan.chosen.memory.total > plan.chosen.memory.allocated > 0
    giant = ("model.hidden_size=1048576", "model.intermediate_size=4194304", "model.num_heads=1024")
    assert not planned(*giant, gpu="cpu", gpus=2).chosen.fits


def test_advice_counts_with_a_containers_memory_names_a_micro_batch_that_fits_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(str(1 << 30))
    monkeypatch.setattr("cluster.node_load.CGROUP", tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "the machine has 0.5 GiB for each" in advise(Case("", (), workers=2).config())
    config = Case("", ("batch.micro_batch_size=16",)).config()
    assert "batch.micro_batch_size=" in advise(config)
    assert "No estimate" in advise(config.model_copy(update={"model": None}))


def test_drivers_names_find_their_cards_and_other_names_are_refused() -> None:
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
    assert {name: gpu.name for name in names if (gpu := find_gpu(name)) is not None} == names
    with pytest.raises(ConfigError) as raised:
        require_gpu("h1000x")
    assert all(name in raised.value.next_step for name in GPUS)
    # Cards without units for a format have no peak in it.
    peaks = [peak_flops(*each) for each in (("v100", "bf16"), ("cpu", "fp32"), ("h100", "bf16"))]
    assert peaks == [None, None, pytest.approx(989.4e12)]


def test_hours_are_operations_over_peak_and_share_and_a_budget_gives_the_steps() -> None:
    plan = planned("precision=bf16", mfu=0.5)
    assert plan.duration.flops is not None
    assert plan.duration.hours == pytest.approx(plan.duration.flops / (8 * 989.4e12 * 0.5) / 3600)
    assert plan.duration.device_hours == pytest.approx(8 * (plan.duration.hours or 0))
    plan = planned("steps=null", "budget=1h", "precision=bf16", mfu=0.5)
    assert plan.duration.hours == pytest.approx(1.0, rel=1e-3)
    assert (plan.duration.steps or 0) > 1000


@pytest.mark.parametrize(
    ("overrides", "settings", "warning"),
    [
        (["steps=100000000", "budget=60s", "precision=bf16"], {}, "the budget ends"),
        ([], {"gpus": 24}, "the nearest are 96 and 96"),
        (["zero.stage=0"], {"memory_bytes": (11 << 30) // 10}, "do not fit"),
        (["zero.stage=2", "zero.offload_optimizer.device=cpu"], {}, "offload is not needed"),
        (["checkpoint.every_steps=1", "checkpoint.keep_every_steps=1", "steps=10000000"], {}, "are free"),
    ],
)
def test_what_goes_wrong_is_told(overrides: list[str], settings: dict[str, int], warning: str) -> None:
    plan = planned(*overrides, **settings)
    assert any(warning in told for told in plan.warnings), plan.warnings
    assert (plan.chosen.fits is False) == (warning == "do not fit")


def test_the_verb_answers_programs() -> None:
    machines = ("--nodes", "2", "--gpus-per-node", "4", "--gpu", "a100")
    found = json.loads(cloze("plan", "roberta-tiny", *machines, "--json"))
    assert found["machines"]["world_size"] == 8
    assert found["chosen"]["memory"]["total"] >= found["chosen"]["memory"]["allocated"] > 0
    assert {"hours", "device_hours", "steps", "tokens", "flops", "speed"} <= found["duration"].keys()
    assert {"checkpoint", "kept", "total", "free"} <= found["disk"].keys()
    assert [option["zero"]["stage"] for option in found["options"]][:4] == [1, 0, 2, 3]


@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if "tiny" not in path.name], ids=lambda path: path.stem
)
def test_every_published_configuration_can_be_planned_without_gpu_and_data(
    path: Path, tmp_path: Path
) -> None:
    config = load_config(PretrainConfig, path, ())
    if config.objective.kind == "distill":
        config = load_config(PretrainConfig, path, teaching(tmp_path))
    network = make_network(config, on_cuda=True)
    length = min(config.batch.sequence_length, 512)
    assert network.flops_per_sample(length) > 0
    assert activations_of(network, 2, length, recomputes=False).kept > 0


@pytest.mark.parametrize("name", ["MLM, stage 2, bf16, average", "MLM, stage 3, fp32, 2 ranks"])
def test_predicted_memory_is_what_real_deepspeed_steps_allocate(name: str) -> None:
    case = next(each for each in CASES if each.name == name)
    assert predict(case) == pytest.approx(measure(case), rel=TOLERANCE)


def test_each_higher_zero_stage_takes_less_state_on_eight_gpus(network: Network) -> None:
    states = []
    for stage in range(4):
        state = state_of(network, f"zero.stage={stage}", "precision=bf16")
        states.append(state.weights + state.master_weights + state.moments)
    parameters = network.num_parameters
    # 16 bytes a parameter without ZeRO (Rajbhandari et al. 2020, section 3), less the gradient's 2.
    assert states[0] == 14 * parameters
    assert states[1] == states[2] == pytest.approx((2 + 12 / 8) * parameters, rel=1e-3)
    assert states[3] == pytest.approx(14 / 8 * parameters, rel=1e-2)


def test_one_rank_gathers_no_weights_unless_they_are_on_the_host(network: Network) -> None:
    def gathered(*overrides: str, ranks: int) -> int:
        return state_of(network, "zero.stage=3", *overrides, ranks=ranks).gathered()

    whole = 4 * network.num_parameters
    assert gathered(ranks=1) == 0
    assert gathered(ranks=8) == gathered("zero.offload_parameters.device=cpu", ranks=1) == whole


def test_offloaded_state_is_in_host_memory_and_not_on_the_device(network: Network) -> None:
    here = state_of(network, "zero.stage=2")
    there = state_of(network, "zero.stage=2", "zero.offload_optimizer.device=cpu")
    assert here.offloaded == 0
    assert there.moments == there.master_weights == 0
    assert there.offloaded > here.moments + here.master_weights


def test_the_average_of_the_weights_adds_four_bytes_a_parameter(network: Network) -> None:
    for stage in (0, 1):
        state = state_of(network, f"zero.stage={stage}", "ema.decay=0.99", ranks=1)
        assert state.average == pytest.approx(4 * network.num_parameters, abs=32)


def test_recomputing_layers_keeps_less_for_the_backward_pass() -> None:
    deep = make_network(config_of("model.num_layers=24", "model.vocab_size=512"), on_cuda=True)
    kept, recomputed = (activations_of(deep, 8, 128, recomputes=each).kept for each in (False, True))
    assert recomputed < kept / 5


def test_largest_micro_batch_fits_and_the_next_one_does_not(network: Network) -> None:
    config = config_of("zero.stage=1")

    def needed(rows: int) -> int:
        batch = config.batch.model_copy(update={"micro_batch_size": rows})
        return Sharding(config.model_copy(update={"batch": batch}), network, CARDS).device().total

    tight = replace(CARDS, device_bytes=needed(4) + (1 << 20))
    assert option_of(config, network, tight).micro_batch_size == 4
    assert needed(8) > tight.device_bytes


def test_lamb_has_only_the_stage_that_knows_whole_matrices(network: Network) -> None:
    config = config_of("zero.stage=0", "optimizer.kind=lamb")
    assert [option.zero.stage for option in options(config, network, CARDS)] == [0]


def test_what_is_chosen_among_several_ranks_begins_with_plain_communication(network: Network) -> None:
    found = options(config_of(), network, CARDS)
    traffic = [option.traffic for option in found if option.zero.offload_optimizer is None]
    assert traffic == sorted(traffic)
    assert found[0].zero.stage == 1


def test_typed_settings_of_a_way_give_it_whatever_was_offloaded_before(network: Network) -> None:
    before = ("zero.stage=3", "zero.offload_optimizer.device=cpu", "zero.offload_parameters.device=cpu")
    for option in options(config_of(*before), network, CARDS):
        assert config_of(*before, *option.settings).zero == option.zero
