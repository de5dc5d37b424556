"""What `accelerate launch` asks for by its variables, against the configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from cluster.artefacts.errors import ConfigError
from pipeline.tune.processes import check_launch

LAUNCH = (
    str(Path(sys.executable).with_name("accelerate")),
    "launch",
    "--num_machines",
    "1",
    "--dynamo_backend",
    "no",
)
PRINTED = """
import json, os
if os.environ.get("RANK", "0") == "0":
    print(json.dumps(dict(os.environ)), flush=True)
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """From options of `accelerate launch` to the environment that it gives its first process."""
    script = tmp_path_factory.mktemp("launched") / "script.py"
    script.write_text(PRINTED)

    @cache
    def launched(*options: str) -> dict[str, str]:
        # Port 0: torchrun takes a free one.
        command = [*LAUNCH, "--main_process_port", "0", *options, str(script)]
        # torchrun leaves a directory of logs behind.
        environment = os.environ | {"TMPDIR": str(script.parent)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    return launched


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
def test_launch_that_fits_is_accepted(make_config, variables, options):
    precision = "bf16" if "bf16" in options else "fp32"
    check_launch(make_config(precision=precision), variables(*options))


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        (("--cpu", "--num_processes", "2"), ["--multi_gpu --num_processes N"]),
        (
            ("--cpu", "--num_processes", "2", "--mixed_precision", "bf16"),
            ["one process", "add precision=bf16"],
        ),
        (("--use_fsdp", "--num_processes", "2"), ["zero.stage=2"]),
    ],
    ids=["one process", "all differences at once", "sharding"],
)
def test_launch_that_does_not_fit_is_answered_with_what_to_do(make_config, variables, options, answers):
    found = variables(*options)
    with pytest.raises(ConfigError) as refused:
        check_launch(make_config(), found)
    assert all(answer in refused.value.next_step for answer in answers)


def test_accumulation_by_the_launcher_is_refused_because_it_would_divide_losses_again(make_config):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps") as refused:
        check_launch(make_config(), {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})
    assert "training.micro_batch_size" in refused.value.next_step
