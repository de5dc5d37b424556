"""Real ranks that train a tiny network in every way the engine knows, and save it; one start for many cases."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn

from cluster.group import Rank
from models.config import TransformerConfig
from models.functional import FusedLinear
from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY, EMA_FILE, MODEL_FILE
from pipeline.checkpoint.saver import CheckpointSaver
from pipeline.checkpoint.store import CheckpointStore, apply_retention, open_store
from pipeline.engine.deepspeed import engine as engines
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.deepspeed.masters import is_sharded, own_masters
from pipeline.engine.interface import EngineSettings, Update
from tests.pipeline.ranks import make_config
from tests.pipeline.small_checkpoints import state_at

CPU = "{device: cpu}"
PRECISIONS = [f"{stage}-{precision}" for stage in range(4) for precision in ("fp32", "bf16")]
WHOLE = ("lamb", "adafactor", "stable_adamw", "muon")
"""Optimizers that need whole matrices."""
CASES: dict[str, tuple[str, ...]] = {
    **{name: (f"zero.stage={name[0]}", f"precision={name[2:]}") for name in PRECISIONS},
    **{f"{stage}-fp16": (f"zero.stage={stage}", "precision=fp16") for stage in range(4)},
    **{
        f"{stage}-sent-bf16": (f"zero.stage={stage}", "precision=bf16", "zero.reduce_dtype=bf16")
        for stage in range(4)
    },
    **{f"{stage}-lion": (f"zero.stage={stage}", "optimizer.kind=lion") for stage in (1, 3)},
    **{f"{stage}-adagrad": (f"zero.stage={stage}", "optimizer.kind=adagrad") for stage in (2, 3)},
    **{f"0-{kind}": ("zero.stage=0", f"optimizer.kind={kind}") for kind in WHOLE},
    **{f"0-{kind}-bf16": (f"optimizer.kind={kind}", "zero.stage=0", "precision=bf16") for kind in WHOLE},
    "3-layers": ("zero.stage=3", "optimizer.layer_decay=0.5"),
    "1-offload": ("zero.stage=1", f"zero.offload_optimizer={CPU}"),
    "1-offload-bf16": ("zero.stage=1", "precision=bf16", f"zero.offload_optimizer={CPU}"),
    "2-offload-bf16": ("zero.stage=2", "precision=bf16", f"zero.offload_optimizer={CPU}"),
    "2-offload": ("zero.stage=2", f"zero.offload_optimizer={CPU}"),
    "3-offload": ("zero.stage=3", f"zero.offload_optimizer={CPU}", f"zero.offload_parameters={CPU}"),
}
"""Overrides of the tiny configuration by the name of the case."""
MOVES = {name: name for name in CASES} | {
    "0-fp32": "3-fp32",
    "1-fp32": "2-offload",
    "2-fp32": "0-fp32",
    "3-fp32": "1-fp32",
    "3-bf16": "2-bf16",
}
"""The case in which one rank resumes from the checkpoint of two ranks."""
Piece = tuple[str, int, Tensor]
"""A tensor's name, the place of the first of these elements in it, and the elements."""
SAVED, TURNED, LAST = 5, 7, 10
"""Number of updates when two ranks save, when one rank saves, and at the end."""


class Network(nn.Module):
    """A small network with sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        # In a layer as networks name it, so that it is a hidden matrix for Muon; two matrices for Adafactor.
        self.encoder = nn.ModuleDict(
            {"transformer": nn.ModuleDict({"layers": nn.ModuleList([FusedLinear(5, (3, 4), bias=True)])})}
        )
        self.norm = nn.LayerNorm(7)
        self.output = nn.Linear(7, 3)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, None]:
        dense = self.get_submodule("encoder.transformer.layers.0")
        hidden = self.norm(torch.tanh(dense(self.embedding(ids))))
        return nn.functional.cross_entropy(self.output(hidden).float(), targets, reduction="sum"), None


def make_engine(directory: Path, rank: Rank, case: str) -> Engine:
    """The engine of a case, with an average of the weights."""
    own = directory / f"config-{rank.rank}"
    own.mkdir(exist_ok=True)
    config = make_config(own, directory / "none", *CASES[case], "ema={decay: 0.8}")
    torch.manual_seed(1)
    return Engine(Network(), EngineSettings.of(config), rank)


def add_gradients(engine: Engine, number: int, poison: float = 1.0) -> None:
    """Forward and backward of this rank's micro-batches of an update; there are 4 or 8 in all."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = range(rank, 4 + 4 * (number % 2), world_size)
    for micro_batch in own:
        generator = torch.Generator().manual_seed(100 * number + micro_batch)
        ids, targets = (torch.randint(size, (6,), generator=generator) for size in (11, 3))
        loss, _ = engine(ids=ids, targets=targets)
        factor = poison if micro_batch == 0 else 1.0
        engine.backward(loss * factor * world_size / 24, last=micro_batch == own[-1])


