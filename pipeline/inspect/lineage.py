"""From a score back to the source files: every artefact names its inputs by fingerprint, and this follows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cluster.artefacts.errors import (
    ClozeError,
    ConfigError,
    CorruptArtefactError,
    MissingInputError,
    ReferenceNotFoundError,
)
from cluster.artefacts.manifest import InputEntry, Manifest, read_manifest
from cluster.artefacts.places import Place, Uri, as_place, is_below
from cluster.artefacts.private import cache_directory
from cluster.artefacts.storage import describe_damage, is_committed
from cluster.copies import manifest_at
from data_prep.token_store import TokenStore
from pipeline.checkpoint.checkpoint import KIND as CHECKPOINT_KIND
from pipeline.checkpoint.hub import CONFIG_FILE
from pipeline.checkpoint.pretrained import hash_weights, is_export
from pipeline.checkpoint.references import resolve_checkpoint
from pipeline.inspect.facts import (
    checkpoint_facts,
    created_facts,
    describe_model_directory,
    find_model_directory,
    run_facts,
)
from pipeline.run.directory import RunDirectory, find_run
from pipeline.run.history import StoredSettings
from pipeline.run.lifecycle import reconcile

RUN_KIND = "run"
MODEL_KIND = "hugging-face-directory"


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
    inputs: Sequence[Node | InputEntry] = ()
    """Nodes that it was made of, and files, which have no ancestry; of these there may be a million."""

    @property
    def own(self) -> dict[str, Any]:
        """The node without its inputs, as JSON-like data."""
        names = ("kind", "uri", "fingerprint", "note", "problem", "facts")
        return {name: getattr(self, name) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """The tree as JSON-like data."""
        return self.own | {"inputs": [node.as_dict() for node in self.children()]}

    def children(self) -> Iterator[Node]:
        """A node for every input."""
        for each in self.inputs:
            yield each if isinstance(each, Node) else Node(each.kind, each.uri, each.fingerprint)

    @property
    def artefacts(self) -> list[Node]:
        """The inputs that are no files."""
        return [each for each in self.inputs if isinstance(each, Node)]

    @property
    def files(self) -> list[InputEntry]:
        """The inputs that are files."""
        return [each for each in self.inputs if isinstance(each, InputEntry)]


@dataclass(frozen=True, slots=True)
class _Search:
    """One search for ancestors. Several artefacts may name the same input: its manifest, which may have a million
    inputs, is read once, and its files are looked at once."""

    runs_dir: Path
    named: tuple[Place, ...] = ()
    """Places whose addresses are opened: a manifest may be a stranger's, and name any address."""
    manifests: dict[Place, Manifest | None] = field(default_factory=dict)
    nodes: dict[tuple[Place, str], Node] = field(default_factory=dict)
    """By place and fingerprint."""

    def opens(self, place: Place) -> bool:
        """Whether a place that a manifest or a run names is looked at: a directory, or an address below `named`."""
        return isinstance(place, Path) or is_below(place, self.named)

    def manifest_at(self, place: Place) -> Manifest | None:
        """The manifest of the artefact at a place, as `copies.manifest_at`."""
        if not self.opens(place):
            raise MissingInputError(f"not looked for at {place} (--follow URI does)")
        if place not in self.manifests:
            self.manifests[place] = manifest_at(place)
        return self.manifests[place]


def trace(reference: str, runs_dir: Path, follow: Sequence[str] = ()) -> Node:
    """The ancestry of a run, of a checkpoint reference, of an artefact's directory, or of a Hugging Face directory.

    Args:
        runs_dir: where the runs lie that are named, also by scores as `RUN@STEP`.
        follow: URIs below which inputs are looked for, besides what lies beside a reference that is a URI. No other
            address is opened.

    Raises:
        ReferenceNotFoundError: there is no such thing.
    """
    named = [as_place(uri) for uri in follow]
    directory = as_place(reference)
    if isinstance(directory, Uri):
        named.append(directory.parent)
    search = _Search(runs_dir, tuple(named))
    if isinstance(directory, Uri):
        manifest = search.manifest_at(directory)
        if manifest is not None and manifest.kind != CHECKPOINT_KIND:
            return _node(manifest, directory, search)
        directory = Path(reference)
    if (directory / CONFIG_FILE).is_file():
        return _model_node(directory, search)
    if is_committed(directory):
        return _node(read_manifest(directory), directory, search)
    run = None
    with suppress(ReferenceNotFoundError):
        run = find_run(reference, runs_dir)
    if run is not None:
        return _run_node(run, search)
    if (found := find_model_directory(reference)) is not None:
        return _model_node(found, search)
    directory = resolve_checkpoint(reference, runs_dir)
    return _node(read_manifest(directory), directory, search)


def _run_node(run: RunDirectory, search: _Search) -> Node:
    """A run, made from its newest checkpoint, or while it has none from the stores of its configuration."""
    reconcile(run)
    facts = run_facts(run)
    try:
        checkpoint = resolve_checkpoint(str(run.path), search.runs_dir)
        inputs = [_node(read_manifest(checkpoint), checkpoint, search)]
    except (ReferenceNotFoundError, CorruptArtefactError):
        inputs = [_store_node(as_place(store["path"]), search) for store in StoredSettings.of(run).stores]
    note = f"step {facts['step']:,}" + (f", {facts['state']}" if "state" in facts else "")
    return Node(RUN_KIND, str(run.path), run.info.run_id, note=note, facts=facts, inputs=inputs)


