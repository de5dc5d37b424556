"""Everything that training with DeepSpeed changes for the whole process: why, and what it saves.

`cluster.imports.hidden("mlflow")`: DeepSpeed's autotuner imports MLflow if it is installed. Saves 1.6 s per process.
`skip_compiler`: making an optimizer would load torch's compiler. Saves 1.4 s per process in ZeRO stage 0, 3 s in stage
2 and 2 s in stage 3.
`remembered_processor`: each compiled operator asks py-cpuinfo about the processor three times. Saves 3.6 s per process.
`prepare_process`:
- Shared-memory collectives, which serve inference only, are not compiled. Saves 20 s on each machine's first start.
- A FutureWarning of torch.distributed is ignored: DeepSpeed calls deprecated functions thousands of times.

Savings are medians of four or five interleaved starts of a tiny network with and without each change, on two busy
cores, except the compilation, which is the processor time of its two files. Changes that save less than half a second
are not made.

Elsewhere: `cluster.operators.compile_lock` sets TORCH_EXTENSIONS_DIR and prepends this environment's programs to PATH,
so that all processes of a machine share each compiled operator. `cluster.group` sets DS_ACCELERATOR=cpu for
workers without GPUs, because DeepSpeed would take a GPU that it sees.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_PROCESSOR_FILE = "processor.json"


def prepare_process() -> None:
    """Make the changes that stay. To be called before the optimizer is made."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    skip_compiler()


def skip_compiler() -> None:
    """Let optimizers be made without loading torch's compiler, which is loaded when a network is compiled.

    torch would load it to exempt `add_param_group` from compilation, and DeepSpeed to compile its Muon, which is never
    used here: DeepSpeed only asks whether other optimizers are instances of it.
    """
    from deepspeed.runtime import compiler

    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and not hasattr(function, "__dynamo_disable"):
        # `torch._compile` caches the exempted function under this name.
        function.__dynamo_disable = function
    compile_function = compiler.compile
    compiler.compile = lambda *_, **__: lambda function: function
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    finally:
        compiler.compile = compile_function


@contextmanager
def remembered_processor(directory: Path) -> Iterator[None]:
    """Let DeepSpeed's operators, when made inside the block, read the facts about the processor from a file.

    The first process asks py-cpuinfo and writes the file; meanwhile the other workers of the machine wait for the
    operator's lock.

    Args:
        directory: belongs to this processor and this environment alone, as the operators' directory does.
    """
    import cpuinfo

    original = cpuinfo.get_cpu_info

    def remembered() -> dict[str, Any]:
        path = directory / _PROCESSOR_FILE
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            found = original()
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(found))
        unfinished.replace(path)
        return found

    cpuinfo.get_cpu_info = remembered
    try:
        yield
    finally:
        cpuinfo.get_cpu_info = original
