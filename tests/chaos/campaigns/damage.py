"""Bytes on disk that changed: a checkpoint, a manifest, a token shard, the log."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from pipeline.checkpoint.checkpoint import MODEL_FILE, list_checkpoints, step_of
from pipeline.run.events import Event
from tests.chaos.scene import STEPS, Row, Scene


def flip(path: Path, generator: random.Random) -> bytes:
    """Change a drawn bit; returns the contents before."""
    contents = path.read_bytes()
    place = generator.randrange(len(contents))
    path.write_bytes(
        contents[:place] + bytes([contents[place] ^ (1 << generator.randrange(8))]) + contents[place + 1 :]
    )
    return contents


def _killed(scene: Scene, row_of: str, fault: str, at_least: int) -> Row:
    """A run that was killed once it had some checkpoints."""
    group = scene.start()
    scene.until(lambda: len(list_checkpoints(scene.run.checkpoints)) > 1, "two checkpoints")
    scene.until_step(at_least + scene.a_step(1, 15))
    group.kill()
    row = scene.strike(row_of, fault)
    row.exit_codes.append(-signal.SIGKILL)
    return row


def damaged_checkpoints(scene: Scene) -> None:
    """Weights of the newest checkpoint, then a manifest: the one before is taken each time."""
    for name, file, at_least in (("weights", MODEL_FILE, 45), ("manifest", "manifest.json", 85)):
        row = _killed(scene, f"corrupt-{name}", f"a flipped bit in the newest checkpoint's {name}", at_least)
        newest = max(list_checkpoints(scene.run.checkpoints), key=step_of)
        flip(newest / file, scene.random)
        scene.again(row)
        scene.until_trained_again()
        row.operator = "the same command again, after a kill"
        aside = scene.run.events(Event.CHECKPOINT_SET_ASIDE)
        if not any(newest.name in event["message"] for event in aside):
            row.problems.append("the damaged checkpoint is not named in the history")
        if row is scene.rows[0]:
            assert scene.group is not None
            scene.group.kill()
    scene.finish()


def damaged_tokens(scene: Scene) -> None:
    """A flipped bit in a token shard is named at the next start, and nothing is trained on it."""
    row = _killed(scene, "corrupt-shard", "a flipped bit in a token shard", STEPS // 4)
    shard = sorted(scene.store.glob("data-*.arrow"))[0]
    good = flip(shard, scene.random)
    row.exit_codes.clear()
    try:
        scene.drive()
        scene.until_ended(row)
        said = scene.said()
    finally:
        shard.write_bytes(good)
    if shard.name not in said:
        row.problems.append("the shard is not named")
    scene.driver = None
    scene.again(row)
    row.operator = "the shard repaired; the same command again"
    scene.until_trained_again()
    scene.finish()
