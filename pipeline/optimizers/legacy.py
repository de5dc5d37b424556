"""Settings and identities of runs from before each optimizer had settings of its own.

Then the four optimizers shared one class with the keys of all of them. Stored configurations hold all these keys, and a
run's identity, which its checkpoints hold and a resumption compares, must stay the same to the byte.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from cluster.artefacts.errors import ConfigProblem
from pipeline.config.problems import SettingsMisfit

_DEFAULTS = {"bias_correction": True, "initial_accumulator": 0.0}
"""The keys that now belong to one optimizer only, and what they were for all others."""
_OWNERS = {"bias_correction": "adamw", "initial_accumulator": "adagrad"}
_ORDER = (
    *("kind", "lr", "betas", "eps", "bias_correction", "initial_accumulator"),
    *("weight_decay", "clip", "layer_decay"),
)
_KINDS = frozenset({"adamw", "lion", "lamb", "adagrad"})


def without_unused_keys(allowed: Container[str], given: Any) -> Any:
    """Settings without the keys of another optimizer, which earlier versions stored with their defaults.

    Raises:
        SettingsMisfit: such a key has another value.
    """
    if not isinstance(given, Mapping) or given.get("kind", "adamw") not in _KINDS:
        return given
    foreign = {key: given[key] for key in _DEFAULTS if key in given and key not in allowed}
    kind = given.get("kind", "adamw")
    problems = [
        ConfigProblem(
            f"{key}", str(value).lower(), f"belongs to optimizer.kind {_OWNERS[key]}, not {kind}; remove it"
        )
        for key, value in foreign.items()
        if value != _DEFAULTS[key]
    ]
    if problems:
        raise SettingsMisfit(problems)
    return {key: value for key, value in given.items() if key not in foreign}


def identity_of_optimizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's identity that its optimizer has: its settings, for the older kinds with the keys that all of
    them had."""
    if settings["kind"] not in _KINDS:
        return dict(settings)
    return {key: settings.get(key, _DEFAULTS.get(key)) for key in _ORDER}
