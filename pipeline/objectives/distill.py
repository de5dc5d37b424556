"""Distillation: a small encoder learns from a trained one (DistilBERT; Sanh et al. 2019).

The loss is a weighted sum of three terms (sections 2 and 3): the divergence from the teacher's soft targets, masked
language modelling, and the cosine of the hidden states. The network and its start from the teacher's layers are in
`models/distillation.py`. Only encoders are distilled: decoders have no masked tokens to predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.storage import contents_of
from pipeline.config.loading import Config
from pipeline.objectives.base import Batch, ModelReference, OutsideModels, Term, TrainedModel
from pipeline.objectives.mlm import EncoderObjective, MaskedLM
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

if TYPE_CHECKING:
    from models.config import TransformerConfig
    from models.distillation import DistilledLanguageModel
    from models.language_models import MaskedLanguageModel


class TermWeights(Config):
    """Weights of the three terms; the defaults are the released code's."""

    soft: float = Field(default=5.0, ge=0)
    """Weight of the divergence from the teacher's distribution."""
    mlm: float = Field(default=2.0, ge=0)
    """Weight of masked language modelling."""
    cosine: float = Field(default=1.0, ge=0)
    """Weight of 1 - cosine of student's and teacher's last hidden states; 0 allows another width than the teacher's."""


class Distillation(EncoderObjective):
    """The distillation objective."""

    kind: Literal["distill"] = "distill"
    teacher: ModelReference
    """The trained encoder: RUN, RUN@STEP, models:/NAME@ALIAS, a checkpoint directory, or a Hugging Face directory."""
    runs_dir: Path = Path("runs")
    """Directory of runs, to search the teacher in."""
    temperature: float = Field(default=2.0, gt=0)
    """Divides the scores of both networks before they are compared."""
    weights: TermWeights = TermWeights()
    """Weights of the terms."""
    start_from_teacher: bool = True
    """Whether the student begins with layers of the teacher, one out of two where it has half as many."""
    teacher_layers: tuple[int, ...] | None = None
    """The teacher's layer, from 0, that each of the student's begins with; null takes every nth. The released code has
    0, 2, 4, 7, 9, 11 for 6 of 12."""
    soft_targets: Literal["all", "predicted"] = "all"
    """At which tokens student and teacher are compared: all but padding, as in the released code, or only the predicted
    ones, which costs less."""
    masking: MaskedLM = MaskedLM()
    """Masking of the tokens; without pairs."""

    @model_validator(mode="after")
    def _plain_text(self) -> Distillation:
        if self.masking.pairs is not None:
            raise ValueError("masking.pairs must be null: nothing is predicted about pairs in distillation")
        return self

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Masked language modelling, and the positions where student and teacher are compared."""
        batch = self.masking.corrupt(packed, noise, vocabulary)
        if self.soft_targets == "all":
            soft_positions = np.flatnonzero(packed.input_ids != vocabulary["pad"])
        else:
            soft_positions = batch.inputs["predicted_positions"]
        compared = dict.fromkeys(
            ("soft", "cosine") if self.weights.cosine else ("soft",), len(soft_positions)
        )
        inputs = {**batch.inputs, "soft_positions": soft_positions}
        return Batch(inputs, {**batch.counts, **compared}, batch.sources)

    def terms(self) -> Mapping[str, Term]:
        """The terms with their weights. `mlm` decides: a student is compared with networks that had no teacher."""
        weights = self.weights
        cosine = {"cosine": Term(weights.cosine, has_accuracy=False)} if weights.cosine else {}
        return {
            "mlm": Term(weights.mlm, is_likelihood=True, decides=True),
            "soft": Term(weights.soft, has_accuracy=False),
            **cosine,
        }

    def build_model(self, config: TransformerConfig, outside: OutsideModels) -> DistilledLanguageModel:
        """The student, with the teacher at its side.

        Raises:
            MismatchError: the teacher is no encoder with a masked-LM head.
            ConfigError: the networks do not fit together.
        """
        from models.distillation import DistilledLanguageModel, every_nth_layer

        network = _load(self.teacher, outside["teacher"])
        try:
            layers = None
            if self.start_from_teacher:
                layers = self.teacher_layers or every_nth_layer(config.num_layers, network.config.num_layers)
            return DistilledLanguageModel(
                config,
                network,
                temperature=self.temperature,
                hidden_loss=self.weights.cosine > 0,
                teacher_layers=layers,
            )
        except ValueError as error:
            raise ConfigError(
                f"The student does not fit its teacher {self.teacher}: {error}.",
                next_step="correct the settings under `model`; objective.start_from_teacher=false allows other shapes,"
                " and objective.weights.cosine=0 another width",
            ) from None

    def check_fit(self, config: TransformerConfig, vocabulary: Vocabulary, outside: OutsideModels) -> None:
        """Make sure that the student fits its teacher, and that the teacher knows the same tokens.

        Raises:
            MismatchError: the teacher has other tokens; otherwise as `build_model`.
            ConfigError: as `build_model`.
        """
        import torch

        # Built first: that the teacher is of another kind says more than that its tokens differ.
        with torch.device("meta"):
            self.build_model(config, outside)
        file = outside["teacher"].tokenizer_path
        with contents_of(file):
            ours, others = _token_ids(vocabulary.tokenizer_json), _token_ids(file.read_text(encoding="utf-8"))
        # The teacher's distribution is over ids.
        for text in sorted(ours.keys() | others.keys()):
            if ours.get(text) != others.get(text):
                different = (
                    f"{text!r} is {ours.get(text, 'unknown')} here and {others.get(text, 'unknown')} there"
                )
                raise MismatchError(
                    f"The teacher {self.teacher} has other tokens than the data: {different}.",
                    next_step="prepare the data with the teacher's tokenizer, or choose a teacher trained on these"
                    " tokens",
                )


def _load(name: str, teacher: TrainedModel) -> MaskedLanguageModel:
    """The teacher's network with its weights, in host memory; `name` is its reference in messages."""
    import torch

    from models.config import TransformerConfig
    from models.language_models import MaskedLanguageModel
    from models.weights import check_tensors

    shape = teacher.model
    if not isinstance(shape, TransformerConfig) or shape.network != "encoder":
        raise MismatchError(
            f"The teacher {name} is a network of kind {shape.network}, but only encoders are distilled.",
            next_step="set objective.teacher to an encoder that was trained on masked tokens",
        )
    with torch.device("meta"):
        network = MaskedLanguageModel(shape)
    expected = network.state_dict()
    # Other heads, such as those for pairs and spans, teach nothing here.
    tensors = {
        key: tensor
        for key, tensor in teacher.state_dict().items()
        if key in expected or not key.startswith(("pair_head.", "boundary_head."))
    }
    try:
        check_tensors(expected, tensors, f"the teacher {name}")
    except ValueError as error:
        raise MismatchError(
            f"{error}.", next_step="set objective.teacher to an encoder with its masked-LM head"
        ) from None
    network.load_state_dict(tensors, assign=True)
    return network


def _token_ids(tokenizer_json: str) -> dict[str, int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(tokenizer_json).get_vocab(with_added_tokens=True)
