"""Torch's compiler stays out of processes that compile nothing."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import sys
import torch
from pipeline.engine.uncompiled import without_compiler

def is_imported():
    return "torch._dynamo.eval_frame" in sys.modules

model = torch.nn.Linear(2, 2)
"""


def _run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_marks_of_torch_and_questions_of_accelerate_do_not_import_the_compiler():
    _run("""
from accelerate.utils import extract_model_from_parallel
with without_compiler():
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    optimizer.state_dict()
    assert extract_model_from_parallel(model) is model
    assert torch.compiler.disable(len)("ab") == torch.compiler.disable(recursive=False)(len)("ab") == 2
assert not is_imported()
optimizer.state_dict()
assert not is_imported()  # The mark of the first call stays.
""")


def test_a_network_that_is_compiled_all_the_same_gets_the_compiler():
    _run("""
with without_compiler():
    torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="eager")
    given = torch.ones(3, 2)
    assert torch.equal(compiled(given), model(given))
assert is_imported()
""")


def test_nothing_is_left_out_where_something_will_be_compiled():
    _run("""
with without_compiler(unless=True):
    torch.optim.AdamW(model.parameters())
assert is_imported()
""")


def test_a_submodule_of_the_compiler_can_be_imported():
    _run("""
with without_compiler():
    import inspect
    inspect.getmodule(inspect.currentframe())
    assert not is_imported()
    import torch._dynamo.config
assert is_imported() and torch._dynamo.config.cache_size_limit
""")
