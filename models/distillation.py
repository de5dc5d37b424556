"""A small encoder learns from a large one (DistilBERT; Sanh et al. 2019, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.config import TransformerConfig
from models.heads import MaskedLanguageModelHead
from models.language_models import MaskedLanguageModel
from models.losses import CHUNK_ELEMENTS, EACH
from models.stacks import Encoder

_LAYERS = "encoder.transformer.layers."


class DistilledLanguageModel(nn.Module):
    """A masked language model that also imitates a teacher.

    It has the parameters and the state dict of a `MaskedLanguageModel`. The teacher is in neither; it follows the
    student's device and precision, and it is always in evaluation mode.

    Raises:
        ValueError: `vocab_size` is not set, or the networks do not fit together; says why.
    """

    def __init__(
        self,
        config: TransformerConfig,
        teacher: MaskedLanguageModel,
        *,
        temperature: float = 2.0,
        hidden_loss: bool = True,
        teacher_layers: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            config: of the student.
            temperature: divides the scores of both before they are compared (Sanh et al. 2019, section 2).
            hidden_loss: whether the directions of the hidden states are compared.
            teacher_layers: the teacher's layer that each of the student's starts from. `init_weights` then takes all
                weights from the teacher; None leaves them random.
        """
        super().__init__()
        _require_fit(config, teacher.config, hidden_loss, teacher_layers)
        self.config = config
        self.encoder = Encoder(config)
        self.head = MaskedLanguageModelHead(config)
        self.temperature = temperature
        self.hidden_loss = hidden_loss
        # In a tuple, the module is hidden from `parameters` and `state_dict`.
        self._teacher = (teacher.eval().requires_grad_(False),)
        self._teacher_layers = None if teacher_layers is None else tuple(teacher_layers)

    @property
    def teacher(self) -> MaskedLanguageModel:
        """The network that is imitated."""
        return self._teacher[0]

    def starting_weights(self) -> dict[str, Tensor]:
        """For `init_weights`, by name: all parameters from the teacher, or none if the student starts at random."""
        if self._teacher_layers is None:
            return {}
        weights, found = self.teacher.state_dict(), {}
        for name, _ in self.named_parameters():
            source = name
            if name.startswith(_LAYERS):
                number, _, rest = name.removeprefix(_LAYERS).partition(".")
                source = f"{_LAYERS}{self._teacher_layers[int(number)]}.{rest}"
            found[name] = weights[source]
        return found

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        soft_positions: Tensor,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All losses: `mlm` is the cross-entropy over the predicted positions, `soft` the divergence from the teacher's
        probabilities and `cosine` 1 - cosine similarity of the last hidden states, both over the soft positions.

        Arguments beside these and the result are as in `MaskedLanguageModel.forward`; only `mlm` has right predictions.

        Args:
            soft_positions: [num_soft] int64 ascending indices of the tokens where student and teacher are
                compared; the predicted ones are among them.
        """
        own, theirs = self.head.dense.weight, self.teacher.head.dense.weight
        if (own.device, own.dtype) != (theirs.device, theirs.dtype) and not own.is_meta:
            _move(self.teacher, own)
        packed = {"cu_seqlens": cu_seqlens, "segment_ids": segment_ids, "read": soft_positions}
        compared = self.encoder(input_ids, **packed)
        self.teacher.encoder.transformer.varlen = self.encoder.transformer.varlen
        with torch.no_grad():
            wanted = self.teacher.encoder(input_ids, **packed)
        predicted = compared.index_select(0, torch.searchsorted(soft_positions, predicted_positions))
        losses = {}
        found = self.head.loss(predicted, self.encoder.embeddings.token_weight, targets)
        losses["mlm"] = found.total
        losses["soft"] = self.divergence(compared, wanted)
        if self.hidden_loss:
            similarity = F.cosine_similarity(compared.float(), wanted.float(), dim=-1)
            losses["cosine"] = (1 - similarity).sum()
        return losses, {"mlm": found.correct, EACH: found.each}

    def divergence(
        self, hidden: Tensor, teacher_hidden: Tensor, *, chunk_elements: int = CHUNK_ELEMENTS
    ) -> Tensor:
        """KL(teacher || student) of softmax(logits / T), times T^2 so that gradients keep their size (Hinton et al.
        2015, section 2), summed over tokens, in nats.

        Chunks are computed again in the backward pass: logits of all tokens never exist at once.

        Args:
            hidden, teacher_hidden: [tokens, hidden] of each.
            chunk_elements: logits of one of them that exist at a time.
        """

        def of_chunk(part: Tensor, teacher_part: Tensor) -> Tensor:
            teacher = self.teacher
            with torch.no_grad():
                soft = teacher.head(teacher_part, teacher.encoder.embeddings.token_weight).float()
            scores = self.head(part, self.encoder.embeddings.token_weight).float()
            return divergence(scores, soft, self.temperature, "sum")

        rows = max(1, chunk_elements // self.config.require_vocab_size())
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for part, teacher_part in zip(hidden.split(rows), teacher_hidden.split(rows), strict=True):
            chunk = checkpoint(of_chunk, part, teacher_part, use_reentrant=False)
            total = total + chunk  # pyright: ignore[reportOperatorIssue]
        return total


@torch.compiler.disable()
def _move(network: MaskedLanguageModel, like: Tensor) -> None:
    network.to(device=like.device, dtype=like.dtype)


def divergence(logits: Tensor, teacher_logits: Tensor, temperature: float, reduction: str = "none") -> Tensor:
    """KL(teacher || student) of softmax(logits / T), times T^2 so that gradients keep their size (Hinton et al. 2015,
    section 2), in nats.

    Args:
        logits, teacher_logits: [..., classes] float32.
        reduction: `none` for the summands [..., classes], whose sums over classes are the divergences, or `sum`.
    """
    scores, soft = ((given / temperature).log_softmax(-1) for given in (logits, teacher_logits))
    return F.kl_div(scores, soft, reduction=reduction, log_target=True) * temperature**2


def hidden_distance(states: Sequence[Tensor], teacher_states: Sequence[Tensor], present: Tensor) -> Tensor:
    """1 - cosine similarity of hidden states (Sanh et al. 2019, section 3, "Training loss"), averaged over tokens and
    over layers: embeddings with embeddings, last with last, and evenly spaced layers of the teacher between them.

    Args:
        states, teacher_states: [layers + 1] tensors [batch, length, width], the embeddings first.
        present: [batch, length] bool, true at tokens.
    """
    steps, teacher_steps = len(states) - 1, len(teacher_states) - 1
    distances = [
        1
        - F.cosine_similarity(state.float(), teacher_states[number * teacher_steps // steps].float(), dim=-1)
        for number, state in enumerate(states)
    ]
    return torch.stack(distances)[:, present].mean()


def every_nth_layer(num_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """The teacher's layers that a student starts from: one out of two where it has half as many (Sanh et al. 2019,
    section 3, "Student initialization"), from the first one on.

    Raises:
        ValueError: the student has more layers than the teacher.
    """
    if num_layers > teacher_layers:
        raise ValueError(
            f"a student of {num_layers} layers cannot start from a teacher of {teacher_layers}; give it "
            f"{teacher_layers} layers or less"
        )
    return tuple(number * teacher_layers // num_layers for number in range(num_layers))


def _require_fit(
    config: TransformerConfig,
    teacher: TransformerConfig,
    hidden_loss: bool,
    teacher_layers: Sequence[int] | None,
) -> None:
    problems = []
    if config.vocab_size != teacher.vocab_size:
        problems.append(
            f"the student's vocabulary has {config.vocab_size} ids, the teacher's {teacher.vocab_size}; use the "
            f"teacher's tokenizer, and vocab_size {teacher.vocab_size}"
        )
    if hidden_loss and config.hidden_size != teacher.hidden_size:
        problems.append(
            f"hidden states of width {config.hidden_size} and {teacher.hidden_size} have no cosine; take hidden_size "
            f"{teacher.hidden_size}, or no loss of hidden states"
        )
    if teacher.positions == "learned" and config.max_positions > teacher.max_positions:
        problems.append(
            f"the teacher reads {teacher.max_positions} positions, the student {config.max_positions}; lower "
            "max_positions"
        )
    if teacher_layers is not None:
        problems += _start_problems(config, teacher, teacher_layers)
    if problems:
        raise ValueError("; ".join(problems))


def _start_problems(
    config: TransformerConfig, teacher: TransformerConfig, teacher_layers: Sequence[int]
) -> list[str]:
    """Why a student cannot start from the layers of a teacher.

    It may do without the teacher's token types, as DistilBERT does (Sanh et al. 2019, section 3).
    """
    problems = []
    names = (
        *("hidden_size", "attention_size", "num_heads", "intermediate_size", "embedding_width"),
        *("max_positions", "positions", "norm", "norm_kind", "biases", "gated"),
        *("embedding_norm", "first_norm", "tie_embeddings"),
    )
    different = [
        f"{name} {getattr(config, name)} instead of {getattr(teacher, name)}"
        for name in names
        if getattr(config, name) != getattr(teacher, name)
    ]
    if config.num_segments not in (0, teacher.num_segments):
        different.append(f"num_segments {config.num_segments} instead of 0 or {teacher.num_segments}")
    if different:
        problems.append(f"a student that starts from its teacher has its shape, not {', '.join(different)}")
    if len(teacher_layers) != config.num_layers:
        problems.append(
            f"{len(teacher_layers)} layers of the teacher are named for the student's {config.num_layers}"
        )
    if wrong := [number for number in teacher_layers if not 0 <= number < teacher.num_layers]:
        problems.append(f"the teacher's layers are 0 to {teacher.num_layers - 1}, not {wrong}")
    return problems
