"""Write what this version of cloze makes of a small corpus to an archive, for tests of later versions.

    python -m tests.pipeline.earlier.write tests/pipeline/earlier/COMMIT.tar.gz

The archive holds `texts/`, their preparation `data/`, runs that were killed behind their first checkpoint (`runs/`),
the scores of a fine-tuning (`scores/`), the settings of a run of every configuration (`settings/`) and `expected.json`:
all fingerprints, the losses and weights of the same runs when they are not killed, and what `settings/` mean. An
archive is never written again, because it stands for its version; a change of formats adds one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from numba.core.codegen import get_host_cpu_features

from cluster.artefacts.manifest import hash_file
from pipeline.runs.directory import RunDirectory
from tests.pipeline.ranks import MASKED_LM, make_run

STEPS, SAVED = 10, 5
"""Updates of a run, and the one behind which it is saved and killed."""
DETERMINISTIC = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
}
"""The same instructions whatever the processor could do, as far as libraries promise."""
NETWORK = "{num_layers: 1, hidden_size: 8, num_heads: 2, intermediate_size: 16, max_positions: 32, norm: pre}"
COMMON = (
    "data.stores=[{path: data/tokens}]",
    f"steps={STEPS}",
    "schedule.warmup_steps=2",
    f"checkpoint={{every_steps: {SAVED}, keep_last: 9}}",
    "evaluation={every_steps: 5, samples: 8}",
)
RUNS: Mapping[str, tuple[int, str, tuple[str, ...]]] = {
    "adamw": (
        1,
        MASKED_LM,
        ("zero.stage=2", "ema={decay: 0.9}", "batch.phases=[{steps: 3, sequence_length: 16}]"),
    ),
    "lion-zero3": (
        2,
        "{kind: clm}",
        ("zero.stage=3", "optimizer.kind=lion", "model.network=decoder", "cluster.workers=2"),
    ),
}
"""By name: workers, objective, and further settings."""
PREPARATION: Mapping[str, Any] = {
    "name": "stories",
    "filters": [{"kind": "unicode"}, {"kind": "pii"}],
    "min_characters": 40,
    "dedup": {"documents": True, "paragraphs": "corpus"},
    "shard_bytes": 12_000,
    "tokenizer": {"kind": "wordpiece", "vocab_size": 512},
}
"""Settings of the preparation without places."""
FINETUNING: Mapping[str, Any] = {
    "name": "moods",
    "training": {"epochs": 1, "batch_size": 8, "lr": 5e-3, "max_length": 16},
    "seeds": [1, 2],
    "num_threads": 1,
}
"""Settings of the fine-tuning without places."""
_PEOPLE = ("the miller", "an old sailor", "Anna", "the night watch", "our neighbour", "a clerk", "the twins")
_DEEDS = ("found", "painted", "sold", "remembered", "counted", "hid", "mended", "carried home", "drew")
_THINGS = ("a lantern", "three apples", "the map of the valley", "an empty boat", "the bell", "a blue coat")
_WHEN = (
    "before the rain came",
    "at noon",
    "in the year of the flood",
    "without a word",
    "twice",
    "for a song",
)
_MOODS = (("a happy end", "1"), ("a sad end", "0"))


def processor() -> str:
    """What bits may depend on: the processor's instructions, and the libraries."""
    return f"{platform.machine()} {get_host_cpu_features()} torch {torch.__version__}"


def write_texts(directory: Path) -> None:
    """Stories in two files of JSON lines, two of them equal and one with an address; a task in SST-2's layout."""
    draw = random.Random(2026)

    def sentence() -> str:
        first = draw.choice(_PEOPLE)
        return f"{first[0].upper()}{first[1:]} {draw.choice(_DEEDS)} {draw.choice(_THINGS)} {draw.choice(_WHEN)}."

    stories = [" ".join(sentence() for _ in range(draw.randint(3, 9))) for _ in range(120)]
    stories[7] = stories[70]
    stories[11] += "\nWrite to clerk@example.org, or call 212-555-0143."
    (directory / "stories").mkdir(parents=True)
    for file in range(2):
        lines = (
            json.dumps({"id": f"story-{number}", "text": stories[number]}) + "\n"
            for number in range(file * 60, file * 60 + 60)
        )
        (directory / "stories" / f"stories-{file}.jsonl").write_text("".join(lines))
    (directory / "moods").mkdir()
    for name, count in (("train", 32), ("dev", 16)):
        ends = [draw.choice(_MOODS) for _ in range(count)]
        rows = [f"{sentence()} It was {end}\t{label}\n" for end, label in ends]
        (directory / "moods" / f"{name}.tsv").write_text("".join(["sentence\tlabel\n", *rows]))


def prepare_texts(texts: Path, out: Path) -> None:
    """Prepare the stories; needs a Ray cluster."""
    from data_prep.config import PreparationConfig
    from data_prep.job import prepare

    source = {"kind": "json_lines", "name": "stories", "id_field": "id", "text_field": "text"}
    sources = [{**source, "paths": [str(texts / "stories" / "*.jsonl")]}]
    prepare(PreparationConfig.model_validate({**PREPARATION, "out": out, "sources": sources}))