def run(engine: Engine, first: int, last: int) -> list[Update]:
    """Make updates; of five, the fourth is discarded and the fifth has a gradient that is NaN."""
    made = []
    for number in range(first, last):
        add_gradients(engine, number, math.nan if number % 5 == 4 else 1.0)
        made.append(engine.update(1e-2, discard=number % 5 == 3))
    return made


def gather(engine: Engine) -> dict[str, Tensor]:
    """All masters and their optimizer state, joined from all ranks."""
    own = []
    for master in own_masters(engine.deepspeed):
        for key, value in {"fp32": master.weights, **master.state}.items():
            if is_sharded(key, value):
                flat = value.detach().view(-1)
                own += [
                    (f"{key} {one.name}", one.start, flat[one.offset : one.offset + one.size].clone())
                    for one in master.extents
                ]
            else:
                whole = torch.as_tensor(value, dtype=torch.float32).reshape(-1).clone()
                own += [(f"{key} {one.name}", 0, whole) for one in master.extents]
    # What is not sharded is the same on every rank.
    return _join(
        [(*place, values) for place, values in {one[:2]: one[2] for one in _of_all_ranks(own)}.items()]
    )


def slices(engine: Engine, kind: Any) -> dict[str, Tensor]:
    """The slices of all ranks, joined; every element must be there exactly once."""
    own = [(one.name, one.start, one.values.clone()) for one in engine.slices(kind)]
    return _join(_of_all_ranks(own))


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two gathered states are equal, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def make_saver(store: CheckpointStore, rank: Rank, keep: int = 2, **options: Any) -> CheckpointSaver:
    """A saver that keeps so many checkpoints."""
    usual = {"model": TransformerConfig(vocab_size=11), "tokenizer_json": "{}", "inputs": [], "ema": True}
    return CheckpointSaver(store, rank, retain=lambda: apply_retention(store, keep), **(usual | options))


def save(engine: Engine, store: CheckpointStore, rank: Rank, meanwhile: Callable[[], Any]) -> list[str]:
    """Save the one checkpoint of a store, and do something else while it is written. Returns what became of it."""
    saver = make_saver(store, rank)
    saver.save(engine, state_at(SAVED))
    meanwhile()
    saver.wait()
    dist.barrier()
    return [type(outcome).__name__ for outcome in saver.finished()]


def saved_in(store: CheckpointStore) -> Path:
    """Where the checkpoint lies on this machine, once all ranks may read it."""
    if dist.get_rank() == 0:
        store.fetch(SAVED)
    dist.barrier()
    return store.fetch(SAVED, deep=False)


