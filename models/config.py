"""The shape of a network: one configuration for everything that is built on the Transformer core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from models.elmo.config import ElmoConfig
from models.fields import WHOLE, Rule, Settings, at_least, is_number, required_vocab_size

Network = Literal["encoder", "decoder", "encoder_decoder"]
Norm = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Positions = Literal["learned", "sinusoidal", "relative_bias", "rotary"]
Initializer = Literal["normal", "scaled_residual", "fan_in"]
ClassificationStyle = Literal["tanh", "gelu", "gelu_norm", "relu"]


@dataclass(frozen=True)
class TransformerConfig(Settings):
    """Everything that decides the tensors of a network and what they compute.

    The defaults are RoBERTa base (Liu et al. 2019, appendix B, table 9) without its vocabulary.
    """

    network: Network = "encoder"
    """`encoder` reads both ways (BERT), `decoder` from the left (GPT), `encoder_decoder` is both (BART, T5)."""
    vocab_size: int | None = None
    """Tokens in the vocabulary; None until the tokenizer is known."""
    num_layers: int = 12
    """Transformer layers; of the encoder where there are two stacks."""
    num_decoder_layers: int | None = None
    """Layers of the decoder of an encoder-decoder; None takes `num_layers`."""
    hidden_size: int = 768
    """Width of the hidden states; a multiple of `num_heads` unless `attention_head_size` is given."""
    num_heads: int = 12
    """Attention heads per layer."""
    num_key_value_heads: int | None = None
    """Heads of keys and values, each shared by equally many query heads: grouped-query attention (Ainslie et al. 2023;
    LLaMA 3); divides `num_heads`. None takes `num_heads`."""
    attention_head_size: int | None = None
    """Width of an attention head; None takes hidden_size / num_heads."""
    intermediate_size: int = 3072
    """Width inside the feed-forward blocks."""
    embedding_size: int | None = None
    """Width of the embeddings, projected to `hidden_size` where it differs (ELECTRA); None takes `hidden_size`."""
    max_positions: int = 512
    """Tokens in the longest sequence or packed document; the rows of a learned position embedding."""
    positions: Positions = "learned"
    """Encoding of positions: learned or sinusoidal embeddings, T5's relative bias, or rotary."""
    num_segments: int = 0
    """Segment embeddings (BERT: 2); 0 for none."""
    dropout: float = 0.1
    """Probability, in [0, 1), of dropping embeddings, sub-layer outputs and classifier inputs."""
    attention_dropout: float = 0.1
    """Probability, in [0, 1), of dropping attention weights."""
    activation_dropout: float = 0.0
    """Probability, in [0, 1), of dropping activations inside the feed-forward blocks (BART, T5)."""
    attention_output_dropout: float | None = None
    """Probability, in [0, 1), of dropping the output of attention, before the residual sum; None takes `dropout`
    (ModernBERT drops nothing else)."""
    output_dropout: float = 0.0
    """Probability, in [0, 1), of dropping the output of a stack, after its last normalisation (T5)."""
    norm: Norm = "post"
    """`post` normalises after each residual sum (BERT, RoBERTa), `pre` before each sub-layer."""
    norm_kind: NormKind = "layer"
    """LayerNorm (Ba et al. 2016), or RMSNorm (Zhang and Sennrich 2019; T5) without mean and bias."""
    norm_eps: float = 1e-5
    """Added to the variance in every normalisation; > 0."""
    embedding_norm: bool = True
    """Whether the sum of embeddings is normalised (not in GPT and T5)."""
    first_norm: bool = True
    """Whether, with pre-norm, the first layer normalises its input, the normalised embeddings (not in ModernBERT)."""
    biases: bool = True
    """Whether linear layers and norms have biases (not in T5 and ModernBERT)."""
    activation: Activation = "gelu"
    """Non-linearity of the feed-forward blocks: exact GELU, its tanh approximation, ReLU, or SiLU."""
    gated: bool = False
    """Gated feed-forward: activation(W x) * (V x) (Shazeer 2020; T5 v1.1, ModernBERT, LLaMA)."""
    scale_attention: bool = True
    """Divide attention scores by the square root of the head size; T5 folds this into its initialisation."""
    scale_embeddings: bool = False
    """Multiply token embeddings by the square root of their width (Vaswani et al. 2017, section 3.4; mBART)."""
    scale_logits: bool = False
    """Divide the decoder's output by the square root of its width before a tied projection (T5 v1.0)."""
    relative_buckets: int = 32
    """Buckets of relative positions (Raffel et al. 2020, section 2.1)."""
    relative_max_distance: int = 128
    """Least distance of the last bucket, which all farther positions share."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies (Su et al. 2021, section 3.2.2)."""
    local_rotary_base: float | None = None
    """Base of the rotary frequencies in layers with local attention; None takes `rotary_base`."""
    local_window: int | None = None
    """Tokens that a layer with local attention sees around a token, half on each side; None attends globally in
    all layers."""
    global_every: int = 3
    """Period of the layers with global attention, the first included, with `local_window` (ModernBERT: 3)."""
    initializer: Initializer = "normal"
    """`normal`: N(0, initializer_std) (BERT); `scaled_residual`: the same with the projections into the residual
    stream divided by sqrt(2 x layers) (GPT-2); `fan_in`: by the width of each layer's input (T5)."""
    initializer_std: float = 0.02
    """Standard deviation of the initial weights; > 0."""
    initializer_cut: float | None = None
    """Initial weights beyond so many deviations are drawn again, so that their deviation is below the configured one
    (BERT, ModernBERT: 2, which makes 0.0176 of 0.02); None draws normal weights."""
    position_std: float | None = None
    """Standard deviation of learned positions at the start (GPT-2: 0.01); None takes `initializer_std`."""
    tie_embeddings: bool = True
    """Whether the vocabulary projection uses the token embedding as its weight."""
    prediction_activation: Activation = "gelu"
    """Non-linearity of the head that predicts masked tokens; BERT takes the activation of its layers, all others
    exact GELU."""
    classification_head: ClassificationStyle = "tanh"
    """The layers between the first token and the scores of labels: a dense layer with tanh (RoBERTa, with dropout
    also on its input; with segments it is BERT's pooler, without that dropout), with GELU (ELECTRA), with GELU and
    normalisation (ModernBERT), or with ReLU (DistilBERT)."""

    def rules(self) -> Mapping[str, Rule]:
        return {"num_segments": at_least(0)}

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.attention_head_size or self.hidden_size // self.num_heads

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def attention_size(self) -> int:
        """Width of all query heads together."""
        return self.head_size * self.num_heads

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.head_size * self.key_value_heads

    @property
    def least_parameters(self) -> int:
        """A lower bound of the network's parameters: embeddings, and the matrices that every layer has."""
        layers = self.num_layers + (self.decoder_layers if self.network == "encoder_decoder" else 0)
        layer = 2 * self.hidden_size * (self.attention_size + self.intermediate_size)
        return (self.vocab_size or 0) * self.embedding_width + layers * layer

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def decoder_layers(self) -> int:
        """Layers of the decoder; of the only stack where there is one."""
        return self.num_decoder_layers or self.num_layers

    def require_vocab_size(self) -> int:
        """See `required_vocab_size`."""
        return required_vocab_size(self.vocab_size)

    def fit_problems(self) -> list[str]:
        problems = []
        if self.attention_head_size is None and self.hidden_size % self.num_heads:
            problems.append(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_heads ({self.num_heads}); "
                f"{self.hidden_size // self.num_heads * self.num_heads or self.num_heads} would do"
            )
        elif self.positions == "rotary" and self.head_size % 2:
            problems.append(f"rotary positions need an even head size, not {self.head_size}")
        if self.num_heads % self.key_value_heads:
            problems.append(
                f"num_key_value_heads ({self.num_key_value_heads}) must divide num_heads ({self.num_heads})"
            )
        if self.num_decoder_layers is not None and self.network != "encoder_decoder":
            problems.append(
                f"num_decoder_layers belongs to an encoder_decoder; this network is of kind {self.network}"
            )
        if self.embedding_width != self.hidden_size and self.network == "encoder_decoder":
            problems.append("embedding_size must equal hidden_size in an encoder_decoder; leave it out")
        if self.positions == "relative_bias" and self.relative_buckets % 4:
            problems.append(f"relative_buckets must be a multiple of 4, not {self.relative_buckets}")
        exact = self.relative_buckets // (4 if self.network == "encoder" else 2)
        if self.positions == "relative_bias" and self.relative_max_distance <= exact:
            problems.append(
                f"relative_max_distance ({self.relative_max_distance}) must be above {exact}: with "
                f"{self.relative_buckets} relative_buckets, all distances below have a bucket of their own"
            )
        if self.first_norm is False and self.norm == "post":
            problems.append("first_norm: false belongs to norm: pre; with norm: post leave it out")
        return problems


