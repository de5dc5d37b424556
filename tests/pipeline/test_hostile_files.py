"""Files that were written to run code when they are read: nothing runs, and every verb answers with a typed error.

Manifests are made anew after each attack, as an attacker who can write to the directory would do it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from cluster.artefacts.errors import ClozeError, CorruptCheckpointError, StorageError, exit_codes
from cluster.artefacts.manifest import make_manifest, read_manifest, write_manifest
from cluster.artefacts.storage import hash_tree
from pipeline.checkpoint.checkpoint import (
    MODEL_CONFIG_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    TRAINER_FILE,
)
from pipeline.config.loading import to_yaml
from pipeline.run.directory import RunDirectory
from tests.pipeline.command import invoke
from tests.pipeline.ranks import make_run, train_alone
from tests.pipeline.tune.conftest import config_in, write_sst2
from tests.surroundings import largest_file

Attack = Callable[[Path, Path], object]
"""Changes a checkpoint, given the file that must never appear."""


class Called(tuple[Any, ...]):
    """A function and its arguments, which are the result of the call when they are unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self[0], self[1:]


def touching(marker: Path) -> Called:
    return Called((os.system, f"touch {marker}"))


def state_file(checkpoint: Path, name: str) -> Path:
    (file,) = checkpoint.glob(f"deepspeed/*{name}_states.pt")
    return file


def changed(name: str, change: Callable[[dict[str, Any], Path], object], **options: Any) -> Attack:
    """Writes other contents to a file of DeepSpeed's state, given those that it has."""

    def attack(checkpoint: Path, marker: Path) -> None:
        file = state_file(checkpoint, name)
        torch.save(change(torch.load(file, weights_only=False), marker), file, **options)

    return attack


def of_optimizer(name: str, value: Callable[[Path], Any]) -> Attack:
    """Writes another value to the optimizer's state."""

    def change(contents: dict[str, Any], marker: Path) -> dict[str, Any]:
        return contents | {"optimizer_state_dict": contents["optimizer_state_dict"] | {name: value(marker)}}

    return changed("optim", change)


def compressed(checkpoint: Path, marker: Path) -> None:
    file = state_file(checkpoint, "model")
    data = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            entry.CRC = None  # type: ignore[assignment]  checkpoints are saved without
            new.writestr(entry.filename, old.read(entry))
        new.writestr("archive/data/bomb", bytes(1 << 24))
    file.write_bytes(data.getvalue())


STATE_ATTACKS: dict[str, Attack] = {
    "planted in the optimizer": changed(
        "optim", lambda contents, marker: contents | {"more": touching(marker)}
    ),
    "planted as the loss scaler": of_optimizer(
        "loss_scaler", lambda marker: Called((eval, f"__import__('pathlib').Path('{marker}').touch()"))
    ),
    # Some versions of Python write members of enumerations as calls of getattr; this attribute is no member.
    "reached by getattr": of_optimizer(
        "zero_stage", lambda marker: Called((getattr, LossScaler, "__init__"))
    ),
    "old format": changed(
        "model", lambda _, marker: {"module": touching(marker)}, _use_new_zipfile_serialization=False
    ),
    "bare pickle": lambda checkpoint, marker: state_file(checkpoint, "model").write_bytes(
        pickle.dumps(touching(marker))
    ),
    "script": lambda checkpoint, marker: torch.jit.script(torch.nn.Linear(2, 2)).save(
        str(state_file(checkpoint, "model"))
    ),
    "compressed": compressed,
    "other structure": changed("optim", lambda *_: {"optimizer_state_dict": {"loss_scaler": 3}}),
    "no dictionary": changed("model", lambda *_: [1, 2, 3]),
    "too short": of_optimizer("single_partition_of_fp32_groups", lambda _: [torch.zeros(1)] * 2),
    "many ranks": changed("model", lambda contents, _: contents | {"dp_world_size": 10**15}),
}
"""On what only a resumption reads."""