def _store_node(place: Place, search: _Search) -> Node:
    """A store that no checkpoint names by fingerprint yet: it is what lies there now."""
    try:
        manifest, problem = search.manifest_at(place), "not found there"
    except ClozeError as error:
        manifest, problem = None, error.problem
    if manifest is None:
        return Node("tokens", str(place), "", problem=problem)
    return _node(manifest, place, search)


def _node(manifest: Manifest, place: Place, search: _Search) -> Node:
    if (known := search.nodes.get((place, manifest.fingerprint))) is not None:
        return known
    is_checkpoint = manifest.kind == CHECKPOINT_KIND
    is_here = isinstance(place, Path)
    facts = checkpoint_facts(place, manifest, search.runs_dir) if is_checkpoint and is_here else {}
    inputs = [
        each if each.kind.endswith("file") else _follow(each, place, search) for each in manifest.inputs
    ]
    if is_checkpoint:
        # A checkpoint reads tokens; another checkpoint among its inputs taught it.
        inputs = [
            replace(each, note=f"teacher, {each.note}")
            if isinstance(each, Node) and each.kind == CHECKPOINT_KIND
            else each
            for each in inputs
        ]
    # Only complete local artefacts are checked, not URIs or partial copies.
    is_whole = isinstance(place, Path) and not place.is_relative_to(cache_directory())
    search.nodes[place, manifest.fingerprint] = node = Node(
        kind=manifest.kind,
        uri=str(place),
        fingerprint=manifest.fingerprint,
        note=_note(manifest),
        problem=describe_damage(Path(place), manifest) if is_whole else "",
        facts=facts
        or {
            "settings": manifest.config,
            "made_by": created_facts(manifest.created_by),
            "sources": manifest.stats.get("sources") or {},
        },
        inputs=inputs,
    )
    return node


def _model_node(directory: Path, search: _Search) -> Node:
    """A Hugging Face directory: an export of cloze is followed, any other one ends the ancestry."""
    if is_export(directory):
        return _node(read_manifest(directory), directory, search)
    facts, problem = describe_model_directory(directory)
    note = "its own ancestry is not recorded"
    return Node(MODEL_KIND, str(directory), hash_weights(directory), note, problem=problem, facts=facts)


def _follow(entry: InputEntry, used_by: Place, search: _Search) -> Node:
    """The node of an input artefact, which is read again, and must still be the one that was used."""
    problem = "not found here"
    for place in _candidates(entry, used_by, search):
        try:
            manifest = search.manifest_at(place)
        except ClozeError as error:
            problem = error.problem
            continue
        if manifest is None:
            continue
        if manifest.fingerprint == entry.fingerprint:
            return _node(manifest, place, search)
        if manifest.kind == entry.kind:
            problem = f"{place} now holds something else ({manifest.fingerprint})"
    if entry.kind == CHECKPOINT_KIND and (found := find_model_directory(entry.uri)) is not None:
        # Users of a Hugging Face directory record the hash of its weights.
        if hash_weights(found) == entry.fingerprint:
            return _model_node(found, search)
        problem = f"{found} now holds other weights"
    return Node(entry.kind, entry.uri, entry.fingerprint, problem=problem)


def _candidates(entry: InputEntry, used_by: Place, search: _Search) -> Iterator[Place]:
    """Places where an input artefact may lie: where it was, or beside its user when both were moved together."""
    with suppress(ConfigError):
        place = as_place(entry.uri)
        yield from (place, place / entry.kind)
    if (name := entry.uri.rpartition("/")[2]) not in ("", ".", ".."):
        yield used_by.parent / name
    if entry.kind == CHECKPOINT_KIND:
        # It may be gone, or lie in a store that does not answer.
        with suppress(ClozeError):
            if search.opens(as_place(entry.uri)):
                yield resolve_checkpoint(entry.uri, search.runs_dir)


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


def find_documents(
    stores: Sequence[TokenStore], wanted: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Where documents are from, each given by the index of its store and its own: `doc_id`, `title`, `source`, `uri`,
    and `byte_start` and `byte_end` in the (decompressed) source file, None where they are not known.

    The documents may lie elsewhere, or be deleted to save space: the tokens are enough to train on, and to name them.
    `title` and `uri` are then empty.
    """
    unique = sorted(set(wanted))
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for number, store in enumerate(stores):
        own = [document for place, document in unique if place == number]
        try:
            described = [
                {name: getattr(document, name) for name in ("doc_id", "title", "source", "uri")}
                | {name: document.meta.get(name) for name in ("byte_start", "byte_end")}
                for document in store.documents(np.array(own, dtype=np.int64))
            ]
        except CorruptArtefactError:
            described = [
                {"doc_id": store.doc_id(each), "title": "", "source": store.source(each), "uri": ""}
                | {"byte_start": None, "byte_end": None}
                for each in own
            ]
        found |= {(number, document): one for document, one in zip(own, described, strict=True)}
    return found
