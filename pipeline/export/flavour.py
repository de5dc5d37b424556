"""An exported network as a model of MLflow, as `mlflow.transformers.load_model` and `mlflow.pyfunc` read it."""

from __future__ import annotations

import contextlib
import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ExportError
from pipeline.export.exporting import ELMO, Export

_TASKS = {
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""Pipelines of transformers by class; for a class without one, such as sequence to sequence, the network's features."""


def save_flavour(exported: Export, directory: Path) -> str:
    """Write an MLflow model of an exported network to a new directory; returns the pipeline's task.

    Raises:
        ExportError: it is an ELMo, which transformers does not have.
    """
    if exported.family == ELMO:
        raise ExportError(
            "transformers has no ELMo, so MLflow cannot load it.", next_step="publish without --export"
        )
    import transformers
    from mlflow.transformers import save_model

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    task = _TASKS.get(exported.auto_class, "feature-extraction")
    requirements = [f"{name}=={version(name)}" for name in ("transformers", "torch")]
    with contextlib.redirect_stdout(sys.stderr):
        # Of a path, MLflow 3.17 cannot find the pipeline's class in transformers 5.
        load: Any = transformers.pipeline
        loaded = load(task, model=str(exported.directory), tokenizer=str(exported.directory), device="cpu")
        save_model(loaded, str(directory), pip_requirements=requirements)
    return task
