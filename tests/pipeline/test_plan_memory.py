"""The memory that a plan predicts is what training takes, and follows from how the state is spread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.plan.memory import Machines, Sharding
from pipeline.plan.network import Network, make_network
from pipeline.plan.plan import chosen_option, options
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


@pytest.fixture(scope="module")
def network() -> Network:
    return make_network(planned(), on_cuda=True)


def state_of(network: Network, *overrides: str, ranks: int = 8) -> Sharding:
    return Sharding(planned(*overrides), network, replace(GPUS, devices_per_node=ranks))


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
        machines = replace(GPUS, devices_per_node=ranks)
        return Sharding(planned("zero.stage=3", *overrides), network, machines).gathered()

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
    deep = make_network(planned("model.num_layers=24", "model.vocab_size=512"), on_cuda=True)
    kept, recomputed = (deep.activations(8, 128, recomputes=each).kept for each in (False, True))
    assert recomputed < kept / 5


def test_largest_micro_batch_fits_and_the_next_one_does_not(network: Network) -> None:
    config = planned("zero.stage=1")

    def needed(rows: int) -> int:
        batch = config.batch.model_copy(update={"micro_batch_size": rows})
        return Sharding(config.model_copy(update={"batch": batch}), network, GPUS).device().total

    tight = replace(GPUS, device_bytes=needed(4) + (1 << 20))
    assert chosen_option(config, network, tight).micro_batch_size == 4
    assert needed(8) > tight.device_bytes


def test_lamb_has_only_the_stage_that_knows_whole_matrices(network: Network) -> None:
    config = planned("zero.stage=0", "optimizer.kind=lamb")
    assert [option.zero.stage for option in options(config, network, GPUS)] == [0]


def test_what_is_chosen_among_several_ranks_begins_with_plain_communication(network: Network) -> None:
    found = options(planned(), network, GPUS)
    traffic = [option.traffic for option in found if option.zero.offload_optimizer is None]
    assert traffic == sorted(traffic)
    assert found[0].zero.stage == 1


def test_typed_settings_of_a_way_give_it_whatever_was_offloaded_before(network: Network) -> None:
    before = ("zero.stage=3", "zero.offload_optimizer.device=cpu", "zero.offload_parameters.device=cpu")
    for option in options(planned(*before), network, GPUS):
        assert planned(*before, *option.settings).zero == option.zero
