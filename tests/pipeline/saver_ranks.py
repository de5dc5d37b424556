"""Real ranks that train a tiny network and save it; one start for many cases.

    -m tests.pipeline.saver_ranks DIRECTORY PLACE [endless]

Each rank writes its findings to DIRECTORY/rank-N.json. PLACE is a directory or URI for checkpoints. `endless` saves
checkpoints of the run `endless` there until it is killed.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from cluster.group import Rank
from models.config import TransformerConfig
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel
from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY, EMA_FILE, MODEL_FILE
from pipeline.checkpoint.saver import CheckpointSaver, Failed
from pipeline.checkpoint.store import CheckpointStore, apply_retention, open_store
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.interface import EngineSettings
from tests.pipeline.full_disk import largest_file
from tests.pipeline.ranks import make_config
from tests.pipeline.small_checkpoints import state_at

VOCABULARY = 101
SHAPE = TransformerConfig(
    vocab_size=VOCABULARY, num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64, max_positions=32
)
CASES = ("0-fp32", "1-fp32", "2-bf16", "3-fp32")


def make_engine(directory: Path, rank: Rank, stage: str, precision: str) -> Engine:
    """A tiny network with an average of its weights."""
    overrides = (f"zero.stage={stage}", f"precision={precision}", "ema={decay: 0.5}")
    own = directory / f"config-{rank.rank}"
    own.mkdir(exist_ok=True)
    config = make_config(own, directory / "none", *overrides)
    model = MaskedLanguageModel(SHAPE)
    init_weights(model, 1)
    return Engine(model, EngineSettings.of(config), rank)


def update(engine: Engine, number: int) -> None:
    """An evaluation and an update on tokens that follow from its number and the rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator().manual_seed(100 * number + rank)
    engine.eval()
    with torch.no_grad():
        _loss(engine, generator)
    engine.train()
    for last in (False, True):
        engine.backward(_loss(engine, generator), last=last)
    engine.update(1e-2)


def _loss(engine: Engine, generator: torch.Generator) -> torch.Tensor:
    ids = torch.randint(VOCABULARY, (4, 32), generator=generator)
    positions = torch.arange(0, ids.numel(), 5)
    losses, _ = engine(input_ids=ids, predicted_positions=positions, targets=ids.flatten()[positions])
    return torch.stack(list(losses.values())).sum() / len(positions)


def make_saver(store: CheckpointStore, rank: Rank, keep: int = 2, **options: Any) -> CheckpointSaver:
    """A saver that keeps so many checkpoints."""
    usual = {"model": SHAPE, "tokenizer_json": "{}", "inputs": [], "ema": True}
    return CheckpointSaver(store, rank, retain=lambda: apply_retention(store, keep), **(usual | options))


def copies(engine: Engine) -> dict[str, torch.Tensor]:
    """This rank's share of the weights and of their average, as they are now."""
    return {
        f"{kind}/{one.name}/{one.start}": one.values.clone()
        for kind in ("weights", "average")
        for one in engine.slices(kind)
    }


def is_same(one: Any, other: Any) -> bool:
    """Whether two contents of checkpoint files are equal, to the last bit."""
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.is_meta != other.is_meta:
            return False
        return one.shape == other.shape if one.is_meta else torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and (hasattr(one, "__dict__") or one == other)


def holds_the_same(theirs: Path, ours: Path) -> bool:
    """Whether a file has what DeepSpeed writes itself, but for weights of which masters hold float32 copies."""
    contents = torch.load(theirs, weights_only=False)
    if contents.get("module") is not None:
        names = {name for row in contents["param_shapes"] or () for name in row}
        contents["module"] = {
            name: torch.empty_like(value, device="meta") if name in names and value.numel() else value
            for name, value in contents["module"].items()
        }
    return is_same(contents, torch.load(ours, weights_only=False))


