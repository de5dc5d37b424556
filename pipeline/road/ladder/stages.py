"""The stages of a ladder: each makes one artefact of cloze, by a command that can be typed.

A stage is finished when its artefact is committed with the ladder's settings, so that a ladder needs no memory of its
own: a killed one goes on where its artefacts end, and a killed training from its checkpoint.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.manifest import hash_file, read_manifest, write_durably
from cluster.artefacts.places import absolute
from cluster.artefacts.storage import is_committed, storage_errors
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.store import store_of
from pipeline.config.loading import to_yaml
from pipeline.config.shipped import find_beside
from pipeline.road.ladder.arms import Ladder
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.tune.scores import START

_CLOZE = (sys.executable, "-m", "pipeline.cli")


@dataclass(frozen=True)
class Preparation:
    """Token stores from source files."""

    ladder: Ladder
    file: Path
    """The data configuration, as the ladder names it."""

    needs, alone, tokens, flops = (), True, 0, 0.0

    @property
    def name(self) -> str:
        return f"data-{self.ladder.data[self.file].name}"

    def place(self) -> Path | None:
        tokens = self.ladder.data[self.file].out / "tokens"
        return tokens if is_committed(tokens) else None

    def command(self) -> list[str]:
        return [*_CLOZE, "data", "prepare", str(find_beside(self.ladder.path.parent, self.file))]


@dataclass(frozen=True)
class Pretraining:
    """A run, shared by the arms that differ in fine-tuning alone."""

    ladder: Ladder
    arm: str
    """One of the arms that read it."""
    seed: int

    alone = False

    @property
    def config(self) -> PretrainConfig:
        """The configuration of the run."""
        return self.ladder.run_of(self.arm, self.seed)

    @property
    def name(self) -> str:
        return f"pretrain-{self.config.name}"

    @property
    def data(self) -> list[Preparation]:
        """The stages that make its token stores."""
        stores = {absolute(store.path) for store in self.ladder.arms[self.arm].pretrain.data.stores}
        made = self.ladder.data.items()
        return [
            Preparation(self.ladder, file) for file, data in made if (data.out / "tokens").resolve() in stores
        ]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.data)

    @property
    def tokens(self) -> int:
        return self.config.tokens_before(self.config.num_steps)

    @property
    def flops(self) -> float:
        return self.tokens * self.ladder.flops_per_token(self.arm)

    def place(self) -> Path | None:
        from pipeline.pretrain.launch import find_same_run, is_finished

        run = find_same_run(self.config)
        return run.path if run is not None and is_finished(run) else None

    def command(self) -> list[str]:
        from pipeline.pretrain.launch import create_run, find_same_run

        run = find_same_run(self.config) or create_run(self.config)
        return [sys.executable, "-m", "pipeline.pretrain", str(run.path)]


@dataclass(frozen=True)
class Finetuning:
    """The scores of an arm on its tasks, with predictions."""

    ladder: Ladder
    arm: str
    seed: int

    alone, tokens, flops = False, 0, 0.0

    @property
    def name(self) -> str:
        return f"finetune-{self.arm}-seed{self.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        pretraining = self._pretraining
        return pretraining.needs if self.ladder.arms[self.arm].is_random else (pretraining.name,)

    def place(self) -> Path | None:
        config = self.ladder.finetuning_of(self.arm, self.seed)
        return next(
            (
                path
                for path in sorted((config.out / config.name).glob("*"))
                if is_committed(path) and self._is_wanted(path)
            ),
            None,
        )

    def command(self) -> list[str]:
        config = self.ladder.finetuning_of(self.arm, self.seed)
        file = self.ladder.work / "settings" / f"{self.name}.yaml"
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(file, to_yaml(config).encode())
        reference = "random"
        if not self.ladder.arms[self.arm].is_random:
            reference = f"{place_of(self._pretraining)}@latest"
        return [*_CLOZE, "finetune", str(file), "--from", reference, "--replace"]

    @property
    def _pretraining(self) -> Pretraining:
        return Pretraining(self.ladder, self.arm, self.seed)

    def _is_wanted(self, path: Path) -> bool:
        """Whether scores are of this arm's weights, tasks and settings."""
        config, manifest = self.ladder.finetuning_of(self.arm, self.seed), read_manifest(path)
        wanted = {
            name: task.identity() | {"training": config.training_of(name).model_dump(mode="json")}
            for name, task in config.tasks.items()
        }
        settings = manifest.config
        if settings.get("tasks") != wanted or settings.get("seeds") != [self.seed] or START in settings:
            return False
        started_from = {entry.fingerprint for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND}
        if config.scratch is not None:
            files = {entry.fingerprint for entry in manifest.inputs}
            tokenizer = config.scratch.tokenizer
            return (
                not started_from
                and isinstance(tokenizer, Path)
                and tokenizer.exists()
                and hash_file(tokenizer)[0] in files
            )
        run = place_of(self._pretraining)
        if run is None:
            return False
        store = store_of(RunDirectory(run))
        return started_from == {read_manifest(store.local(store.steps()[-1])).fingerprint}


Stage = Preparation | Pretraining | Finetuning
"""One artefact that a ladder needs. All have `name`, unique and safe in names of files; `needs`, names of stages that
must be finished before; `alone`, whether it takes the whole machine; `tokens` and model `flops` of its pre-training;
`place()`, the finished artefact or None; and `command()`, which prepares a process that makes or continues it."""


def place_of(stage: Stage) -> Path | None:
    """The finished artefact of a stage; None where it is not finished. A finished one is looked for once."""
    places = stage.ladder.places
    if stage.name not in places and (found := stage.place()) is not None:
        places[stage.name] = found
    return places.get(stage.name)


def stages_of(ladder: Ladder) -> dict[str, Stage]:
    """All stages by name, seed after seed, so that what is finished early is finished for all arms; data is prepared
    when the first stage needs it."""
    stages: list[Stage] = []
    for seed in ladder.config.seeds:
        for arm in ladder.arms.values():
            pretraining = Pretraining(ladder, arm.name, seed)
            stages += pretraining.data
            stages += [] if arm.is_random else [pretraining]
            stages.append(Finetuning(ladder, arm.name, seed))
    # Arms may share a run: its first one makes it.
    found: dict[str, Stage] = {}
    for stage in stages:
        found.setdefault(stage.name, stage)
    return found
