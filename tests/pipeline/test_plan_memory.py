"""The memory that a plan predicts is what training takes, and follows from how the state is spread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.plan.choices import Machines, chosen_option, memory_of, options
from pipeline.plan.network import make_network
from pipeline.plan.sharding import Sharding
from pipeline.run.config import PretrainConfig
from tests.benchmarks.plan_memory import CASES, TOLERANCE, Case, measure, measure_known, predict

GPUS = Machines(nodes=1, devices_per_node=8, device_bytes=80 << 30, on_cuda=True)


@pytest.mark.parametrize("name", ["MLM, stage 2, bf16, average", "MLM, stage 3, fp32, 2 ranks"])
def test_predicted_memory_is_what_real_deepspeed_steps_allocate(name: str) -> None:
    case = next(each for each in CASES if each.name == name)
    assert predict(case) == pytest.approx(measure(case), rel=TOLERANCE)


def test_measured_memory_counts_what_other_threads_allocate_and_free() -> None:
    mebibyte = 1 << 20
    peak, rest = measure_known()
    assert peak == pytest.approx(40 * mebibyte, rel=0.01)
    assert rest < mebibyte


def planned(*overrides: str) -> PretrainConfig:
    return Case("", ("batch.samples=64", "zero.reduce_bucket_elements=100000", *overrides)).config()


def test_each_higher_zero_stage_takes_less_state_on_eight_gpus() -> None:
    network = make_network(planned(), "cuda")
    states = []
    for stage in range(4):
        config = planned(f"zero.stage={stage}", "precision=bf16")
        shards = Sharding(config, network.groups, 8, on_cuda=True).shards()
        states.append(shards.weights + shards.master_weights + shards.optimizer_state)
    parameters = network.num_parameters
    # 16 bytes a parameter without ZeRO (Rajbhandari et al. 2020, section 3), less the gradient's 2.
    assert states[0] == 14 * parameters
    assert states[1] == states[2] == pytest.approx((2 + 12 / 8) * parameters, rel=1e-3)
    assert states[3] == pytest.approx(14 / 8 * parameters, rel=1e-2)


def stage_3(*overrides: str, ranks: int = 8, on_cuda: bool = True) -> Sharding:
    groups = ((6_000_000, 1_000, 3_000), (1_000,))
    return Sharding(planned("zero.stage=3", *overrides), groups, ranks, on_cuda)


def test_gathered_weights_go_with_the_gradients_that_no_longer_need_them() -> None:
    finished = [0, 1_000, 4_000, 5_000, 6_005_000]
    expected = [6_005_000, 6_005_000, 6_004_000, 6_001_000, 6_000_000]
    assert stage_3().gathered(finished) == [4 * each for each in expected]


def test_one_rank_gathers_no_weights_unless_they_are_on_the_host() -> None:
    offloaded = "zero.offload_parameters.device=cpu"
    assert stage_3(ranks=1).gathered([0]) == [0]
    assert stage_3(ranks=1).arriving() == 0
    assert stage_3(offloaded, ranks=1).gathered([0]) == [4 * 6_005_000]
    assert stage_3().arriving() == 4 * 6_005_000


def test_gradients_are_reduced_from_a_copy_sorted_by_ranks_and_one_more_on_gloo() -> None:
    finished = [0, 1_000, 4_000, 5_000, 6_005_000]
    nccl, gloo = (stage_3(on_cuda=each).held(finished, accumulates=False) for each in (True, False))
    # The largest does not fit into the bucket: it stays outside, and what waited makes room for it.
    assert nccl == [0, 0, 0, 0, 4 * (6_000_000 + 5_000)]
    # It is reduced from where it lies, but gloo copies it.
    assert gloo == [0, 0, 0, 0, 4 * (6_000_000 + 6_000_000)]


def test_offloaded_state_is_in_host_memory_and_not_on_the_device() -> None:
    network = make_network(planned(), "cuda")

    def shards(*overrides: str):
        return Sharding(planned("zero.stage=2", *overrides), network.groups, 8, on_cuda=True).shards()

    here, there = shards(), shards("zero.offload_optimizer.device=cpu")
    assert here.host == 0
    assert there.optimizer_state == there.master_weights == 0
    assert there.host > here.optimizer_state + here.master_weights


def test_the_average_of_the_weights_adds_four_bytes_a_parameter() -> None:
    groups = make_network(planned(), "cuda").groups
    for stage in (0, 1):
        config = planned(f"zero.stage={stage}", "ema.decay=0.99")
        shards = Sharding(config, groups, 1, on_cuda=True).shards()
        assert shards.average == pytest.approx(4 * sum(map(sum, groups)), abs=32)


def test_recomputing_layers_keeps_less_for_the_backward_pass() -> None:
    network = make_network(planned(), "cuda")
    kept = network.trace(8, 128, gradient_checkpointing=False).kept_bytes
    assert network.trace(8, 128, gradient_checkpointing=True).kept_bytes < kept / 3


def test_twice_the_samples_keep_twice_the_activations() -> None:
    network = make_network(planned(), "cuda")
    assert network.trace(16, 128).kept_bytes == pytest.approx(2 * network.trace(8, 128).kept_bytes, rel=0.15)


def test_a_finished_gradient_counts_until_it_is_finished_and_no_longer() -> None:
    network = make_network(planned(), "cuda")
    trace = network.trace(4, 128)
    finished = [done for done, _ in trace.peaks]
    assert finished == sorted(finished)
    assert finished[0] == 0
    assert finished[-1] == network.num_parameters
    assert trace.peak(lambda done: 4 * done) >= 4 * network.num_parameters


def test_largest_micro_batch_fits_and_the_next_one_does_not() -> None:
    config = planned("zero.stage=1")
    network = make_network(config, "cuda")
    roomy = memory_of(
        config.model_copy(update={"batch": config.batch.model_copy(update={"micro_batch_size": 4})}),
        network,
        GPUS,
    ).total
    tight = replace(GPUS, device_bytes=roomy + (1 << 20))
    found = chosen_option(config, network, tight).micro_batch_size
    assert found == 4
    batch = config.batch.model_copy(update={"micro_batch_size": 8})
    assert not tight.fits(memory_of(config.model_copy(update={"batch": batch}), network, tight))


def test_lamb_has_only_the_stage_that_knows_whole_matrices() -> None:
    config = planned("zero.stage=0", "optimizer.kind=lamb")
    network = make_network(config, "cuda")
    assert [option.zero.stage for option in options(config, network, GPUS)] == [0]


def test_what_is_chosen_among_several_ranks_begins_with_plain_communication() -> None:
    config = planned()
    found = options(config, make_network(config, "cuda"), GPUS)
    traffic = [option.traffic for option in found if option.zero.offload_optimizer is None]
    assert traffic == sorted(traffic)
    assert found[0].zero.stage == 1


def test_groups_that_an_update_takes_at_a_time_are_those_of_the_engine() -> None:
    from pipeline.engine.deepspeed.engine import deepspeed_config
    from pipeline.engine.interface import SUB_GROUP_ELEMENTS

    settings = deepspeed_config(planned("zero.stage=3"), world_size=8)["zero_optimization"]
    assert settings["sub_group_size"] == SUB_GROUP_ELEMENTS


def test_lion_on_the_host_has_a_moment_that_nobody_needs() -> None:
    lion = stage_3("optimizer.kind=lion")
    assert lion.moments == 4 * lion.shard
    assert stage_3("optimizer.kind=lion", "zero.offload_optimizer.device=cpu").moments == 8 * lion.shard
    assert stage_3("optimizer.kind=lion", on_cuda=False).moments == 8 * lion.shard
