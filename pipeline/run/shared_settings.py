"""Settings that pre-training and fine-tuning share: the network, ZeRO, and Weights & Biases."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from models.config import ElmoConfig, TransformerConfig
from pipeline.config.loading import Config


class WandbConfig(Config):
    """A copy of metrics and settings in Weights & Biases, whose client is installed apart: `pip install wandb`."""

    project: str = Field(default="cloze", pattern=r"^[^/\\#?%:\s]{1,128}$")
    """Project that runs appear in; up to 128 characters without blanks and / \\ # ? % :."""
    entity: str | None = None
    """User or team that the project belongs to; null takes the client's default."""
    offline: bool = False
    """Whether everything stays on disk until `wandb sync` sends it."""


class OffloadConfig(Config):
    """Offload of what the GPU has no room for (ZeRO-Offload, Ren et al. 2021)."""

    device: Literal["cpu"] = "cpu"
    """Host memory. A resumption may change it: checkpoints are the same."""


class ZeroConfig(Config):
    """DeepSpeed ZeRO (Rajbhandari et al. 2020)."""

    stage: Literal[0, 1, 2, 3] = 2
    """State that is sharded over workers: 1 optimizer state, 2 gradients too, 3 parameters too."""
    offload_optimizer: OffloadConfig | None = None
    """Device that holds and updates the optimizer state; stages 1 to 3."""
    offload_parameters: OffloadConfig | None = None
    """Device that holds parameters between their uses; stage 3."""
    reduce_bucket_elements: int = Field(default=500_000_000, gt=0)
    """Gradient elements that are reduced at a time: larger ones are faster and take more memory."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the gradients that workers exchange. They add up in fp32 on each worker in any case;
    bf16 or fp16, for a run of that precision, halves the traffic and rounds what is sent."""


def _network(value: Any) -> Any:
    return value.get("network", "encoder") if isinstance(value, dict) else getattr(value, "network", None)


NetworkChoice = Annotated[
    Annotated[TransformerConfig, Tag("encoder")]
    | Annotated[TransformerConfig, Tag("decoder")]
    | Annotated[TransformerConfig, Tag("encoder_decoder")]
    | Annotated[ElmoConfig, Tag("elmo")],
    Discriminator(_network),
]
"""The shape of any network, whose `network` decides which settings there are; `encoder` unless said."""
