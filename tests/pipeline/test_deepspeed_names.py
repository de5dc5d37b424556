"""The installed DeepSpeed has everything that the engine uses of it, and no other module uses it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ATTRIBUTES: Mapping[str, str] = {
    # masters.py, engine.py, live_state.py
    "deepspeed.runtime.engine:DeepSpeedEngine": (
        "checkpoint_engine allreduce_gradients dp_world_size enable_backward_allreduce global_rank global_samples "
        "global_steps skipped_steps set_gradient_accumulation_boundary was_step_applied zero_optimization_stage "
        "_copy_recovery_script _get_zero_param_shapes"
    ),
    # Stages 1 and 2.
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer": (
        "all_grad_tensors averaged_gradients cpu_offload loss_scaler micro_step_id reset_cpu_buffers "
        "single_partition_of_fp32_groups update_lp_params _offload_accumulated_param_ids"
    ),
    # Stage 1 in bf16.
    "deepspeed.runtime.bf16_optimizer:BF16_Optimizer": "fp32_groups_flat_partition update_lp_params",
    # Stage 3.
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3": (
        "checkpoint_event_epilogue checkpoint_event_prologue fp32_partitioned_groups_flat loss_scale loss_scaler "
        "_overflow_clean_up _partition_all_parameters _pre_step _reassign_or_swap_out_partitioned_parameters"
    ),
    "deepspeed.runtime.zero.partition_parameters": "ds_numel ds_shape",
    # Stage 0 in half precision.
    "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer": (
        "fp32_groups loss_scale loss_scale_config"
    ),
    # configuration.py
    "deepspeed.ops": "__compatible_ops__",
    # live_state.py
    "deepspeed.runtime.checkpoint_engine": "CheckpointCommitInfo",
    "deepspeed.runtime.checkpoint_engine.checkpoint_engine:CheckpointEngine": (
        "commit create load makedirs save"
    ),
}
"""By module, or class of a module, the names that it defines or gives to its instances."""
FILE_KEYS: Mapping[str, str] = {
    "deepspeed.checkpoint.constants": (
        "base_optimizer_state fp32_flat_groups loss_scaler optimizer_state_dict param_shapes "
        "single_partition_of_fp32_groups"
    ),
    "deepspeed.runtime.engine": (
        "dp_world_size ds_config module mp_rank_ _model_states.pt _optim_states.pt zero_pp_rank_"
    ),
    "deepspeed.runtime.fp16.unfused_optimizer": "cur_iter cur_scale fp32_groups last_overflow_iter",
    "deepspeed.runtime.fp16.loss_scaler": (
        "DynamicLossScaler LossScaler cur_iter cur_scale dynamic last_overflow_iter"
    ),
    "deepspeed.runtime.zero.config": "ZeroStageEnum",
    "deepspeed.utils.tensor_fragment": "fragment_address",
}
"""By module of DeepSpeed, what `saved_state.py` and `live_state.py` read in the files that it writes: names of files,
keys and classes."""
NAMES = {name for table in (ATTRIBUTES, FILE_KEYS) for names in table.values() for name in names.split()}
COMMON = {"commit", "compile", "create", "dynamic", "load", "loss_scale", "makedirs", "module", "save"}
"""Names in the lists that other code uses for things of its own."""


def test_installed_deepspeed_has_every_name_that_the_engine_uses():
    missing = [
        f"{owner}.{name}"
        for owner, names in ATTRIBUTES.items()
        for name in names.split()
        if not defines(owner, name)
    ]
    missing += [
        f"{module} writes {name}"
        for module, names in FILE_KEYS.items()
        for name in names.split()
        if not re.search(rf"\b{re.escape(name)}|{re.escape(name)}\b", source_of(module))
    ]
    assert missing == []
    assert not defines("deepspeed.runtime.engine:DeepSpeedEngine", "_get_zero_param_shape")


def test_the_list_of_names_is_what_the_engine_uses():
    code = "".join(path.read_text() for path in (ROOT / "pipeline/engine/deepspeed").glob("*.py"))
    assert {name for name in NAMES if name not in code} == set()


def test_no_other_module_names_what_is_inside_deepspeed():
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(NAMES - COMMON)))})\b")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in ("cluster", "data_prep", "models", "pipeline")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(ROOT / "pipeline/engine/deepspeed")
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def defines(owner: str, name: str) -> bool:
    """Whether a module, or a class of it or its bases, defines a name or assigns it to an attribute."""
    module, _, kind = owner.partition(":")
    place: Any = importlib.import_module(module)
    place = getattr(place, kind) if kind else place
    if hasattr(place, name):
        return True
    sources = [source_of(module)] if not kind else [inspect.getsource(one) for one in place.__mro__[:-1]]
    return any(re.search(rf"\.{re.escape(name)}\b", source) for source in sources)


def source_of(module: str) -> str:
    """The text of a module of DeepSpeed."""
    return inspect.getsource(importlib.import_module(module))