def explore(directory: Path, place: str, rank: Rank, case: str) -> dict[str, Any]:
    """Two ranks: updates, a checkpoint, more updates, a rollback, and a resumption in a new engine."""
    engine = make_engine(directory, rank, case)
    initial = slices(engine, "average")
    weights = slices(engine, "weights")
    updates = run(engine, 0, 3)
    before = gather(engine)
    skipped = run(engine, 3, 5)
    found: dict[str, Any] = {
        "applied": [update.applied for update in updates + skipped],
        "norms": [update.grad_norm for update in updates],
        "loss_scales": [update.loss_scale for update in updates + skipped],
        "average begins as the weights": same(initial, weights),
        "nothing changed": same(before, gather(engine)),
    }
    saved, store = gather(engine), open_store(place, case)
    whole = {MODEL_FILE: slices(engine, "weights"), EMA_FILE: slices(engine, "average")}
    engine.deepspeed.save_checkpoint(
        str(directory / "own" / case), tag=DEEPSPEED_DIRECTORY, save_latest=False
    )
    found["outcomes"] = save(engine, store, rank, lambda: run(engine, SAVED, LAST))
    last, path = gather(engine), saved_in(store)
    for name, expected in whole.items():
        found[f"{name} is whole"] = same(
            expected, {each: value.view(-1) for each, value in load_file(path / name).items()}
        )
    found |= _compared(directory / "own" / case, path)
    if rank.rank == 0:
        torch.save(saved, directory / f"{case}.pt")
        torch.save(last, directory / f"{case}-last.pt")
    found["slices are the weights"] = _are_weights(engine)
    found["moved on"] = not same(saved, last)
    # What a spike leaves behind: half an update.
    loss, _ = engine(ids=torch.arange(6), targets=torch.zeros(6, dtype=torch.long))
    engine.backward(loss, last=False)
    engine.restore(path / DEEPSPEED_DIRECTORY)
    found["went back"] = same(saved, gather(engine))
    run(engine, SAVED, LAST)
    found["same after going back"] = same(last, gather(engine))
    fresh = make_engine(directory, rank, case)
    fresh.restore(path / DEEPSPEED_DIRECTORY)
    run(fresh, SAVED, LAST)
    found["same after a start"] = same(last, gather(fresh))
    if "fp16" in case or "bf16" in case:
        found["added"], found["sent"] = _rounding_of_sums(fresh, rank)
    return found


def _compared(own: Path, saved: Path) -> dict[str, Any]:
    """Compare a checkpoint with the files that DeepSpeed writes of the same state."""
    files = sorted((own / DEEPSPEED_DIRECTORY).glob("*.pt"))
    ours = [saved / file.relative_to(own) for file in files]
    there = {file.relative_to(saved).as_posix() for file in saved.rglob("*") if file.is_file()}
    others = {EMA_FILE, "manifest.json", "model.json", MODEL_FILE, "tokenizer.json", "trainer.json"}
    return {
        "has DeepSpeed's files and others": there == others | {f.relative_to(own).as_posix() for f in files},
        "has their contents": all(
            is_same(torch.load(file, weights_only=False), torch.load(one, weights_only=False))
            for file, one in zip(files, ours, strict=True)
        ),
        # Tensors that share memory share it in the files, too.
        "is small": all(
            one.stat().st_size <= file.stat().st_size for file, one in zip(files, ours, strict=True)
        ),
    }


