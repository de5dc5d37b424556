"""What `accelerate launch` asks for by its variables, against the configuration."""

from __future__ import annotations

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from cluster.artefacts.errors import ConfigError
from pipeline.tune.processes import check_launch

BASE = ("--num_machines", "1", "--dynamo_backend", "no")
RANKS = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
"""What torchrun, which `--multi_gpu` starts, adds."""


def variables(*options: str) -> dict[str, str]:
    """The environment that `accelerate launch` with these options gives a process."""
    args = launch_command_parser().parse_args([*BASE, *options, "script.py"])
    args, _, _ = _validate_launch_command(args)
    if args.multi_gpu or args.use_fsdp:
        return prepare_multi_gpu_env(args) | RANKS
    return prepare_simple_launcher_cmd_env(args)[1]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "options",
    [
        ("--cpu", "--num_processes", "1"),
        ("--multi_gpu", "--num_processes", "2"),
        ("--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"),
    ],
    ids=["one", "two", "bf16"],
)
def test_launch_that_fits_is_accepted(make_config, options):
    precision = "bf16" if "bf16" in options else "fp32"
    check_launch(make_config(precision=precision), variables(*options))


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("--cpu", "--num_processes", "2"), "--multi_gpu --num_processes N"),
        (("--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"), "add precision=bf16"),
        (("--use_fsdp", "--num_processes", "2"), "zero.stage=2"),
    ],
    ids=["one process", "precision", "sharding"],
)
def test_launch_that_does_not_fit_is_answered_with_what_to_do(make_config, options, answer):
    found = variables(*options)
    with pytest.raises(ConfigError) as refused:
        check_launch(make_config(), found)
    assert answer in refused.value.next_step


def test_all_differences_are_told_at_once(make_config):
    found = variables("--cpu", "--num_processes", "2", "--mixed_precision", "bf16")
    with pytest.raises(ConfigError) as refused:
        check_launch(make_config(), found)
    assert "one process" in refused.value.next_step
    assert "precision=bf16" in refused.value.next_step


def test_accumulation_by_the_launcher_is_refused_because_it_would_divide_losses_again(make_config):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps") as refused:
        check_launch(make_config(), {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})
    assert "training.micro_batch_size" in refused.value.next_step
