"""Ray Train on a cluster that this process has started: without what Ray Train does for clusters with many users.

On such a cluster no autoscaler waits for requests of resources, no node is drained, and nothing outlives this process
that would have to be released after it. Ray Train has an actor for each of these, a process that imports pandas and
Ray's data library; workers start only when the first of them has answered.

Nor do its own actors get runtime environments, which would be empty but for Ray Train's defaults. So they live in the
processes that Ray starts in advance, while this one imports Ray Train.
"""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.callbacks.preemption_callback import PreemptionCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.result import Result


class OwnTrainer(DataParallelTrainer):
    """A `DataParallelTrainer` of a fixed number of workers without a runtime environment."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [each for each in callbacks if not isinstance(each, PlacementGroupCleanerCallback)]

    def _initialize_and_run_controller(self, **parts: Any) -> Result:
        parts["scaling_policy"] = _FixedSize(self.scaling_config)
        controller: Any = ray.remote(num_cpus=0)(_Controller).remote(**parts)
        if threading.current_thread() is threading.main_thread():
            self._register_sigint_handler(controller)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())


class _FixedSize(FixedScalingPolicy):
    """Asks no autoscaler for resources."""

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class _Workers(WorkerGroup):
    def __init__(self, run: Any, group: Any, callbacks: list[Any] | None = None) -> None:
        super().__init__(
            run, group, [each for each in callbacks or [] if not isinstance(each, PreemptionCallback)]
        )

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> dict[str, Any]:
        return {}


class _Controller(TrainController):
    worker_group_cls = _Workers