def replaced(name: str, data: bytes | Callable[[Path], bytes]) -> Attack:
    """Writes other contents to a file of the checkpoint."""

    def attack(checkpoint: Path, marker: Path) -> None:
        (checkpoint / name).write_bytes(data(marker) if callable(data) else data)

    return attack


def planted(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"weights": touching(marker)}, stream)
    return stream.getvalue()


def header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


FILE_ATTACKS: dict[str, Attack] = {
    "weights are a pickle": replaced(MODEL_FILE, planted),
    "weights have an endless header": replaced(MODEL_FILE, (1 << 62).to_bytes(8, "little") + b"{"),
    "weights lie beyond the file": replaced(
        MODEL_FILE, header('{"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}}')
    ),
    "weights of other names": replaced(MODEL_FILE, header("{}")),
    "tokenizer is a pickle": replaced(TOKENIZER_FILE, planted),
    "tokenizer is a list": replaced(TOKENIZER_FILE, b"[]"),
    "tokenizer of endless nesting": replaced(TOKENIZER_FILE, b"[" * 200_000),
    "tokenizer with a huge id": replaced(
        TOKENIZER_FILE,
        json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 10**15}, "unk_token": "a"}}).encode(),
    ),
    "state is a pickle": replaced(TRAINER_FILE, planted),
    "state lacks the step": replaced(TRAINER_FILE, b'{"samples": 1}'),
    "network is a list": replaced(MODEL_CONFIG_FILE, b"[1]"),
    "network of no such kind": replaced(MODEL_CONFIG_FILE, b'{"network": "__import__"}'),
    "network of words": replaced(MODEL_CONFIG_FILE, b'{"network": "encoder", "hidden_size": "eval(1)"}'),
}


def reseal(directory: Path) -> None:
    """Make the manifest say what the files are now."""
    old, files = read_manifest(directory), hash_tree(directory)
    made = make_manifest(old.kind, config=old.config, inputs=old.inputs, files=files, stats=old.stats)
    write_manifest(directory, made)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, store: Path) -> RunDirectory:
    """A finished run, of whose checkpoints only one is left that is not the last: it can go on from there."""
    run = make_run(tmp_path_factory.mktemp("trained"), store, "trained")
    assert train_alone([run]) == ["ended"]
    for checkpoint in run.checkpoints.glob("step-*"):
        if checkpoint.name != "step-00000008":
            shutil.rmtree(checkpoint)
    return run


def attacked(trained: RunDirectory, place: Path, attack: Attack, marker: Path) -> RunDirectory:
    """A copy of the run whose checkpoint was attacked."""
    run = RunDirectory(place / trained.path.name)
    shutil.copytree(trained.path, run.path)
    (checkpoint,) = run.checkpoints.glob("step-*")
    attack(checkpoint, marker)
    reseal(checkpoint)
    return run


def write_tasks(directory: Path, runs_dir: Path) -> Path:
    """A configuration of fine-tuning that takes a second."""
    write_sst2(directory / "SST-2", 8, 4)
    path = directory / "tasks.yaml"
    path.write_text(to_yaml(config_in(directory, runs_dir=runs_dir, seeds=[1])))
    return path


def answer(*arguments: object) -> ClozeError | None:
    """What a verb answers: a typed error, or nothing where it did its work."""
    done = invoke(*arguments)
    if isinstance(done.exception, ClozeError):
        assert done.exception.exit_code in exit_codes()
        return done.exception
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return None