def saved_as_it_was(directory: Path, store: CheckpointStore, rank: Rank, case: str) -> dict[str, Any]:
    """Save, train on while the checkpoint is written, and compare the files with the state at the save."""
    engine = make_engine(directory, rank, *case.split("-"))
    for number in range(2):
        update(engine, number)
    before = copies(engine)
    reference = directory / f"reference-{case}"
    engine.deepspeed.save_checkpoint(str(reference), tag=DEEPSPEED_DIRECTORY, save_latest=False)
    saver = make_saver(store, rank)
    saver.save(engine, state_at(2))
    for number in range(2, 5):
        update(engine, number)
    moved = any(not torch.equal(before[name], now) for name, now in copies(engine).items())
    saver.wait()
    outcomes = saver.finished()
    dist.barrier()
    if rank.local_rank == 0:
        store.fetch(2)
    dist.barrier()
    path = store.fetch(2, deep=False)
    whole = {"weights": load_file(path / MODEL_FILE), "average": load_file(path / EMA_FILE)}
    shares = []
    for name, values in before.items():
        kind, parameter, start = name.split("/")
        flat = whole[kind][parameter].flatten()[int(start) : int(start) + values.numel()]
        shares.append(torch.equal(flat, values))
    theirs = sorted((reference / DEEPSPEED_DIRECTORY).glob("*.pt"))
    ours = [path / file.relative_to(reference) for file in theirs]
    fresh = make_engine(directory, rank, *case.split("-"))
    fresh.restore(path / DEEPSPEED_DIRECTORY)
    found = {
        "outcomes": [type(outcome).__name__ for outcome in outcomes],
        "moved": moved,
        "shares": all(shares),
        "files": [file.relative_to(reference).as_posix() for file in theirs],
        "equal": all(map(holds_the_same, theirs, ours)),
        "restored": is_same(before, copies(fresh)),
        # Tensors that share memory share it in the files, too.
        "small": all(
            one.stat().st_size <= file.stat().st_size for file, one in zip(theirs, ours, strict=True)
        ),
        "all_files": sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()),
    }
    dist.barrier()
    if rank.rank == 0:
        store.delete(2)
    dist.barrier()
    return found


def one_rank_fails(directory: Path, store: CheckpointStore, rank: Rank) -> dict[str, Any]:
    """The last rank's disk is full for two saves; the others work."""
    engine = make_engine(directory, rank, "2", "fp32")
    update(engine, 0)
    saver = make_saver(store, rank)
    outcomes = []
    full = rank.rank == rank.world_size - 1
    for step in range(1, 6):
        # Nothing can be written; then half of a file.
        limit = {2: 1, 4: 2000}.get(step)
        with largest_file(limit) if limit and full else nullcontext():
            saver.save(engine, state_at(step))
            saver.wait()
        outcomes += saver.finished()
    dist.barrier()
    return {
        "outcomes": [[type(outcome).__name__, outcome.step] for outcome in outcomes],
        "problems": [outcome.error.problem for outcome in outcomes if isinstance(outcome, Failed)],
        "steps": store.steps(),
    }


def save_endlessly(directory: Path, store: CheckpointStore, rank: Rank) -> None:
    """Save one checkpoint after the other, starting after the newest one."""
    engine = make_engine(directory, rank, "2", "fp32")
    saver = make_saver(store, rank)
    for step in count(1 + max(store.steps(), default=0)):
        saver.save(engine, state_at(step))


def main() -> None:
    directory, (place, *endless) = Path(sys.argv[1]), sys.argv[2:]
    rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]), 1)
    dist.init_process_group("gloo")
    if endless:
        save_endlessly(directory, open_store(place, "endless"), rank)
    found: dict[str, Any] = {}
    cases = os.environ.get("CASES", " ".join(CASES)).split()
    for case in cases:
        found[case] = saved_as_it_was(directory, open_store(place, case), rank, case)
    if "://" not in place:
        found["full"] = one_rank_fails(directory, open_store(place, "full"), rank)
    (directory / f"rank-{rank.rank}.json").write_bytes(orjson.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main()
