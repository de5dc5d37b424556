"""The loop of one rank. Every rank runs this file; what is shared is only the gradients and a few numbers."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from cluster.errors import ConfigError
from cluster.manifest import read_manifest
from cluster.storage import storage_errors
from cluster.train_group import Rank
from models.initialization import init_weights
from pipeline.batches.loader import MicroBatch, StepLoader
from pipeline.batches.noise import Noise
from pipeline.batches.token_dataset import TokenDataset
from pipeline.objectives import OBJECTIVES
from pipeline.objectives.base import Batch
from pipeline.pretrain import checkpoint as checkpoints
from pipeline.pretrain import engine as engines
from pipeline.pretrain.config import PretrainConfig, identity_of
from pipeline.pretrain.inputs import open_inputs
from pipeline.pretrain.run_directory import RunDirectory
from pipeline.pretrain.run_log import RunLog, Sender
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.totals import Totals
from pipeline.pretrain.universal import convert_on_rank_zero, discard_scratch, universal_info

_CLOSE_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Progress:
    """Where the run stands; all that changes from step to step outside the engine."""

    step: int = 0
    predicted_tokens: int = 0
    held_out_loss: float | None = None


class Trainer:
    """One rank of one attempt at a run."""

    def __init__(self, run: RunDirectory, config: PretrainConfig, rank: Rank) -> None:
        _require_even_share(config, rank.world_size)
        self.run, self.config, self.rank = run, config, rank
        self.info = run.info
        self.inputs = open_inputs(config, verify=False)
        self.objective = OBJECTIVES[config.objective.kind]
        self.optimizer_name = engines.optimizer_name()
        self.progress = Progress()
        self.device = _device(rank)
        self.workers = _gather_workers(rank)
        start = self._choose_checkpoint()
        model = self.objective.build_model(config.objective, self.inputs.model)
        init_weights(model, config.seed)
        self.attention = engines.prepare_network(model, self.inputs.model, config, self.device)
        self.weights = self.objective.weights(config.objective)
        self.optimizer = engines.make_optimizer(self.optimizer_name, model, config.optimizer)
        self.engine = engines.initialize(
            model, config, rank.world_size, self.optimizer, universal=_is_universal(start, rank)
        )
        if start is not None:
            self._load(start)
        self.schedule = Schedule(config)
        self.plan = config.batch_plan
        self.loader = self._loader(self.inputs.phases, Noise.of("train", config.seed))
        held_out = [(0, self.inputs.held_out)]
        self.evaluation_loader = self._loader(held_out, Noise.of("evaluation", config.seed))
        self.log: RunLog | None = None
        self.sender: Sender | None = None

    def train(self) -> None:
        """Run from the newest checkpoint to the last step."""
        self._open_log()
        try:
            if self.progress.step == 0:
                self._evaluate()
            waiting_since = time.perf_counter()
            for step in self.loader.steps(self.progress.step, self.config.num_steps):
                started = time.perf_counter()
                metrics = self._update(step.update, step.micro_batches)
                now = time.perf_counter()
                self._report(metrics, data_wait_s=started - waiting_since, step_s=now - waiting_since)
                self._evaluate_and_save_when_due()
                waiting_since = time.perf_counter()
        finally:
            self._close_log()

    def _update(self, step: int, micro_batches: list[MicroBatch[Batch]]) -> dict[str, float]:
        """One update: forward and backward of this rank's micro-batches, then the optimizer."""
        own = [sum(batch.data.counts[term] for batch in micro_batches) for term in self.weights]
        counts = dict(zip(self.weights, self._sum(own), strict=True))
        # The engine averages over ranks and knows nothing of tokens: this turns its average of sums into the
        # sum over the global batch divided by the predictions of each term.
        scales = {
            term: weight * self.rank.world_size / max(counts[term], 1.0)
            for term, weight in self.weights.items()
        }
        rate = self.schedule.learning_rate(step)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        engines.forget_beta_powers(self.optimizer)
        totals = Totals(self.weights)
        self.engine.set_train_batch_size(self.plan.samples_at(step))
        for batch in micro_batches:
            _seed_dropout(self.config.seed, step, batch.number)
            losses, correct = self.engine(**self._tensors(batch.data))
            loss = torch.stack([losses[term] * scale for term, scale in scales.items()]).sum()
            self.engine.backward(loss, scale_wrt_gas=False)
            self.engine.step()
            totals.add(losses, correct, batch.data.counts)
        predicted = int(counts[totals.first])
        self.progress.step = step + 1
        self.progress.predicted_tokens += predicted
        return {
            **totals.means(self._sum),
            "lr": rate,
            "grad_norm": float(self.engine.get_global_grad_norm() or 0.0),
            "predicted_tokens": predicted,
        }

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Loss on a fixed list of held-out samples, shared out over ranks, every sample counted once."""
        count = -(-self.config.evaluation.samples // self.config.batch.micro_batch_size)
        rank, world_size = self.rank.rank, self.rank.world_size
        self.engine.eval()
        totals = Totals(self.weights)
        for turn in range(-(-count // world_size)):
            number = turn * world_size + rank
            # All ranks run equally many passes (ZeRO-3 gathers weights in each); surplus ones are not counted.
            batch = self.evaluation_loader.micro_batch(0, min(number, count - 1))
            _seed_dropout(self.config.seed, 0, batch.number)
            losses, correct = self.engine(**self._tensors(batch.data))
            if number < count:
                totals.add(losses, correct, batch.data.counts)
        self.engine.train()
        metrics = totals.means(self._sum)
        self.progress.held_out_loss = metrics["loss"]
        if self.log is not None:
            self.log.write("held_out", self.progress.step, metrics)

    def _evaluate_and_save_when_due(self) -> None:
        step, last = self.progress.step, self.progress.step == self.config.num_steps
        if last or step % self.config.evaluation.every_steps == 0:
            self._evaluate()
        if last or step % self.config.checkpoint.every_steps == 0:
            self._save()

    def _report(self, metrics: dict[str, float], *, data_wait_s: float, step_s: float) -> None:
        if self.log is None:
            return
        tokens = self.config.tokens_before(self.progress.step) - self.config.tokens_before(
            self.progress.step - 1
        )
        speeds = {
            "tokens_per_s": tokens / step_s,
            "step_s": step_s,
            "data_wait_share": data_wait_s / step_s,
        }
        self.log.write("train", self.progress.step, metrics | speeds)
        if self.sender is not None:
            self.sender.notify()

    def _save(self) -> None:
        directory, step = self.run.checkpoints, self.progress.step
        if self.rank.rank == 0:
            checkpoints.prepare_staging(directory, step)
        dist.barrier()
        staging = checkpoints.staging_path(directory, step)
        self.engine.save_checkpoint(
            str(staging),
            tag=checkpoints.DEEPSPEED_DIRECTORY,
            client_state=universal_info(),
            save_latest=False,
        )
        weights = engines.consolidated_weights(self.engine)
        dist.barrier()
        if weights is not None:
            with storage_errors(staging):
                save_file(weights, staging / checkpoints.MODEL_FILE)
            self._commit(staging)
        dist.barrier()

    def _commit(self, staging: Path) -> None:
        """Rank 0: commit the checkpoint, tell the log, delete what retention lets go."""
        directory = self.run.checkpoints
        manifest = checkpoints.commit_checkpoint(
            staging,
            directory,
            self._state(),
            self.inputs.model,
            self.inputs.vocabulary.tokenizer_json,
            self.inputs.entries,
        )
        assert self.log is not None
        self._log_checkpoint(
            directory / checkpoints.checkpoint_name(self.progress.step), manifest.fingerprint
        )
        if deleted := checkpoints.apply_retention(directory, self.config.checkpoint.keep_last):
            self.log.write("forget", self.progress.step, {"steps": deleted})

    def _log_checkpoint(self, path: Path, fingerprint: str) -> None:
        state = checkpoints.read_trainer_state(path)
        loss = state.held_out_loss
        assert self.log is not None
        self.log.write(
            "checkpoint",
            state.step,
            {
                "directory": str(path.resolve()),
                "fingerprint": fingerprint,
                "metrics": {} if loss is None else {"held_out_loss": loss},
                "best": checkpoints.best_checkpoint(self.run.checkpoints) == path,
            },
        )

    def _state(self) -> checkpoints.TrainerState:
        return checkpoints.TrainerState(
            step=self.progress.step,
            samples=self.plan.samples_between(0, self.progress.step),
            predicted_tokens=self.progress.predicted_tokens,
            world_size=self.rank.world_size,
            zero_stage=self.config.zero.stage,
            optimizer=self.optimizer_name,
            data_fingerprint=self.inputs.data_fingerprint,
            store_fingerprints=[store.fingerprint for store in self.inputs.stores],
            identity=identity_of(self.config),
            held_out_loss=self.progress.held_out_loss,
            run_id=self.info.run_id,
            run_name=self.info.name,
        )

    def _choose_checkpoint(self) -> Path | None:
        """The newest good checkpoint, chosen and verified by rank 0 for all."""
        choice: list[Any] = [None]
        if self.rank.rank == 0:
            path, messages = checkpoints.newest_good(self.run.checkpoints)
            for message in messages:
                self.run.record_event("checkpoint-set-aside", message=message)
            choice = [path]
        dist.broadcast_object_list(choice, src=0)
        return choice[0]

    def _load(self, path: Path) -> None:
        state = checkpoints.read_trainer_state(path)
        resized = state.world_size != self.rank.world_size
        source = convert_on_rank_zero(path) if resized else path
        self.engine.load_checkpoint(str(source), tag=checkpoints.DEEPSPEED_DIRECTORY)
        if resized:
            discard_scratch(path)
        self.progress = Progress(state.step, state.predicted_tokens, state.held_out_loss)

    def _open_log(self) -> None:
        if self.rank.rank != 0:
            return
        self.log = RunLog(self.run.path)
        self.run.record_event(
            "started",
            step=self.progress.step,
            world_size=self.rank.world_size,
            optimizer=self.optimizer_name,
            device=str(self.device),
            attention=self.attention._asdict(),
            workers=self.workers,
        )
        newest = self.run.checkpoints / checkpoints.checkpoint_name(self.progress.step)
        if self.progress.step > max(0, self.log.last_step("checkpoint")):
            # It was committed just before the process died.
            self._log_checkpoint(newest, read_manifest(newest).fingerprint)
        self.sender = Sender(
            self.run.path, uri=self.info.tracking_uri, run_id=self.info.run_id, model_name=self.info.name
        )

    def _close_log(self) -> None:
        if self.log is None or self.sender is None:
            return
        self.log.close()
        if unsent := self.sender.close(_CLOSE_TIMEOUT_S):
            self.run.record_event("tracking-behind", message=unsent)

    def _loader(self, phases: Sequence[tuple[int, TokenDataset]], noise: Noise) -> StepLoader[Batch]:
        return StepLoader(
            phases,
            self.plan,
            lambda packed: self.inputs.corrupt(packed, noise),
            rank=self.rank.rank,
            world_size=self.rank.world_size,
        )

    def _tensors(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The network's arguments on this rank's device."""
        return {name: torch.from_numpy(array).to(self.device) for name, array in batch.inputs.items()}

    def _sum(self, values: Sequence[float]) -> list[float]:
        """Sums over ranks, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()


def _require_even_share(config: PretrainConfig, world_size: int) -> None:
    """Raise ConfigError unless every rank gets equally many micro-batches."""
    num_micro_batches = config.batch.samples // config.batch.micro_batch_size
    if num_micro_batches % world_size:
        raise ConfigError(
            f"The {num_micro_batches} micro-batches of a step cannot be shared out evenly over {world_size} workers.",
            next_step="choose a number of workers that divides batch.samples / batch.micro_batch_size",
        )


def _gather_workers(rank: Rank) -> list[dict[str, Any]]:
    """Where every rank runs: what an operator needs to look at it, or to kill it."""
    mine = {"rank": rank.rank, "host": platform.node(), "pid": os.getpid()}
    workers: list[Any] = [None] * rank.world_size
    dist.all_gather_object(workers, mine)
    return workers


def _is_universal(start: Path | None, rank: Rank) -> bool:
    return start is not None and checkpoints.read_trainer_state(start).world_size != rank.world_size


def _device(rank: Rank) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", rank.local_rank)
    return torch.device("cpu")


def _seed_dropout(seed: int, step: int, micro_batch: int) -> None:
    """Make dropout a function of (seed, step, micro-batch), on whichever rank the micro-batch runs."""
    torch.manual_seed(Noise.of("dropout", seed, step, micro_batch).seed())


def run_rank(argument: Mapping[str, Any], rank: Rank) -> None:
    """Body of every worker; `argument` holds `run`, its directory."""
    torch.set_num_threads(rank.num_threads)
    run = RunDirectory(Path(argument["run"]))
    Trainer(run, run.config(), rank).train()
