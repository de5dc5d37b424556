"""Files, settings and tensors of an export, by the objective that trained the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from safetensors import safe_open

from pipeline.tune.export import export
from tests.golden.losses import train_each

NETWORKS: dict[str, tuple[str, ...]] = {
    "mlm": (),
    "rtd": ("model.norm=post", "model.num_segments=2"),
    "clm": ("model.embedding_norm=false", "model.activation=gelu_tanh"),
    "bart_denoising": ("model.norm=post",),
    "t5_span_corruption": (
        *("model.norm_kind=rms", "model.biases=false", "model.embedding_norm=false"),
        *("model.positions=relative_bias", "model.scale_attention=false", "model.activation=relu"),
    ),
    "bilm": (),
}
"""By objective, what its network has beyond `FAMILIES`, to be one that was published."""
READ = ("config.json", "generation_config.json", "special_tokens_map.json", "tokenizer_config.json")


def values(directory: Path) -> dict[str, Any]:
    """By objective, the names of files, the contents of small ones, and the shape of every tensor."""
    lengths = ("steps=4", "checkpoint.every_steps=4")
    runs = train_each(directory, {kind: (*lengths, *own) for kind, own in NETWORKS.items()})
    for kind, run in runs.items():
        checkpoint = run.path / "checkpoints/step-00000004"
        export(str(checkpoint), directory / f"export-{kind}", runs_dir=directory, verify=False)
    return {kind: _described(directory / f"export-{kind}") for kind in runs}


def _described(directory: Path) -> dict[str, Any]:
    contents = {name: directory / name for name in READ if (directory / name).is_file()}
    return {
        "files": sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.*")),
        **{name: orjson.loads(path.read_bytes()) for name, path in contents.items()},
        "tensors": {
            name: shape
            for path in sorted(directory.rglob("*.safetensors"))
            for name, shape in _shapes(path).items()
        },
    }


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
