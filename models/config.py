"""The shape of a Transformer network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that decides the tensors of a network and what they compute.

    The defaults are RoBERTa base (Liu et al. 2019, appendix B, table 9) without its vocabulary.

    Raises:
        ValueError: a value is outside what its docstring allows; all such values are named at once.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    vocab_size: int | None = None
    """Tokens in the vocabulary; None until the tokenizer is known."""
    num_layers: int = 12
    """Transformer layers."""
    hidden_size: int = 768
    """Width of the hidden states; a multiple of `num_heads`."""
    num_heads: int = 12
    """Attention heads per layer."""
    intermediate_size: int = 3072
    """Width inside the feed-forward blocks."""
    max_positions: int = 512
    """Tokens in the longest sequence or packed document; the rows of the position embedding."""
    dropout: float = 0.1
    """Probability, in [0, 1), of dropping embeddings, sub-layer outputs and classifier inputs."""
    attention_dropout: float = 0.1
    """Probability, in [0, 1), of dropping attention weights."""
    norm: Norm = "post"
    """`post` normalises after each residual sum (BERT, RoBERTa), `pre` before each sub-layer."""
    norm_eps: float = 1e-5
    """Added to the variance in every LayerNorm; > 0."""
    activation: Activation = "gelu"
    """Non-linearity of the feed-forward blocks: exact GELU, its tanh approximation, or ReLU."""
    initializer_std: float = 0.02
    """Standard deviation of the initial weights; > 0."""
    tie_embeddings: bool = True
    """Whether the vocabulary projection uses the token embedding as its weight."""

    def __post_init__(self) -> None:
        problems = [
            *self._integer_problems(),
            *self._number_problems(),
            *self._choice_problems(),
        ]
        if not problems and self.hidden_size % self.num_heads:
            problems.append(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_heads ({self.num_heads}); "
                f"{self.hidden_size // self.num_heads * self.num_heads or self.num_heads} would do"
            )
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    def require_vocab_size(self) -> int:
        """The vocabulary size, for code that builds tensors from it.

        Raises:
            ValueError: it has not been set.
        """
        if self.vocab_size is None:
            raise ValueError(
                "vocab_size is not set, so the network cannot be built; take it from the tokenizer: "
                "dataclasses.replace(config, vocab_size=...)"
            )
        return self.vocab_size

    def _integer_problems(self) -> list[str]:
        sizes = {
            "num_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "max_positions": self.max_positions,
        }
        if self.vocab_size is not None:
            sizes["vocab_size"] = self.vocab_size
        return [
            f"{name} must be a whole number of at least 1, not {value!r}"
            for name, value in sizes.items()
            if not isinstance(value, int) or isinstance(value, bool) or value < 1
        ]

    def _number_problems(self) -> list[str]:
        problems = []
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                problems.append(f"{name} must be a probability in [0, 1), not {value!r}")
        for name in ("norm_eps", "initializer_std"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < float("inf"):
                problems.append(f"{name} must be a number above 0, not {value!r}")
        return problems

    def _choice_problems(self) -> list[str]:
        choices = {
            "norm": get_args(Norm),
            "activation": get_args(Activation),
            "tie_embeddings": (True, False),
        }
        return [
            f"{name} must be one of {', '.join(map(str, allowed))}, not {getattr(self, name)!r}"
            for name, allowed in choices.items()
            if getattr(self, name) not in allowed
        ]
