"""From a score back to the source files: every artefact names its inputs by fingerprint, and this follows them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import (
    ClozeError,
    CorruptArtefactError,
    ReferenceNotFoundError,
    StorageError,
)
from cluster.artefacts.manifest import InputEntry, Manifest, read_manifest
from cluster.artefacts.places import Place, as_place, inner, is_uri, outer
from cluster.artefacts.private import cache_directory
from cluster.artefacts.storage import describe_damage, is_committed
from cluster.copies import manifest_at
from pipeline.checkpoints.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoints.hub import CONFIG_FILE
from pipeline.checkpoints.pretrained import is_export
from pipeline.checkpoints.references import resolve_checkpoint
from pipeline.inspection.model_directory import (
    describe_model_directory,
    find_model_directory,
    hash_weights,
)
from pipeline.inspection.run_lineage import checkpoint_facts, created_facts, described, run_facts
from pipeline.runs.directory import RunDirectory, find_run
from pipeline.runs.lifecycle import reconcile
from pipeline.runs.stored_settings import StoredSettings

RUN_KIND = "run"
MODEL_KIND = "hugging-face-directory"
_WIDTH_OF_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """One thing in the ancestry."""

    kind: str
    uri: str
    fingerprint: str
    note: str = ""
    """The facts for a glance, such as a step or a row count."""
    problem: str = ""
    """The damage, or why the ancestry cannot be followed further."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How it was made: of a checkpoint and a run, how training went; of others, their settings and who made them."""
    inputs: list[Node] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The tree as JSON-like data."""
        return {
            "kind": self.kind,
            "uri": self.uri,
            "fingerprint": self.fingerprint,
            "note": self.note,
            "problem": self.problem,
            "facts": self.facts,
            "inputs": [node.as_dict() for node in self.inputs],
        }


def trace(reference: str, runs_dir: Path) -> Node:
    """The ancestry of a run, of a checkpoint reference, of an artefact's directory, or of a Hugging Face directory.

    Args:
        runs_dir: where the runs lie that are named, also by scores as `RUN@STEP`.

    Raises:
        ReferenceNotFoundError: there is no such thing.
    """
    if is_uri(reference):
        place = as_place(reference)
        manifest = manifest_at(place)
        if manifest is not None and manifest.kind != CHECKPOINT_KIND:
            return _node(manifest, place, runs_dir)
    directory = Path(reference)
    if (directory / CONFIG_FILE).is_file():
        return _model_node(directory, runs_dir)
    if is_committed(directory):
        return _node(read_manifest(directory), directory, runs_dir)
    if (run := _named_run(reference, runs_dir)) is not None:
        return _run_node(run, runs_dir)
    if (found := find_model_directory(reference)) is not None:
        return _model_node(found, runs_dir)
    directory = resolve_checkpoint(reference, runs_dir)
    return _node(read_manifest(directory), directory, runs_dir)


def _named_run(reference: str, runs_dir: Path) -> RunDirectory | None:
    """The run, where the reference is one's name, directory or MLflow run id and nothing more."""
    try:
        return find_run(reference, runs_dir)
    except ReferenceNotFoundError:
        return None


def _run_node(run: RunDirectory, runs_dir: Path) -> Node:
    """A run, made from its newest checkpoint, or while it has none from the stores of its configuration."""
    reconcile(run)
    facts = run_facts(run)
    try:
        checkpoint = resolve_checkpoint(str(run.path), runs_dir)
        inputs = [_node(read_manifest(checkpoint), checkpoint, runs_dir)]
    except (ReferenceNotFoundError, CorruptArtefactError):
        inputs = [_store_node(as_place(store["path"]), runs_dir) for store in StoredSettings.of(run).stores]
    note = f"step {facts['step']:,}" + (f", {facts['state']}" if "state" in facts else "")
    return Node(RUN_KIND, str(run.path), run.info.run_id, note=note, facts=facts, inputs=inputs)


def _store_node(place: Place, runs_dir: Path) -> Node:
    """A store that no checkpoint names by fingerprint yet: it is what lies there now."""
    try:
        manifest = read_manifest(place) if isinstance(place, Path) else manifest_at(place)
    except (CorruptArtefactError, StorageError) as error:
        return Node("tokens", str(place), "", problem=error.problem)
    if manifest is None:
        return Node("tokens", str(place), "", problem="not found there")
    return _node(manifest, place, runs_dir)


def _node(manifest: Manifest, place: Place, runs_dir: Path) -> Node:
    is_checkpoint = manifest.kind == CHECKPOINT_KIND
    is_here = isinstance(place, Path)
    facts = checkpoint_facts(place, manifest, runs_dir) if is_checkpoint and is_here else {}
    inputs = [_follow(entry, place, runs_dir) for entry in manifest.inputs]
    if is_checkpoint:
        # A checkpoint reads tokens; another checkpoint among its inputs taught it.
        inputs = [
            replace(node, note=f"teacher, {node.note}") if node.kind == CHECKPOINT_KIND else node
            for node in inputs
        ]
    return Node(
        kind=manifest.kind,
        uri=str(place),
        fingerprint=manifest.fingerprint,
        note=_note(manifest),
        # Of files at a URI, and of copies that hold only some, nothing is looked at.
        problem=describe_damage(place, manifest) if is_here and not _is_copy(place) else "",
        facts=facts
        or {
            "settings": manifest.config,
            "made_by": created_facts(manifest.created_by),
            "sources": manifest.stats.get("sources") or {},
        },
        inputs=inputs,
    )


