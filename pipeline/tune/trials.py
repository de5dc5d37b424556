"""The trials that a configuration and a checkpoint ask for, their data and identity, and whether all fits together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import InputEntry, hash_file, hash_json
from cluster.copies import place_of_file
from data_prep.tokenizers.pretrained import find_tokenizer
from models.config import NetworkConfig, TransformerConfig
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.samples.noise import Noise
from pipeline.tasks.task import TaskData
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.scores import KIND, START, TEACHER, Initial, Trial

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel
    from pipeline.tune.distillation import Teacher

_VERSION = 2
"""Version of the training that the same settings and inputs give. 2: pairs are cut, and poolers drop out, as in
`transformers`; unknown tokens are left out of written texts."""
PUBLISHED: Mapping[str, str] = MappingProxyType(
    {
        "encoder": "an encoder (BERT, RoBERTa, SpanBERT, ELECTRA)",
        "decoder": "a decoder (GPT)",
        "encoder_decoder": "an encoder-decoder (BART, mBART, T5)",
        "elmo": "ELMo",
    }
)
"""Kinds of network with published systems as examples, for messages."""
FEATURE_FORMS = ("classification", "tags")
"""Forms of task that can be trained on frozen features."""
DISTILLED_FORMS = ("classification", "tags", "spans")
"""Forms of task whose networks learn from a teacher."""


@dataclass(frozen=True)
class Trials:
    """All trials of a run, with everything that is known before the first one starts."""

    config: FinetuneConfig
    pretrained: PretrainedModel | None
    model: NetworkConfig
    """The network, with its vocabulary size."""
    tokenizer: TextTokenizer
    tasks: Mapping[str, TaskData[Any]]
    all: tuple[Trial, ...]
    """In the order of tasks, initial weights, searched settings and seeds."""
    inputs: tuple[InputEntry, ...]
    """Inputs of the artefact: checkpoint, tokenizer, the files or stores of the tasks, then teachers."""
    teachers: Mapping[str, Teacher]
    """Teachers by the names of the tasks that learn from one."""

    @property
    def reference(self) -> str | None:
        """The checkpoint's reference; None without one."""
        return self.pretrained.reference if self.pretrained else None

    @property
    def directory(self) -> Path:
        """The directory of the committed scores."""
        return scores_directory(self.config, self.pretrained)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that determine the scores besides the inputs."""
        config = self.config
        searched = [choice for choice in config.search.choices if choice]
        return {
            "tasks": {name: self._task_settings(name) for name in config.tasks},
            **({"search": searched} if searched else {}),
            **({START: self.reference} if self.pretrained and self.pretrained.origin else {}),
            "seeds": list(config.seeds),
            "initial": _initials(config, self.pretrained),
            "model": dataclasses.asdict(self.model),
            "precision": config.precision,
            "save_models": config.save_models,
            "version": _VERSION,
        }

    @property
    def key(self) -> str:
        """Hash of inputs and settings, known before the artefact is made."""
        return hash_json([KIND, self.settings, [[entry.kind, entry.fingerprint] for entry in self.inputs]])

    def identity(self, trial: Trial) -> str:
        """Hash of everything that determines one training, so that a run with other tasks or seeds can adopt it."""
        is_pretrained = trial.initial == "pretrained"
        return hash_json(
            {
                "task": self._task_settings(trial.task, dict(trial.choice)),
                "inputs": [entry.fingerprint for entry in self.tasks[trial.task].inputs],
                "initial": self.pretrained.fingerprint if self.pretrained and is_pretrained else None,
                "tokenizer": next(
                    e.fingerprint for e in self.inputs if e.kind not in (CHECKPOINT_KIND, KIND)
                ),
                "model": dataclasses.asdict(self.model),
                "seed": trial.seed,
                "precision": self.config.precision,
                "save_models": self.config.save_models,
                "version": _VERSION,
            }
        )

    def _task_settings(
        self, name: str, choice: Mapping[str, float | int] = MappingProxyType({})
    ) -> dict[str, Any]:
        training = self.config.training_of(name, choice).model_dump(mode="json")
        if name in self.teachers:
            # The same teacher may lie elsewhere.
            fingerprint = self.teachers[name].pretrained.fingerprint
            training["distill"] = training["distill"] | {TEACHER: fingerprint}
        return self.config.tasks[name].identity() | {"training": training}


def scores_directory(config: FinetuneConfig, pretrained: PretrainedModel | None) -> Path:
    """The directory of the scores of a configuration and a checkpoint, `OUT/NAME/CHECKPOINT`."""
    if pretrained is None:
        place = "random"
    elif pretrained.step is not None:
        place = pretrained.reference.replace("/", "_")
    else:
        # Two directories may have the same last name.
        place = f"{pretrained.name}-{pretrained.fingerprint[:8]}"
    return config.out / config.name / place


def plan_trials(config: FinetuneConfig, pretrained: PretrainedModel | None) -> Trials:
    """Read the tasks and check that everything fits, before anything is trained.

    Raises:
        MissingInputError, ConfigError: a task cannot be read, or there is neither a checkpoint nor `scratch`; or what
            `training.peft` trains over a checkpoint would have to be kept of trainings from random weights.
        MismatchError: tasks, tokenizer, network, lengths or teachers do not fit together.
        ReferenceNotFoundError, CorruptArtefactError: a teacher cannot be read.
    """
    if pretrained:
        model, tokenizer_path = pretrained.model, pretrained.tokenizer_path
    elif config.scratch:
        model, place = config.scratch.model, config.scratch.tokenizer
        tokenizer_path = find_tokenizer(place).files[0]
    else:
        raise ConfigError(
            "There is no checkpoint to start from, and the configuration has no `scratch` network.",
            next_step="add --from RUN, or set scratch.model and scratch.tokenizer",
        )
    tokenizer = TextTokenizer(tokenizer_path)
    model = dataclasses.replace(model, vocab_size=model.vocab_size or tokenizer.vocab_size)
    _check_fit(config, model, tokenizer, pretrained)
    tasks = {name: task.load() for name, task in config.tasks.items()}
    teachers: dict[str, Teacher] = {}
    for name, task in tasks.items():
        if (distill := config.training_of(name).distill) is not None:
            # Needs torch, which other plans do without.
            from pipeline.tune.distillation import resolve_teacher

            teachers[name] = resolve_teacher(name, distill.teacher, config.runs_dir, task.labels)
    entry = InputEntry(
        kind="source-file", uri=place_of_file(tokenizer_path), fingerprint=hash_file(tokenizer_path)[0]
    )
    inputs = [entry, *(entry for task in tasks.values() for entry in task.inputs)]
    inputs += [teacher.pretrained.input for teacher in teachers.values()]
    if pretrained:
        inputs.insert(0, pretrained.input)
    unique = {(entry.kind, entry.fingerprint): entry for entry in reversed(inputs)}
    return Trials(
        config=config,
        pretrained=pretrained,
        model=model,
        tokenizer=tokenizer,
        tasks=tasks,
        all=tuple(
            Trial(task, initial, seed, tuple(choice.items()))
            for task in config.tasks
            for initial in _initials(config, pretrained)
            for choice in config.search.choices
            for seed in config.seeds
        ),
        inputs=tuple(reversed(unique.values())),
        teachers=teachers,
    )


def _check_fit(
    config: FinetuneConfig,
    network: NetworkConfig,
    tokenizer: TextTokenizer,
    pretrained: PretrainedModel | None,
) -> None:
    """Check that every task can be trained with this network, tokenizer and checkpoint."""
    check_network(config, network)
    if isinstance(network, TransformerConfig) and tokenizer.vocab_size > network.require_vocab_size():
        raise MismatchError(
            f"The tokenizer {tokenizer.path} has {tokenizer.vocab_size} tokens, but the network embeds only"
            f" {network.vocab_size}.",
            next_step="start from the tokenizer that the network was trained with",
        )
    for name, task in config.tasks.items():
        task.check_lengths(name, config.training_of(name).max_length, network, tokenizer)
    methods = [name for name in config.tasks if config.training_of(name).peft is not None]
    if config.save_models and methods and "random" in _initials(config, pretrained):
        raise ConfigError(
            f"save_models keeps what training.peft trains over a checkpoint, and {methods[0]} is also trained from"
            " random weights.",
            next_step="set save_models=false or compare_random=false",
        )


def check_network(config: FinetuneConfig, network: NetworkConfig) -> None:
    """Check that every task can be trained with this kind of network.

    Raises:
        MismatchError: a task needs another kind.
    """
    if config.zero is not None and config.zero.stage == 3 and network.network == "elmo":
        raise MismatchError(
            "zero.stage 3 does not work with ELMo, whose layers are not called one by one.",
            next_step="set zero.stage=2",
        )
    for name, task in config.tasks.items():
        if network.network not in task.carriers:
            able = " or ".join(PUBLISHED[kind] for kind in task.carriers)
            raise MismatchError(
                f"The task {name} ({task.kind}) needs {able}, but the network is {PUBLISHED[network.network]}.",
                next_step=f"start from a checkpoint of {able}, or leave the task out",
            )
        if config.training_of(name).features is not None and task.form not in FEATURE_FORMS:
            raise MismatchError(
                f"The task {name} ({task.kind}) cannot be trained on frozen features: that is for labels and tags.",
                next_step="leave training.features out",
            )
        if config.training_of(name).distill is not None and task.form not in DISTILLED_FORMS:
            raise MismatchError(
                f"The task {name} ({task.kind}) cannot have a teacher: only labels, numbers, tags and spans can.",
                next_step="leave training.distill out",
            )


def num_trainings(config: FinetuneConfig) -> int:
    """Trainings that a configuration asks for, from a checkpoint."""
    starts = 2 if config.compare_random else 1
    return len(config.tasks) * starts * len(config.search.choices) * len(config.seeds)


def _initials(config: FinetuneConfig, pretrained: PretrainedModel | None) -> list[Initial]:
    if pretrained is None:
        return ["random"]
    return ["pretrained", "random"] if config.compare_random else ["pretrained"]


def example_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """int64 [num_examples]: the indices of the examples of an epoch, shuffled."""
    return Noise.of("finetune-order", seed, epoch).permutation(num_examples)


def sample_examples(num_examples: int, limit: int | None) -> np.ndarray:
    """int64: the indices of the used examples, ascending: all, or a fixed random sample of `limit`."""
    if limit is None or limit >= num_examples:
        return np.arange(num_examples)
    return np.sort(Noise.of("finetune-sample").permutation(num_examples)[:limit])
