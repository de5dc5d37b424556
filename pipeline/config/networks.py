"""Networks as configurations name them: `model.network` decides which settings there are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from models.config import ElmoConfig, TransformerConfig


def _kind(value: Any) -> Any:
    return value.get("network", "encoder") if isinstance(value, dict) else getattr(value, "network", None)


NetworkChoice = Annotated[
    Annotated[TransformerConfig, Tag("encoder")]
    | Annotated[TransformerConfig, Tag("decoder")]
    | Annotated[TransformerConfig, Tag("encoder_decoder")]
    | Annotated[ElmoConfig, Tag("elmo")],
    Discriminator(_kind),
]
"""The shape of any network; `network: encoder` unless said."""