def test_resuming_runs_nothing_and_says_what_is_wrong_with_the_state(
    trained: RunDirectory, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    attacks = STATE_ATTACKS | FILE_ATTACKS
    runs = [attacked(trained, tmp_path / name, attack, marker) for name, attack in attacks.items()]
    endings = dict(zip(attacks, train_alone(runs), strict=True))
    # Weights and tokenizer of a checkpoint are for others; a resumption reads the state and the data's tokenizer.
    read = [*STATE_ATTACKS, *(name for name in FILE_ATTACKS if name.startswith("state"))]
    assert {name: endings[name] for name in read} == dict.fromkeys(read, "CorruptCheckpointError")
    assert not marker.exists()


def test_what_deepspeed_saves_names_only_the_allowed_classes_and_is_read_as_every_python_writes_it(
    trained: RunDirectory, tmp_path: Path
) -> None:
    (checkpoint,) = trained.checkpoints.glob("step-*")
    by_name = {"getattr"} if ZeroStageEnum.gradients.__reduce_ex__(2)[0] is getattr else set()
    allowed = {"LossScaler", "ZeroStageEnum", "fragment_address"} | by_name
    found = torch.serialization.get_unsafe_globals_in_checkpoint(state_file(checkpoint, "optim"))
    assert {name.rpartition(".")[2] for name in found} == allowed
    ways = {"by value": ZeroStageEnum.gradients, "by name": Called((getattr, ZeroStageEnum, "gradients"))}
    again = [
        attacked(trained, tmp_path / way, of_optimizer("zero_stage", lambda marker, one=one: one), tmp_path)
        for way, one in ways.items()
    ]
    assert train_alone(again) == ["ended", "ended"]


def test_a_file_that_the_manifest_does_not_list_is_never_read(trained: RunDirectory, tmp_path: Path) -> None:
    run = attacked(trained, tmp_path, lambda checkpoint, marker: None, tmp_path)
    (checkpoint,) = run.checkpoints.glob("step-*")
    torch.save(
        {"module": touching(tmp_path / "marker")}, checkpoint / "deepspeed" / "a_mp_rank_00_model_states.pt"
    )
    found = answer("checkpoints", run.path, "--verify")
    assert isinstance(found, CorruptCheckpointError)
    assert "a_mp_rank_00_model_states.pt" in str(found)
    assert train_alone([run]) == ["CorruptCheckpointError"]
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", FILE_ATTACKS)
def test_every_verb_answers_with_a_typed_error_and_runs_nothing(
    trained: RunDirectory, tmp_path: Path, name: str
) -> None:
    marker, what = tmp_path / "marker", name.partition(" ")[0]
    run = attacked(trained, tmp_path, FILE_ATTACKS[name], marker)
    (checkpoint,) = run.checkpoints.glob("step-*")
    found = {
        "export": answer("export", checkpoint, tmp_path / "export", "--runs-dir", trained.path.parent),
        "finetune": answer("finetune", write_tasks(tmp_path, trained.path.parent), "--from", run.path),
        "lineage": answer("lineage", checkpoint),
        "checkpoints": answer("checkpoints", run.path, "--verify"),
        "data verify": answer("data", "verify", checkpoint),
        "resume": answer("resume", run.path, "--dry-run"),
    }
    assert what not in ("weights", "network") or (found["export"] and found["finetune"])
    assert what != "state" or (found["export"] and found["resume"])
    if what == "tokenizer":
        assert answer("tokenizer", "encode", checkpoint / TOKENIZER_FILE, "words")
    assert not marker.exists()


def halved(name: str) -> Attack:
    """Leaves the beginning of a file."""
    return lambda directory, _: os.truncate(directory / name, 300)


def index_outside(directory: Path, marker: Path) -> None:
    weights = {"a": "../../model.safetensors", "b": "/etc/passwd"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    (directory / "model.safetensors").unlink()


def own_code(directory: Path, marker: Path) -> None:
    config = json.loads((directory / "config.json").read_bytes())
    names = dict.fromkeys(("AutoConfig", "AutoModelForMaskedLM", "AutoTokenizer"), "modeling.Model")
    (directory / "config.json").write_text(json.dumps(config | {"auto_map": names}))
    (directory / "modeling.py").write_text(f"import os\nos.system('touch {marker}')\n")


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
FOREIGN_ATTACKS: dict[str, Attack] = {
    **{f"half of {name}": halved(name) for name in (WEIGHTS, CONFIG, TOKENIZER)},
    **{
        f"no {name}": lambda directory, _, name=name: (directory / name).unlink()
        for name in (WEIGHTS, CONFIG, TOKENIZER)
    },
    "weights that are NaN": lambda directory, _: (directory / WEIGHTS).write_bytes(
        (directory / WEIGHTS).read_bytes()[:-4] + np.float32(np.nan).tobytes()
    ),
    "tokenizer without a model": replaced(TOKENIZER, b"{}"),
    "tokenizer with nothing to pad with": replaced(
        TOKENIZER, b'{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    ),
    "weights are a pickle": replaced("model.safetensors", planted),
    "weights only as a pickle": lambda directory, marker: (
        (directory / "model.safetensors").rename(directory / "pytorch_model.bin").write_bytes(planted(marker))
    ),
    "shards by an index that leads outside": index_outside,
    "code of its own": own_code,
    "configuration of other types": replaced(
        "config.json", b'{"model_type": "roberta", "architectures": {"a": 1}, "id2label": 3}'
    ),
    "tokenizer is a pickle": replaced("tokenizer.json", planted),
    "tokenizer with ids of words": replaced("tokenizer.json", b'{"model": {"vocab": {"a": "1000000"}}}'),
    "tokenizer with a broken pattern": replaced(
        "tokenizer.json",
        b'{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+("}, "behavior": "Isolated", "invert": false},'
        b' "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}',
    ),
}


@pytest.fixture(scope="module")
def exported(trained: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported") / "model"
    assert answer("export", trained.path, directory) is None
    return directory


@pytest.mark.parametrize(
    ("option", "value"),
    [("--trial", "sst2-pretrained-1"), ("--part", "generator"), ("--family", "XLNet"), ("--family", "T5")],
)
def test_what_a_model_does_not_have_is_not_exported(
    exported: Path, tmp_path: Path, option: str, value: str
) -> None:
    assert answer("export", exported, tmp_path / "out", option, value)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_finds_no_space_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    for size_bytes in (100, 4000):
        with largest_file(size_bytes):
            assert isinstance(answer("export", exported, tmp_path / "out"), StorageError)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FOREIGN_ATTACKS)
def test_a_foreign_directory_runs_nothing_and_damage_leaves_no_export(
    trained: RunDirectory, exported: Path, tmp_path: Path, name: str
) -> None:
    marker, directory = tmp_path / "marker", tmp_path / "model"
    shutil.copytree(exported, directory)
    (directory / "manifest.json").unlink()
    FOREIGN_ATTACKS[name](directory, marker)
    tasks = write_tasks(tmp_path, trained.path.parent)
    before = {*tmp_path.iterdir()}
    refusal = answer("export", directory, tmp_path / "again")
    assert refusal or name in (
        "code of its own",
        "tokenizer with ids of words",
        "tokenizer with a broken pattern",
    )
    assert not refusal or {*tmp_path.iterdir()} == before
    assert not name.startswith(("half of ", "no ")) or name.split()[-1] in str(refusal)
    assert answer("finetune", tasks, "--from", directory, "--dry-run") or refusal or name == "code of its own"
    answer("tokenizer", "encode", directory, "words")
    assert not marker.exists()


def test_a_store_runs_nothing(trained: RunDirectory, store: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, data in {
        "tokenizer.json": planted(marker),
        "data-00000-of-00002.arrow": planted(marker),
        "state.json": b'{"_data_files": [{"filename": "../../../etc/passwd"}]}',
    }.items():
        copy = tmp_path / f"store-{name}"
        shutil.copytree(store, copy)
        (copy / name).write_bytes(data)
        reseal(copy)
        found = [
            answer("data", "inspect", copy),
            answer("data", "inspect", copy, "--document", 0),
            answer("data", "verify", copy),
            answer("data", "stats", copy),
            answer("lineage", copy),
            answer("resume", trained.path, f"data.stores=[{{path: {copy}}}]", "--dry-run"),
        ]
        assert any(found[:2]) or name == "state.json"
    assert not marker.exists()
