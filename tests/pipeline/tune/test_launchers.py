"""What `accelerate launch` asks for by its variables, against the configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cluster.artefacts.errors import ConfigError
from pipeline.tune.learner import check_launch

ACCEPTED = {
    "one": ("--cpu", "--num_processes", "1"),
    "two": ("--multi_gpu", "--num_processes", "2"),
    "bf16": ("--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"),
}
REFUSED = {
    "one process": ("--cpu", "--num_processes", "2"),
    "all differences at once": ("--cpu", "--num_processes", "2", "--mixed_precision", "bf16"),
    "sharding": ("--use_fsdp", "--num_processes", "2"),
}
LEFT = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
"""What a launch by another test may have left in the environment."""
LAUNCHES = """
import json, os, sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="accelerate")
main = command.load()
import torch.distributed.run
for options in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        sys.argv = ["accelerate", "launch", *options]
        main()
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"accelerate launch {' '.join(options)} failed")
"""
"""Launches one after another, by forks of a process that has imported what each of them would import for seconds."""
PRINTED = """
import json, os, sys
from pathlib import Path
if os.environ.get("RANK", "0") == "0":
    Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By name of some options of `accelerate launch`, the environment that it gives its first process."""
    directory = tmp_path_factory.mktemp("launched")
    script = directory / "script.py"
    script.write_text(PRINTED)
    # Port 0: torchrun takes a free one.
    always = ("--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", "0")
    launches = [
        [*always, *options, str(script), str(directory / name)]
        for name, options in (ACCEPTED | REFUSED).items()
    ]
    # torchrun leaves a directory of logs behind.
    environment = {name: value for name, value in os.environ.items() if name not in LEFT}
    environment["TMPDIR"] = str(directory)
    subprocess.run([sys.executable, "-c", LAUNCHES, json.dumps(launches)], env=environment, check=True)
    return {name: json.loads((directory / name).read_bytes()) for name in ACCEPTED | REFUSED}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LEFT:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ACCEPTED)
def test_launch_that_fits_is_accepted(make_config, variables, name):
    check_launch(make_config(precision="bf16" if name == "bf16" else "fp32"), variables[name])


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("one process", ["--multi_gpu --num_processes N"]),
        ("all differences at once", ["one process", "add precision=bf16"]),
        ("sharding", ["zero.stage=2"]),
    ],
)
def test_launch_that_does_not_fit_is_answered_with_what_to_do(make_config, variables, name, answers):
    with pytest.raises(ConfigError) as refused:
        check_launch(make_config(), variables[name])
    assert all(answer in refused.value.next_step for answer in answers)


def test_accumulation_by_the_launcher_is_refused_because_it_would_divide_losses_again(make_config):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps") as refused:
        check_launch(make_config(), {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})
    assert "training.micro_batch_size" in refused.value.next_step
