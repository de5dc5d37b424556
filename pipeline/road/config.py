"""The configuration of a road: the configurations of its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline.config.loading import Config, flatten, load_config
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import GuardsConfig
from pipeline.tune.config import NAME_PATTERN


class StageConfig(Config):
    """One stage: a configuration of its verb, with settings that win over it."""

    config: Path
    """YAML file, or a name of `cloze configs list`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that win over the file, nested or by dotted keys: `{steps: 500, optimizer.lr: 1e-3}`."""

    @property
    def overrides(self) -> list[str]:
        """The settings as `a.b=c`."""
        import orjson

        return [f"{key}={orjson.dumps(value).decode()}" for key, value in flatten(self.settings).items()]


class RoadConfig(Config):
    """One road, from source files to scores."""

    name: str = Field(pattern=NAME_PATTERN)
    """Names the report."""
    out: Path = Path("roads")
    """Directory of reports; each lies in `NAME` below it."""
    data: tuple[StageConfig, ...] = ()
    """Preparations, as for `cloze data prepare`; none where the token stores are there."""
    pretrain: StageConfig
    """The run, as for `cloze pretrain`."""
    checkpoint: Literal["best", "latest"] = "latest"
    """The checkpoint of the run that is fine-tuned."""
    finetune: tuple[StageConfig, ...] = Field(default=(), max_length=100)
    """Fine-tunings of the checkpoint, as for `cloze finetune`."""

    @property
    def guards(self) -> GuardsConfig:
        """The guards of the run, whose `grace_s` is the time that a stop may take."""
        return load_config(PretrainConfig, self.pretrain.config, self.pretrain.overrides).guards
