"""Hidden states of all layers of a network, their combinations, and heads on frozen features (Devlin et al. 2019,
section 5.3; Peters et al. 2018, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from models.config import Combination, FeatureSettings, NetworkConfig
from models.elmo.config import ElmoConfig
from models.elmo.encoder import DrawnLinear, ElmoEncoder, pad_sentences
from models.elmo.representations import ScalarMix
from models.functional import dropout
from models.stacks import add_stacks, read_text
from models.transformer import Transformer


def num_layers_of(config: NetworkConfig) -> int:
    """Layers above the embeddings that `hidden_states` gives; of the decoder, in an encoder-decoder."""
    return config.num_layers if isinstance(config, ElmoConfig) else config.decoder_layers


def hidden_states(model: Any, **inputs: Tensor | None) -> Tensor:
    """Compute the hidden states of every token in every layer.

    Args:
        model: any network of ours with its stacks under the names `encoder` and `decoder`.
        inputs: what `read_text` takes; for an ELMo what `ElmoEncoder.forward` takes.

    Returns:
        [layers + 1, batch, length, width]: first the embeddings, last the output of the network, after its final norm.
        Of an encoder-decoder these are the decoder's. Of an ELMo a row is a sentence without its marks.
    """
    if isinstance(model.encoder if hasattr(model, "encoder") else None, ElmoEncoder):
        layers = model.encoder(**inputs)
        return pad_sentences(layers, _given(inputs["cu_seqlens"]))[0]
    with recorded_layers(model) as states:
        read_text(model, **inputs)  # pyright: ignore[reportArgumentType]
    return torch.stack(states)


class FeatureExtractor(nn.Module):
    """The stacks of a network, frozen and without dropout, and the combination of their layers.

    Raises:
        ValueError: the network has fewer layers than are combined, or not the layer that is named.
    """

    def __init__(self, config: NetworkConfig, settings: FeatureSettings) -> None:
        super().__init__()
        self.config = config
        self.settings = settings
        if isinstance(config, ElmoConfig):
            self.encoder = ElmoEncoder(config, frozen=True)
        else:
            add_stacks(self, config)
        self.requires_grad_(False)
        count = num_layers_of(config) + 1
        if settings.combine in ("sum_last_four", "concat_last_four") and count < 5:
            raise ValueError(f"combine: {settings.combine} needs four layers, the network has {count - 1}")
        if settings.layer is not None and not -count <= settings.layer < count:
            raise ValueError(f"the network has layers 0 to {count - 1}, not {settings.layer}")
        mixes = settings.combine == "scalar_mix"
        self.mix = ScalarMix(count, normalize=settings.normalize, l2=settings.l2) if mixes else None
        width = config.representation_size if isinstance(config, ElmoConfig) else config.hidden_size
        self.width = width * (4 if settings.combine == "concat_last_four" else 1)
        """Width of the features of a token."""
        self.train()

    def train(self, mode: bool = True) -> FeatureExtractor:
        """As in every module, but the stacks stay in evaluation."""
        super().train(mode)
        for stack in (getattr(self, name, None) for name in ("encoder", "decoder")):
            if stack is not None:
                stack.eval()
        return self

    def forward(self, **inputs: Tensor | None) -> Tensor:
        """[batch, length, width] features; arguments as of `hidden_states`."""
        with torch.no_grad():
            states = hidden_states(self, **inputs)
        if self.mix is not None:
            return self.mix(states)
        return COMBINATIONS[self.settings.combine](states, self.settings)

    def penalty(self) -> Tensor:
        """The mixture's penalty: a scalar to add to the loss of a batch; 0 without a mixture."""
        return torch.zeros(()) if self.mix is None else self.mix.penalty()


class FeatureTagger(nn.Module):
    """A linear layer on the frozen features of every token.

    Raises:
        ValueError: as in `FeatureExtractor`, or `num_labels` is below 1.
    """

    def __init__(
        self, config: NetworkConfig, num_labels: int, settings: FeatureSettings, *, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, not {num_labels}")
        self.config = config
        self.features = FeatureExtractor(config, settings)
        linear = DrawnLinear if isinstance(config, ElmoConfig) else nn.Linear
        self.scores = linear(self.features.width, num_labels)
        self.dropout = dropout

    def forward(self, **inputs: Tensor | None) -> Tensor:
        """[batch, length, num_labels] logits; arguments as of `hidden_states`. At padding they have no meaning."""
        return self.scores(dropout(self.features(**inputs), self.dropout, self.training))

    def penalty(self) -> Tensor:
        """See `FeatureExtractor.penalty`."""
        return self.features.penalty()


class FeatureClassifier(FeatureTagger):
    """A linear layer on the mean of the frozen features of a text."""

    def forward(self, **inputs: Tensor | None) -> Tensor:
        """[batch, num_labels] logits; arguments as of `hidden_states`."""
        features = self.features(**inputs)
        present = present_tokens(features, **inputs).unsqueeze(-1)
        mean = features.masked_fill(~present, 0.0).sum(-2) / present.sum(-2).clamp_min(1)
        return self.scores(dropout(mean, self.dropout, self.training))


def present_tokens(features: Tensor, **inputs: Tensor | None) -> Tensor:
    """[batch, length] bool: where `hidden_states` of the same arguments belong to tokens or words."""
    if "cu_seqlens" in inputs:
        lengths = _given(inputs["cu_seqlens"]).diff() - 2
        return torch.arange(features.shape[-2], device=features.device) < lengths[:, None]
    if (mask := inputs.get("attention_mask")) is not None:
        return mask.bool()
    return torch.ones(features.shape[-3:-1], dtype=torch.bool, device=features.device)


COMBINATIONS: Mapping[Combination, Callable[[Tensor, FeatureSettings], Tensor]] = {
    "last": lambda states, _: states[-1],
    "layer": lambda states, settings: states[settings.layer or 0],
    "sum_last_four": lambda states, _: states[-4:].sum(0),
    "concat_last_four": lambda states, _: torch.cat(states[-4:].unbind(0), -1),
    "sum_all": lambda states, _: states[1:].sum(0),
}
"""[layers + 1, ..., width] to the features, for all combinations without parameters."""


@contextmanager
def recorded_layers(model: Any) -> Iterator[list[Tensor]]:
    """Collects in a forward pass within, with its gradients, what `hidden_states` gives: [layers + 1] tensors [batch,
    length, width]. The network is any but an ELMo."""
    stack = model.encoder if model.config.network == "encoder" else model.decoder
    transformer: Transformer = stack.transformer
    transformer.states = states = []
    try:
        yield states
    finally:
        transformer.states = None


def _given(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("cu_seqlens are needed: the boundaries of the sentences")
    return tensor
