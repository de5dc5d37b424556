"""From a score back to the source files: every artefact names its inputs by fingerprint, and this follows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.errors import CorruptArtefactError, ReferenceNotFoundError
from cluster.manifest import InputEntry, Manifest, read_manifest
from cluster.storage import is_committed
from pipeline.pretrain.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.references import resolve_checkpoint

_MAX_SHOWN_FILES = 20
"""Source files listed under one artefact on a terminal; `--json` has all."""


@dataclass(frozen=True, slots=True)
class Node:
    """One thing in the ancestry."""

    kind: str
    uri: str
    fingerprint: str
    note: str = ""
    """What people want to know at a glance, such as a step or a row count."""
    problem: str = ""
    """Why the ancestry cannot be followed further, when it cannot."""
    inputs: list[Node] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The tree as JSON-like data."""
        return {
            "kind": self.kind,
            "uri": self.uri,
            "fingerprint": self.fingerprint,
            "note": self.note,
            "problem": self.problem,
            "inputs": [node.as_dict() for node in self.inputs],
        }


def trace(reference: str, runs_dir: Path) -> Node:
    """The ancestry of a checkpoint reference or of an artefact's directory.

    Args:
        runs_dir: where the runs lie that scores name as `RUN@STEP`.

    Raises:
        ReferenceNotFoundError: there is no such thing.
    """
    directory = Path(reference)
    if not is_committed(directory):
        directory = resolve_checkpoint(reference, runs_dir)
    return _node(read_manifest(directory), directory, runs_dir)


def _node(manifest: Manifest, directory: Path, runs_dir: Path) -> Node:
    return Node(
        kind=manifest.kind,
        uri=str(directory),
        fingerprint=manifest.fingerprint,
        note=_note(manifest),
        inputs=[_follow(entry, directory, runs_dir) for entry in manifest.inputs],
    )


def _follow(entry: InputEntry, used_by: Path, runs_dir: Path) -> Node:
    """The node of an input; the artefact is read again, and must still be the one that was used."""
    problem = "" if entry.kind.endswith("file") else "not found here"
    for directory in _candidates(entry, used_by, runs_dir):
        if not is_committed(directory):
            continue
        try:
            manifest = read_manifest(directory)
        except CorruptArtefactError as error:
            problem = error.problem
            continue
        if manifest.fingerprint == entry.fingerprint:
            return _node(manifest, directory, runs_dir)
        if manifest.kind == entry.kind:
            problem = f"{directory} now holds something else ({manifest.fingerprint})"
    return Node(entry.kind, entry.uri, entry.fingerprint, problem=problem)


def _candidates(entry: InputEntry, used_by: Path, runs_dir: Path) -> Iterator[Path]:
    """Where an input artefact may lie: where it was, or beside its user when both were moved together."""
    place = Path(entry.uri)
    yield place
    yield place / entry.kind
    yield used_by.parent / place.name
    if entry.kind == CHECKPOINT_KIND:
        with suppress(ReferenceNotFoundError):
            yield resolve_checkpoint(entry.uri, runs_dir)


def _note(manifest: Manifest) -> str:
    parts = [f"step {manifest.config['step']}"] if "step" in manifest.config else []
    parts += [
        f"{manifest.stats[name]:,} {name.replace('_', ' ')}"
        for name in ("rows", "tokens", "predicted_tokens", "rejects")
        if isinstance(manifest.stats.get(name), int)
    ]
    parts.append(f"cloze {manifest.created_by.version}")
    if manifest.created_by.commit:
        parts.append(f"commit {manifest.created_by.commit}")
    return ", ".join(parts)


def render(root: Node) -> None:
    """Print the ancestry as a tree."""
    from rich.console import Console
    from rich.tree import Tree

    def add(node: Node, parent: Tree | None) -> Tree:
        text = f"[bold]{node.kind}[/bold] {node.uri}\n  {node.fingerprint}  {node.note}"
        if node.problem:
            text += f"\n  [red]{node.problem}[/red]"
        tree = Tree(text) if parent is None else parent.add(text)
        for child in node.inputs[:_MAX_SHOWN_FILES]:
            add(child, tree)
        if len(node.inputs) > _MAX_SHOWN_FILES:
            tree.add(f"... and {len(node.inputs) - _MAX_SHOWN_FILES} more (--json lists all)")
        return tree

    Console(soft_wrap=True).print(add(root, None))
