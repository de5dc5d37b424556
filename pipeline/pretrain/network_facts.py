"""Facts of a run's network for a dry run, remembered: only torch can build the network, and it takes longer to import
than all the rest of a dry run.

    CLOZE_CACHE/networks/KEY.json    KEY hashes the settings that the facts follow from, and the code

Only facts of networks that could be built are remembered, so what does not fit together is refused every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import hash_json, seal, unseal, write_durably
from cluster.artefacts.private import cache_directory
from models.config import NetworkConfig
from pipeline.objectives.outside import OutsideModels
from pipeline.run.config import PretrainConfig
from pipeline.samples.noise.kernel_cache import digest_of

_ROOT = Path(__file__).parents[2]
_CODE = [_ROOT / name for name in ("models", "pipeline/objectives", "pipeline/engine", "pipeline/pretrain")]
"""The code that the facts follow from."""


def network_facts(config: PretrainConfig, shape: NetworkConfig, outside: OutsideModels) -> Mapping[str, Any]:
    """`parameters`, and `attention`: its kernel on this machine, and why.

    Args:
        shape: the network, with its vocabulary.
        outside: the models that the objective's settings refer to.

    Raises:
        ConfigError, MismatchError: objective, network and attention kernel do not fit together.
    """
    if _may_have_gpus():
        return _built(config, shape, outside)
    told = {
        "objective": config.objective.model_dump(mode="json"),
        "network": [type(shape).__name__, asdict(shape)],
        "outside": {name: model.fingerprint for name, model in outside.items()},
        "compute": config.compute.model_dump(mode="json"),
        "precision": config.precision,
        "code": digest_of(_CODE),
        "torch": version("torch"),
    }
    # Without a cache, the network is built each time.
    with suppress(OSError, StorageError):
        path = cache_directory() / "networks" / f"{hash_json(told)}.json"
        with suppress(FileNotFoundError, ValueError):
            return unseal(orjson.loads(path.read_bytes()))
        found = _built(config, shape, outside)
        path.parent.mkdir(exist_ok=True)
        write_durably(path, orjson.dumps(seal(found)))
        return found
    return _built(config, shape, outside)


def _may_have_gpus() -> bool:
    """Whether torch must be asked: there are device files of NVIDIA's or AMD's drivers, or of Windows below Linux."""
    return any(next(Path("/dev").glob(name), None) for name in ("nvidia[0-9]*", "kfd", "dxg"))


def _built(config: PretrainConfig, shape: NetworkConfig, outside: OutsideModels) -> dict[str, Any]:
    import torch

    from models.initialization import without_memory
    from models.weights import count_parameters
    from pipeline.engine.network import prepare_network
    from pipeline.objectives.registry import build_model

    with without_memory():
        network = build_model(config.objective, shape, outside)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    choice = prepare_network(network, config.model, config, device)
    return {
        "parameters": count_parameters(network),
        "attention": f"{choice.backend} ({choice.reason})",
    }
