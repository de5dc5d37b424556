"""Measurements of every step: speeds and memory; periodically also stragglers and machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cluster.group import Rank
from pipeline.pretrain.guards.stragglers import compare
from pipeline.pretrain.measuring.machine import MachineMetrics, by_host
from pipeline.pretrain.measuring.meters import Meter, Meters, memory
from pipeline.pretrain.step.clock import StepTime
from pipeline.pretrain.step.collectives import gathered
from pipeline.pretrain.step.device_batches import HostBatch
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.reporter import Reporter
from pipeline.samples.loader import Step


class Measurements:
    """Measures a run; all ranks make one, and call `report` for every step."""

    def __init__(
        self,
        run: RunDirectory,
        config: PretrainConfig,
        rank: Rank,
        device: torch.device,
        build: Callable[[], nn.Module],
        workers: Sequence[dict[str, Any]],
        reporter: Reporter,
    ) -> None:
        """
        Args:
            build: makes the network that is trained.
            workers: by rank, where it runs.
        """
        self._config, self._rank, self._workers, self._reporter = config, rank, workers, reporter
        self._device = device
        self._busy_s: list[float] = []
        """Seconds of data and forward passes, without waiting for other ranks, by step since the last comparison."""
        self._meter = Meter(flops_per_sample=0.0, num_devices=rank.world_size, peak_flops=None)
        self._is_first = True
        self._machine = MachineMetrics(run.path, self._device) if rank.local_rank == 0 else None
        self._meters = Meters(
            build,
            num_devices=rank.world_size,
            device=self._device,
            precision=config.precision,
        )

    def report(self, number: int, step: Step[HostBatch], values: Mapping[str, float], time: StepTime) -> None:
        """Log a step.

        Args:
            number: of the step in the log; 1 is the first.
            values: what it computed.
        """
        self._busy_s.append(time.busy_s)
        if self._rank.rank == 0:
            self._reporter.write(
                LogKind.STEP, number, {**values, **self._speeds(step, time), **memory(self._device)}
            )
        if number % self._config.guards.straggler_every_steps == 0:
            self._compare_ranks(number)

    def _speeds(self, step: Step[HostBatch], time: StepTime) -> dict[str, float]:
        length = self._config.sequence_length_at(step.data_step)
        samples = self._config.batch_plan.samples_at(step.data_step)
        return self._meter.speeds(
            tokens=samples * length, samples=samples, step_s=time.whole_s, data_wait_s=time.waiting_s
        )

    def prepare(self, step: Step[HostBatch]) -> None:
        """Count the operations of a step like this one, before its time is taken. The first step of an attempt is not
        made to wait for that."""
        if self._rank.rank != 0:
            return
        if self._is_first:
            self._is_first = False
            return
        length = self._config.sequence_length_at(step.data_step)
        # Micro-batches may be sorted by length: the one in the middle stands for all.
        middle = step.micro_batches[len(step.micro_batches) // 2].data
        self._meter = self._meters.meter(middle.arrays, self._config.batch.micro_batch_size, length)

    def _compare_ranks(self, number: int) -> None:
        """Times and memory of all ranks since the last comparison, and what their machines do; who is slow is named in
        the run's history."""
        machine = None if self._machine is None else (self._machine.host, self._machine.sample())
        mine = {"busy_s": self._busy_s, "memory": memory(self._device), "machine": machine}
        self._busy_s = []
        everyone = gathered(mine)
        comparison = compare([one["busy_s"] for one in everyone], self._config.guards.straggler_ratio)
        most = {f"max_{name}": max(one["memory"][name] for one in everyone) for name in everyone[0]["memory"]}
        self._reporter.write(LogKind.RANKS, number, {**comparison.metrics, **most})
        self._reporter.write(LogKind.SYSTEM, number, by_host(one["machine"] for one in everyone))
        if comparison.stragglers:
            self._reporter.history(Event.STRAGGLER, step=number, **comparison.event(self._workers))