def score(texts: Path, checkpoint: Path, out: Path) -> None:
    """Fine-tune the network of a checkpoint on the task of moods."""
    from pipeline.checkpoints.references import resolve_model
    from pipeline.finetune.config import FinetuneConfig
    from pipeline.finetune.run import finetune
    from tests.pipeline.finetune.conftest import Recorder

    tasks = {"moods": {"kind": "sst2", "path": texts / "moods"}}
    config = FinetuneConfig.model_validate({**FINETUNING, "out": out, "tasks": tasks})
    recorder: Any = Recorder()
    finetune(config, resolve_model(str(checkpoint), Path("runs")), track=recorder)


def start(run: RunDirectory, workers: int, port: int) -> list[subprocess.Popen[bytes]]:
    """The run's ranks, in the current directory."""
    command = [sys.executable, "-m", "pipeline.pretrain", str(run.path)]
    group = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = os.pathsep.join(one for one in sys.path if one)
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]
    return [
        subprocess.Popen(command, env=os.environ | DETERMINISTIC | group | rank | {"PYTHONPATH": path})
        for rank in ranks
    ]


def write_runs(name: str, port: int) -> RunDirectory:
    """Train a run of RUNS in `whole/` to its end, and in `runs/` until it is killed behind its first checkpoint."""
    workers, objective, overrides = RUNS[name]
    for parent in (Path("whole"), Path("runs")):
        parent.mkdir(exist_ok=True)
        overrides = (*COMMON, *overrides, f"runs_dir={parent}")
        run = make_run(Path(), Path("data/tokens"), name, *overrides, objective=objective, model=NETWORK)
        ranks = start(run, workers, port)
        if parent == Path("whole"):
            assert [rank.wait() for rank in ranks] == [0] * workers
            whole = run
            continue
        while not (run.checkpoints / f"step-{SAVED:08}" / "manifest.json").exists():
            time.sleep(0.001)
        for rank in ranks:
            rank.kill()
            rank.wait()
        # Places and process ids: nothing that a resumption needs.
        for left in ("heartbeats", "stacks", "layout", "verified.json", ".lock"):
            path = run.path / left
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        assert [path.name for path in run.checkpoints.iterdir() if not path.name.startswith(".")] == [
            f"step-{SAVED:08}"
        ]
        for partial in run.checkpoints.glob(".*"):
            shutil.rmtree(partial)
    return whole


def settings_of_objectives(directory: Path) -> dict[str, Any]:
    """Write the settings of a run of every tiny configuration; returns by its name which of them decide updates."""
    from pipeline.config.loading import load_config, to_yaml
    from pipeline.runs.config import PretrainConfig, identity_of

    directory.mkdir()
    meanings = {}
    for path in sorted((Path(__file__).parents[3] / "configs" / "pretrain").glob("*.yaml")):
        config = load_config(PretrainConfig, path, ("data.stores=[{path: data/tokens}]",))
        (directory / path.name).write_text(to_yaml(config))
        meanings[path.stem] = identity_of(config)
    return meanings


def expected(settings: Mapping[str, Any], whole: Mapping[str, RunDirectory]) -> dict[str, Any]:
    """What later versions must come to."""
    from pipeline.runs.log.lines import read_metrics

    manifests = [
        path for name in ("data", "runs", "scores") for path in sorted(Path(name).rglob("manifest.json"))
    ]
    last = f"step-{STEPS:08}"
    return {
        "processor": processor(),
        "fingerprints": {
            str(path.parent): json.loads(path.read_bytes())["fingerprint"] for path in manifests
        },
        "losses": {name: [step["loss"] for step in read_metrics(run)] for name, run in whole.items()},
        "held_out": {
            name: [step["loss"] for step in read_metrics(run, "held_out")] for name, run in whole.items()
        },
        "weights": {
            name: hash_file(run.checkpoints / last / "model.safetensors")[0] for name, run in whole.items()
        },
        "settings": settings,
    }


def pack(directory: Path, archive: Path) -> None:
    """The files of a directory as a .tar.gz, the same bytes for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(path.relative_to(directory).as_posix())
                member.size = path.stat().st_size
                with path.open("rb") as stream:
                    tar.addfile(member, stream)
    archive.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def main(archive: Path) -> None:
    from cluster.runtime import ray_runtime
    from tests.pipeline.ranks import free_port

    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):
        write_texts(Path("texts"))
        with ray_runtime("local", num_cpus=1):
            prepare_texts(Path("texts"), Path("data"))
        whole = {name: write_runs(name, free_port()) for name in RUNS}
        score(Path("texts"), Path("runs/adamw/checkpoints") / f"step-{SAVED:08}", Path("scores"))
        settings = settings_of_objectives(Path("settings"))
        found = expected(settings, whole)
        Path("expected.json").write_text(json.dumps(found, indent=1))
        # With them go caches of this place: hashes by a source file's time, and MLflow's own database.
        for path in (
            Path("whole"),
            Path("tiny.yaml"),
            *Path("runs").glob("mlflow*"),
            *Path("data").glob(".*"),
        ):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        pack(Path(), archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
