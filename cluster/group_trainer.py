"""Ray Train without the actors that our workers have no use for: each is a process that imports pandas and Ray's data
library, and workers start only when the first of them has answered.

Our workers read no datasets of Ray's. On a cluster that this process has started, they need nothing either of what Ray
Train does for clusters with many users: no autoscaler waits for requests of resources, no node is drained, nothing
outlives this process that would have to be released after it; and they do not report to each other through Ray Train.

Nor do Ray Train's own actors get runtime environments there, which would be empty but for Ray Train's defaults. So
controller and worker live in the processes that Ray starts in advance, one for each CPU, while this one imports Ray
Train.
"""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.callbacks.preemption_callback import PreemptionCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup, state, worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.result import Result


class GroupTrainer(DataParallelTrainer):
    """A `DataParallelTrainer` without datasets, on any cluster."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [_NoDatasets() if isinstance(each, DatasetsCallback) else each for each in callbacks]


class OwnTrainer(GroupTrainer):
    """A fixed number of workers without a runtime environment, on a cluster that this process has started."""

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


class _NoDatasets(WorkerGroupCallback):
    """Gives workers no provider of datasets, which would be an actor."""

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        return {"dataset_shard_provider": [None] * len(workers)}


class _NoSynchronization:
    """Stands for the actor through which workers report together."""

    @staticmethod
    def options(**_: Any) -> type[_NoSynchronization]:
        return _NoSynchronization

    @staticmethod
    def remote(**_: Any) -> str:
        """The handle that workers get."""
        return "no synchronization actor"


class _FixedSize(FixedScalingPolicy):
    """Asks no autoscaler for resources."""

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class _Workers(WorkerGroup):
    def __init__(self, run: Any, group: Any, callbacks: list[Any] | None = None) -> None:
        # In the controller's process, which has no other groups.
        groups: Any = worker_group
        states: Any = state
        groups.SynchronizationActor = _NoSynchronization
        states._shutdown_sync_actor = lambda _: None
        super().__init__(
            run, group, [each for each in callbacks or [] if not isinstance(each, PreemptionCallback)]
        )

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> dict[str, Any]:
        return {}


class _Controller(TrainController):
    worker_group_cls = _Workers