NetworkConfig: TypeAlias = TransformerConfig | ElmoConfig
"""The shape of any network."""


Combination = Literal["last", "layer", "sum_last_four", "concat_last_four", "sum_all", "scalar_mix"]


@dataclass(frozen=True)
class FeatureSettings(Settings):
    """Layers that become the features of a token (Devlin et al. 2019, table 7)."""

    combine: Combination = "last"
    """`last`, one `layer`, the sum or the concatenation of the last four, the sum of all, or a learned mixture of all,
    the embeddings included (Peters et al. 2018, equation 1)."""
    layer: int | None = None
    """Index of the layer, with `layer`; 0 are the embeddings, -1 is the last layer."""
    normalize: bool = False
    """Bring each layer of each token to mean 0 and variance 1 first, with `scalar_mix`."""
    l2: float = 0.0
    """Penalty on the scores of the layers, with `scalar_mix`; at least 0."""

    def rules(self) -> Mapping[str, Rule]:
        return {
            "layer": WHOLE,
            "l2": Rule(lambda value: is_number(value) and value >= 0, "a number of at least 0"),
        }

    def fit_problems(self) -> list[str]:
        problem = f"`layer` is for combine: layer, and needed there; combine is {self.combine}"
        return [problem] if (self.layer is None) == (self.combine == "layer") else []
