"""Settings of the methods that train few parameters instead of all weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from models.config import Activation
from models.fields import Rule, Settings

Target = Literal["query", "key", "value", "output", "gate", "up", "down"]
Placement = Literal["houlsby", "pfeiffer", "parallel"]


@dataclass(frozen=True)
class LoraSettings(Settings):
    """W x + (alpha / rank) B A x with A and B trained (Hu et al. 2022, section 4.1)."""

    kind: Literal["lora"] = "lora"
    """LoRA."""
    rank: int = 8
    """Rows of A; at least 1."""
    alpha: float = 16.0
    """The update is scaled by alpha / rank; > 0."""
    dropout: float = 0.0
    """Probability, in [0, 1), of dropping inputs of A."""
    targets: tuple[Target, ...] = ("query", "value")
    """Projections that are updated, in all attentions of all stacks: `query`, `key`, `value` and `output` of attention;
    `up`, `down` and, in a gated feed-forward block, `gate`."""

    def rules(self) -> Mapping[str, Rule]:
        known = get_args(Target)
        some = Rule(lambda chosen: chosen and {*chosen} <= {*known}, f"some of {', '.join(known)}")
        return {"targets": some}

    @property
    def scale(self) -> float:
        """Factor of the update."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class AdapterSettings(Settings):
    """h + s W_up f(W_down x), a bottleneck in every layer."""

    kind: Literal["adapters"] = "adapters"
    """Bottleneck adapters."""
    placement: Placement = "houlsby"
    """`houlsby`: after each attention and feed-forward block, before the residual sum (Houlsby et al. 2019, section
    2.1); `pfeiffer`: after the feed-forward block with its residual sum and normalisation (Pfeiffer et al. 2021);
    `parallel`: beside the feed-forward block, reading its input (He et al. 2022, section 3.3)."""
    size: int = 64
    """Width of the bottleneck; at least 1."""
    activation: Activation = "gelu"
    """Non-linearity of the bottleneck (Houlsby et al.: GELU; He et al.: ReLU)."""
    scale: float = 1.0
    """Factor of the change; > 0 (He et al. 2022: 4 beside the feed-forward block)."""
    dropout: float = 0.0
    """Probability, in [0, 1), of dropping the change."""
    train_norms: bool = True
    """Whether the normalisations of the layers are also trained, as in the paper; with `houlsby`."""


@dataclass(frozen=True)
class PrefixSettings(Settings):
    """Keys and values of a learned prefix in every attention (Li and Liang 2021, section 4)."""

    kind: Literal["prefix"] = "prefix"
    """Prefix tuning."""
    length: int = 20
    """Positions of the prefix; at least 1. In a decoder alone they count as positions before the text, as in the
    released code, so that texts may have that many tokens less."""
    bottleneck: int | None = None
    """Width of the network that computes the prefix while it is trained (section 4.3; 512 or 800 there); None trains
    keys and values themselves."""


@dataclass(frozen=True)
class BitFitSettings(Settings):
    """The biases alone are trained (Ben Zaken et al. 2022, section 3)."""

    kind: Literal["bitfit"] = "bitfit"
    """BitFit."""


@dataclass(frozen=True)
class MamSettings(Settings):
    """A short prefix in attention and a wide scaled adapter beside the feed-forward block: the mix-and-match adapter
    (He et al. 2022, section 4.6)."""

    kind: Literal["mam"] = "mam"
    """The mix-and-match adapter."""
    prefix_length: int = 30
    """As `length` of prefix tuning."""
    bottleneck: int | None = None
    """As in prefix tuning."""
    size: int = 512
    """As in adapters."""
    scale: float = 4.0
    """As in adapters."""
    dropout: float = 0.0
    """As in adapters."""

    @property
    def parts(self) -> tuple[PrefixSettings, AdapterSettings]:
        """The two methods that it joins."""
        return (
            PrefixSettings(length=self.prefix_length, bottleneck=self.bottleneck),
            AdapterSettings(
                placement="parallel",
                size=self.size,
                activation="relu",
                scale=self.scale,
                dropout=self.dropout,
            ),
        )


PeftSettings: TypeAlias = LoraSettings | AdapterSettings | PrefixSettings | BitFitSettings | MamSettings
