"""The names of DeepSpeed beyond its documented interface that `pipeline/engine/deepspeed` uses.

`test_deepspeed_names.py` looks up every name in the installed version: before a newer version is allowed
(`configuration.py`), it says which are gone. No other module of the project mentions any of them.
"""

from __future__ import annotations

from collections.abc import Mapping

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    # masters.py, engine.py, live_state.py
    "deepspeed.runtime.engine:DeepSpeedEngine": (
        "checkpoint_engine",
        "allreduce_gradients",
        "dp_world_size",
        "enable_backward_allreduce",
        "global_rank",
        "global_samples",
        "global_steps",
        "skipped_steps",
        "set_gradient_accumulation_boundary",
        "was_step_applied",
        "zero_optimization_stage",
        "_copy_recovery_script",
        "_get_zero_param_shapes",
    ),
    # Stages 1 and 2.
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer": (
        "all_grad_tensors",
        "averaged_gradients",
        "cpu_offload",
        "loss_scaler",
        "micro_step_id",
        "reset_cpu_buffers",
        "single_partition_of_fp32_groups",
        "update_lp_params",
        "_offload_accumulated_param_ids",
    ),
    # Stage 1 in bf16.
    "deepspeed.runtime.bf16_optimizer:BF16_Optimizer": ("fp32_groups_flat_partition", "update_lp_params"),
    # Stage 3.
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3": (
        "checkpoint_event_epilogue",
        "checkpoint_event_prologue",
        "fp32_partitioned_groups_flat",
        "loss_scale",
        "loss_scaler",
        "_overflow_clean_up",
        "_partition_all_parameters",
        "_pre_step",
        "_reassign_or_swap_out_partitioned_parameters",
    ),
    "deepspeed.runtime.zero.partition_parameters": ("ds_numel", "ds_shape"),
    # Stage 0 in half precision.
    "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer": (
        "fp32_groups",
        "loss_scale",
        "loss_scale_config",
    ),
    # configuration.py
    "deepspeed.ops": ("__compatible_ops__",),
    # live_state.py
    "deepspeed.runtime.checkpoint_engine": ("CheckpointCommitInfo",),
    "deepspeed.runtime.checkpoint_engine.checkpoint_engine:CheckpointEngine": (
        "commit",
        "create",
        "load",
        "makedirs",
        "save",
    ),
}
"""By module, or class of a module, the names that it defines or gives to its instances."""
FILE_KEYS: Mapping[str, tuple[str, ...]] = {
    "deepspeed.checkpoint.constants": (
        "base_optimizer_state",
        "fp32_flat_groups",
        "loss_scaler",
        "optimizer_state_dict",
        "param_shapes",
        "single_partition_of_fp32_groups",
    ),
    "deepspeed.runtime.engine": (
        "dp_world_size",
        "ds_config",
        "module",
        "mp_rank_",
        "_model_states.pt",
        "_optim_states.pt",
        "zero_pp_rank_",
    ),
    "deepspeed.runtime.fp16.unfused_optimizer": (
        "cur_iter",
        "cur_scale",
        "fp32_groups",
        "last_overflow_iter",
    ),
    "deepspeed.runtime.fp16.loss_scaler": (
        "DynamicLossScaler",
        "LossScaler",
        "cur_iter",
        "cur_scale",
        "dynamic",
        "last_overflow_iter",
    ),
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
}
"""By module of DeepSpeed, what `saved_state.py` and `live_state.py` read in the files that it writes: names of files,
keys and classes."""
