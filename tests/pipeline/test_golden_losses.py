"""Every step's loss of a short run of every objective is what it was, to the last bit on the same kind of processor.

`python -m tests.pipeline.test_golden_losses` writes the file anew; that is right only when a change of what a run
computes was meant, and then the change log must say so.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import pytest
import torch
from numba.core.codegen import get_host_cpu_features

from pipeline.runs.log.lines import read_metrics
from tests.conftest import write_store
from tests.pipeline.one_rank import endings
from tests.pipeline.ranks import TRANSFORMER, make_run
from tests.pipeline.real_text import write_text_store

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 60
TOLERANCE = 2e-4
"""Largest relative difference on another kind of processor: rounding, grown by sixty updates."""
DETERMINISTIC = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"}
"""The same instructions whatever the processor could do, as far as libraries promise."""
ELMO = (
    "{network: elmo, filters: [[1, 8], [2, 8]], num_highway_layers: 1, projection_size: 16, cell_size: 32,"
    " dropout: 0.1}"
)
DECODER, BOTH = "model.network=decoder", "model.network=encoder_decoder"
FAMILIES: dict[str, tuple[str, ...]] = {
    "mlm": (),
    "span": (),
    "rtd": (),
    "clm": (DECODER,),
    "prefix_lm": (DECODER,),
    "bart_denoising": (BOTH, "model.max_positions=64"),
    "mbart_denoising": (BOTH, "model.max_positions=64"),
    "t5_span_corruption": (BOTH, "model.max_positions=64"),
    "ul2_mixture_of_denoisers": (BOTH, "model.max_positions=64"),
    "bilm": (),
}


def losses(directory: Path) -> dict[str, list[float]]:
    """By objective, the losses of a run's steps."""
    store, words = write_store(directory / "tokens"), write_text_store(directory / "words", "tiny-words")
    runs = {
        kind: make_run(
            directory,
            words if kind == "bilm" else store,
            kind,
            f"steps={STEPS}",
            "checkpoint.every_steps=1000",
            "evaluation.every_steps=1000",
            *overrides,
            objective=f"{{kind: {kind}}}",
            model=ELMO if kind == "bilm" else TRANSFORMER,
        )
        for kind, overrides in FAMILIES.items()
    }
    # A process of its own: libraries read these settings when they are loaded.
    command = [sys.executable, "-m", "tests.pipeline.one_rank", *(str(run.path) for run in runs.values())]
    environment = os.environ | DETERMINISTIC | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert endings(done.stdout) == ["ended"] * len(runs), done.stderr[-4000:]
    return {kind: [step["loss"] for step in read_metrics(run)] for kind, run in runs.items()}


def processor() -> str:
    """What bits may depend on: the processor's instructions, and the libraries."""
    return f"{platform.machine()} {get_host_cpu_features()} torch {torch.__version__}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return losses(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("kind", FAMILIES)
def test_losses_of_sixty_steps_are_the_golden_ones(kind: str, found: dict[str, list[float]]):
    golden = orjson.loads(GOLDEN.read_bytes())
    assert len(found[kind]) == STEPS
    if golden["processor"] == processor():
        assert found[kind] == golden["losses"][kind]
    else:
        assert found[kind] == pytest.approx(golden["losses"][kind], rel=TOLERANCE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        contents = {"processor": processor(), "losses": losses(Path(scratch))}
        GOLDEN.write_bytes(orjson.dumps(contents, option=orjson.OPT_INDENT_2) + b"\n")