def _model_node(directory: Path, runs_dir: Path) -> Node:
    """A Hugging Face directory: an export of cloze is followed, any other one ends the ancestry."""
    if is_export(directory):
        return _node(read_manifest(directory), directory, runs_dir)
    found = describe_model_directory(directory)
    note = "its own ancestry is not recorded"
    return Node(MODEL_KIND, str(directory), found.fingerprint, note, problem=found.problem, facts=found.facts)


def _is_copy(directory: Path) -> bool:
    """Whether it holds only some files of a checkpoint that is kept elsewhere."""
    return directory.is_relative_to(cache_directory())


def _follow(entry: InputEntry, used_by: Place, runs_dir: Path) -> Node:
    """The node of an input; the artefact is read again, and must still be the one that was used."""
    if entry.kind.endswith("file"):
        return Node(entry.kind, entry.uri, entry.fingerprint)
    problem = "not found here"
    for place in _candidates(entry, used_by, runs_dir):
        try:
            manifest = manifest_at(place)
        except (CorruptArtefactError, StorageError) as error:
            problem = error.problem
            continue
        if manifest is None:
            continue
        if manifest.fingerprint == entry.fingerprint:
            return _node(manifest, place, runs_dir)
        if manifest.kind == entry.kind:
            problem = f"{place} now holds something else ({manifest.fingerprint})"
    if entry.kind == CHECKPOINT_KIND and (found := find_model_directory(entry.uri)) is not None:
        # Users of a Hugging Face directory record the hash of its weights.
        if hash_weights(found) == entry.fingerprint:
            return _model_node(found, runs_dir)
        problem = f"{found} now holds other weights"
    return Node(entry.kind, entry.uri, entry.fingerprint, problem=problem)


def _candidates(entry: InputEntry, used_by: Place, runs_dir: Path) -> Iterator[Place]:
    """Where an input artefact may lie: where it was, or beside its user when both were moved together."""
    place = as_place(entry.uri)
    yield place
    yield inner(place, entry.kind)
    yield inner(outer(used_by), entry.uri.rpartition("/")[2])
    if entry.kind == CHECKPOINT_KIND:
        # It may be gone, or lie in a store that does not answer.
        with suppress(ClozeError):
            yield resolve_checkpoint(entry.uri, runs_dir)


def _note(manifest: Manifest) -> str:
    parts = [f"step {manifest.config['step']}"] if "step" in manifest.config else []
    parts += [
        f"{name} {manifest.config[name]}" for name in ("family", "weights") if manifest.config.get(name)
    ]
    parts += [
        f"{manifest.stats[name]:,} {name.replace('_', ' ')}"
        for name in ("rows", "tokens", "predicted_tokens", "rejects", "trainings")
        if isinstance(manifest.stats.get(name), int)
    ]
    parts.append(f"cloze {manifest.created_by.version}")
    if manifest.created_by.commit:
        parts.append(f"commit {manifest.created_by.commit}")
    return ", ".join(parts)


def _is_file(node: Node) -> bool:
    return node.kind.endswith("file")


def _lines(node: Node) -> Iterator[str]:
    """The facts that people read of a node: the course of a run or up to a checkpoint; documents by source."""
    if node.kind in (RUN_KIND, CHECKPOINT_KIND, MODEL_KIND):
        yield from described(node.facts)
        return
    for name, stats in node.facts.get("sources", {}).items():
        if "rows" in stats:
            yield f"{name}: {stats['rows']:,} documents"


def render(root: Node, *, files: bool) -> None:
    """Print the ancestry as a tree.

    Args:
        files: name source and evaluation files with their hashes too, in place of their number.
    """
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def add(node: Node, parent: Tree | None) -> Tree:
        text = Text.assemble((node.kind, "bold"), f" {node.uri}\n  {node.fingerprint}  {node.note}")
        for line in _lines(node):
            text.append(f"\n  {line}", "dim")
        if node.problem:
            text.append(f"\n  {node.problem}", "red")
        tree = Tree(text) if parent is None else parent.add(text)
        folded = Counter(child.kind for child in node.inputs if _is_file(child) and not files)
        for child in node.inputs:
            if child.kind not in folded or child.problem:
                add(child, tree)
        for kind, count in folded.items():
            tree.add(f"{count:,} {kind.replace('-', ' ')}{'s' if count > 1 else ''} (--files lists them)")
        return tree

    # Rich cuts lines of trees; what a program or a file gets must be whole.
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, highlight=False).print(add(root, None))