def is_same(one: Any, other: Any) -> bool:
    """Whether two contents of checkpoint files are equal, to the last bit, but for weights that masters hold, too: the
    second has the shapes of those alone."""
    if isinstance(one, Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and (
            other.is_meta or torch.equal(one, other)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and (hasattr(one, "__dict__") or one == other)


def _rounding_of_sums(engine: Engine, rank: Rank) -> tuple[float, float]:
    """How much of small gradients, which the precision does not see beside a large one, is in the gradient's norm: when
    they are of further micro-batches, and when they are another rank's. 1 where nothing is lost."""
    small = 2.0 ** (-9 if engine.deepspeed.bfloat16_enabled() else -12)
    norms = []
    for own in ((1.0,), (1.0, *(small,) * 32), (1.0 if rank.rank == 0 else small,)):
        for number, factor in enumerate(own):
            loss, _ = engine(ids=torch.arange(6), targets=torch.zeros(6, dtype=torch.long))
            engine.backward(loss * factor / 24, last=number == len(own) - 1)
        if engine.deepspeed.zero_optimization_stage():
            norms.append(engine.update(0.0).grad_norm)
        else:
            # There DeepSpeed rounds gradients for their norm.
            gradients = [one.grad for one in engine.deepspeed.module.parameters()]
            norms.append(float(nn.utils.get_total_norm(gradients)))
            engine.update(0.0, discard=True)
    alone, added, sent = norms
    return (added / alone - 1) / (32 * small), (2 * sent / alone - 1) / small


def reshard(directory: Path, place: str, rank: Rank, case: str) -> dict[str, Any]:
    """One rank resumes from the checkpoint of two."""
    engine = make_engine(directory, rank, MOVES[case])
    engine.restore(saved_in(open_store(place, case)) / DEEPSPEED_DIRECTORY)
    taken_over = same(torch.load(directory / f"{case}.pt"), gather(engine))
    run(engine, SAVED, TURNED)
    torch.save(gather(engine), directory / f"{case}-one.pt")
    save(engine, open_store(place, f"{case}-one"), rank, lambda: None)
    return {"taken over": taken_over}


def return_to_two(directory: Path, place: str, rank: Rank, case: str) -> dict[str, Any]:
    """Two ranks resume from the checkpoint of one, and end near two ranks that never stopped."""
    engine = make_engine(directory, rank, case)
    engine.restore(saved_in(open_store(place, f"{case}-one")) / DEEPSPEED_DIRECTORY)
    taken_over = same(torch.load(directory / f"{case}-one.pt"), gather(engine))
    run(engine, TURNED, LAST)
    reference, arrived = torch.load(directory / f"{case}-last.pt"), gather(engine)
    distances = [
        float((arrived[name] - reference[name]).abs().max()) for name in reference if name.startswith("fp32")
    ]
    return {"taken over": taken_over, "distance": max(distances)}


def move_between_stages(directory: Path, place: str, rank: Rank, kind: str) -> dict[str, Any]:
    """An optimizer in every stage that it has, saved and restored into every other: state that differs, by stages."""
    engines: dict[str, Engine] = {}
    for stage in "0" if kind in WHOLE else "0123":
        CASES[f"{stage}-{kind}"] = (f"zero.stage={stage}", f"optimizer.kind={kind}")
        engine = engines[stage] = make_engine(directory, rank, f"{stage}-{kind}")
        run(engine, 0, 2)
        save(engine, open_store(place, f"pairs-{stage}-{kind}"), rank, lambda: None)
    wrong = []
    fresh = {stage: make_engine(directory, rank, f"{stage}-{kind}") for stage in engines}
    for stage, saved in engines.items():
        expected, path = gather(saved), saved_in(open_store(place, f"pairs-{stage}-{kind}"))
        for other in engines:
            fresh[other].restore(path / DEEPSPEED_DIRECTORY)
            found = gather(fresh[other])
            wrong += [
                f"{stage} to {other}: {name}"
                for name in expected
                if not torch.equal(found[name], expected[name])
            ]
        if kind not in WHOLE:
            fresh["0"].fill(saved.gather(to_all=True, with_state=True))
            found = gather(fresh["0"])
            wrong += [
                f"{stage} as whole tensors: {name}"
                for name in found
                if not torch.equal(found[name], expected[name])
            ]
    return {"wrong": wrong}


def each_case(
    part: Callable[[Path, str, Rank, str], dict[str, Any]], directory: Path, place: str, cases: Sequence[str]
) -> dict[str, Any]:
    """The findings of this rank in every case; checkpoints lie at `place`, a directory or a URI."""
    rank = join_group()
    return {case: part(directory, place, rank, case) for case in cases}


def join_group() -> Rank:
    """Become a rank of the group, which may also train in fp16: CPUs are only too slow for it."""
    from deepspeed.accelerator import get_accelerator

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    accelerator: Any = get_accelerator()
    accelerator.is_fp16_supported = lambda: True
    engines.require_hardware = lambda config: None
    return Rank(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]), 1)


def _are_weights(engine: Engine) -> bool:
    """Whether the slices are the network's own weights, rounded to its precision."""
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    whole, module = slices(engine, "weights"), engine.deepspeed.module
    with GatheredParameters(
        list(module.parameters()), enabled=engine.deepspeed.zero_optimization_stage() == 3
    ):
        weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    return whole.keys() == weights.keys() and all(
        torch.equal(whole[name].to(value.dtype), value.view(-1)) for name, value in weights.items()
    )


def _of_all_ranks(own: list[Piece]) -> list[Piece]:
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return [piece for pieces in ranks for piece in pieces]


def _join(pieces: list[Piece]) -> dict[str, Tensor]:
    whole: dict[str, list[Tensor]] = {}
    for name, start, values in sorted(pieces, key=lambda piece: piece[:2]):
        assert start == sum(map(len, whole.setdefault(name, []))), (name, start)
        whole[name].append(values)
    return {name: torch.cat(values) for name, values in whole.items()}
