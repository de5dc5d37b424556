"""Faults of a preparation of data: `cloze data prepare` on a Ray cluster, and the fingerprint of its tokens."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from cluster.artefacts.manifest import read_manifest
from cluster.artefacts.shard_records import summarize_log
from cluster.artefacts.storage import open_artefact
from tests.chaos.campaigns.storage import filled, flip, remount, small_disk
from tests.chaos.injected import Injected
from tests.chaos.scene import AGAIN, Reference, Row
from tests.data_prep.conftest import small_config, write_corpus
from tests.pipeline.process_group import PATIENCE_S

PREPARATION = "preparation"
STAGES = ("documents", "tokens")
_HOOKS = Path(__file__).parents[1] / "hooks"
_SLOW = Injected("os.rename", r"/disk/", times=10**9, sleep_s=0.3, rank=-1)


@contextmanager
def cluster_and_disk(directory: Path) -> Iterator[Any]:
    """A small disk for what is prepared, and a Ray cluster of two processors that prepares it."""
    from ray.cluster_utils import Cluster

    with small_disk(directory):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            yield cluster
        finally:
            cluster.shutdown()


class Preparation:
    """A small corpus that is prepared again and again, and suffers a fault each time."""

    def __init__(self, directory: Path, store: Path, seed: int, reference: Reference, around: Any) -> None:
        """As `Scene`; `around` is the Ray cluster. Prepares once without faults."""
        self.directory, self.cluster, self.rows = directory, around, list[Row]()
        self.random = random.Random(seed)
        self.corpus = write_corpus(directory / "corpus")
        self.out = directory / "disk" / "undisturbed"
        self.log = directory / "prepare.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.struck_s = 0.0
        self._known = 0
        """Shards that were made twice before this fault."""
        self.start()
        assert self.wait() == 0, self.said()
        self.fingerprint = read_manifest(self.out / "tokens").fingerprint

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def begin(self, name: str) -> None:
        """Start a preparation in another directory."""
        self.clear(name)
        self.start()

    def clear(self, name: str) -> None:
        """Remove what was prepared, and choose another directory."""
        shutil.rmtree(self.out)
        self.out = self.directory / "disk" / name
        self._known = 0

    def start(self, environment: dict[str, str] | None = None) -> None:
        """`cloze data prepare`, on the shared cluster; on one of its own with an environment."""
        settings = small_config(self.corpus, self.out).model_dump(mode="json", exclude_unset=True)
        path = self.directory / "preparation.yaml"
        path.write_text(yaml.safe_dump(settings))
        command = [str(Path(sys.executable).with_name("cloze")), "data", "prepare", str(path)]
        if environment is None:
            command += ["--address", self.cluster.address]
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                command, env=os.environ | (environment or {}), stdout=stream, stderr=stream
            )

    def wait(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def until_shards(self, stage: str, count: int) -> None:
        """Wait until a stage has finished that many of its shards, and not all."""
        deadline = time.monotonic() + PATIENCE_S
        pattern = f".{stage}.*.partial/shard-records/*.json"
        while len(list(self.out.glob(pattern))) < count:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{count} shards of {stage}: {self.said()[-1500:]}")
            time.sleep(0.001)

    def some_shards(self, stage: str, most: int = 2) -> None:
        """Wait until a stage has finished a drawn number of its shards."""
        self.until_shards(stage, self.random.randint(1, most))

    def strike(self, name: str, fault: str) -> Row:
        """Note that a fault happens now."""
        self.struck_s = time.monotonic()
        row = Row(name, fault, of=PREPARATION)
        self.rows.append(row)
        return row

    def until_ended(self, row: Row) -> None:
        """Wait for the end of the command, whose exit code goes into the row."""
        row.ended(self.wait(), self.said())

    def kill(self, row: Row) -> None:
        assert self.process is not None
        self.process.kill()
        self.until_ended(row)

    def again(self, row: Row) -> None:
        """The same command again, by a person or a scheduler, and how it ends."""
        row.operator = AGAIN
        self.start()
        self.check(row)

    def check(self, row: Row) -> None:
        """Wait for a good end, and compare the result with the preparation without faults."""
        if (code := self.wait()) != 0:
            row.problems.append(f"it ended with {code}: {self.said()[-600:]}")
            return
        row.seconds = round(time.monotonic() - self.struck_s, 1)
        made, shards = 0, 0
        for stage in STAGES:
            files = open_artefact(self.out / stage).files
            shards += sum(file.path.endswith((".parquet", ".arrow")) for file in files)
            made += summarize_log(self.out / stage)["shards"]
        # A kill may come between a shard and its line in the log.
        twice = max(0, made - shards)
        row.repeated, self._known = twice - self._known, twice
        row.identical = read_manifest(self.out / "tokens").fingerprint == self.fingerprint
        left = [path.name for path in self.out.rglob("*.partial")]
        if left:
            row.problems.append(f"half-written: {', '.join(sorted(left))}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def tasks(self) -> list[psutil.Process]:
        """The processes that make shards at the moment."""
        head = self.cluster.head_node
        (raylet,) = (info.process.pid for info in head.all_processes["raylet"])
        return [
            process
            for process in psutil.Process(raylet).children(recursive=True)
            if "make_shards" in " ".join(process.cmdline())
        ]


def lost_processes(scene: Preparation) -> None:
    """A data task is killed, which Ray runs again; then the command itself is killed."""
    scene.begin("task")
    stage = scene.random.choice(STAGES)
    scene.some_shards(stage)
    row = scene.strike("data-task", f"SIGKILL of a data task that makes {stage}")
    while not (tasks := scene.tasks()):
        time.sleep(0.001)
    scene.random.choice(tasks).kill()
    scene.check(row)
    scene.begin("command")
    stage = scene.random.choice(STAGES)
    scene.some_shards(stage, 3)
    row = scene.strike("data-command", f"SIGKILL of `cloze data prepare` while it makes {stage}")
    scene.kill(row)
    scene.again(row)


def storage(scene: Preparation) -> None:
    """The disk is full while documents are made, and while tokens are; then it is read-only; then slow."""
    disk = scene.directory / "disk"
    for stage in STAGES:
        scene.begin(stage)
        scene.some_shards(stage)
        row = scene.strike(f"{stage}-full", f"disk full while {stage} are made")
        with filled(disk):
            scene.until_ended(row)
        scene.again(row)
    scene.begin("read-only")
    scene.some_shards("tokens")
    row = scene.strike("data-read-only", "SIGKILL of `cloze data prepare`, then a disk that is read-only")
    scene.kill(row)
    # As soon as no task has a file open for writing.
    while not remount(disk, "ro", check=False):
        time.sleep(0.1)
    scene.start()
    scene.until_ended(row)
    remount(disk, "rw")
    scene.again(row)
    scene.clear("slow")
    row = scene.strike("data-slow", "every rename on the disk takes 0.3 s longer")
    scene.start({"PYTHONPATH": str(_HOOKS), "CHAOS_FAULT": _SLOW.to_argument()})
    scene.check(row)


def damage(scene: Preparation) -> None:
    """A shard and a manifest change after all is finished: the same command mends them."""
    for name, fault, path in (
        ("documents-bit", "a flipped bit in a shard of documents", "documents/*.parquet"),
        ("tokens-bit", "a flipped bit in a shard of tokens", "tokens/data-*.arrow"),
        ("documents-manifest", "a manifest of documents cut in half", "documents/manifest.json"),
        ("tokens-manifest", "a manifest of tokens cut in half", "tokens/manifest.json"),
    ):
        chosen = scene.random.choice(sorted(scene.out.glob(path)))
        if chosen.suffix == ".json":
            os.truncate(chosen, chosen.stat().st_size // 2)
        else:
            flip(chosen, scene.random)
        scene.again(scene.strike(name, fault))
