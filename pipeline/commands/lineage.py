"""`cloze lineage`: where something came from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.artefacts.visible import visible
from pipeline.commands.output import Json, RunsDir, json_text

if TYPE_CHECKING:
    from rich.tree import Tree

    from pipeline.inspect.lineage import Node

_FIRST_FILES = 3
"""Files of an artefact that are named without --files."""
_BATCH = 1000
"""Inputs that are turned into JSON at a time."""
_WIDTH_OF_FILES = 10_000


def lineage(
    reference: Annotated[
        str, typer.Argument(help="A run, RUN@STEP, model URI, or any artefact's directory.")
    ],
    files: Annotated[bool, typer.Option("--files", help="List every source file with its hash.")] = False,
    follow: Annotated[
        list[str] | None,
        typer.Option(help="Also look for inputs at addresses below this URI; repeatable."),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Print what something was made from, down to the sources and their files."""
    from pipeline.inspect.lineage import trace

    tree = trace(reference, runs_dir, follow or ())
    if as_json:
        sys.stdout.writelines(_json_pieces(tree))
        sys.stdout.write("\n")
        return
    _print_tree(tree, listed=files)
    if files:
        sys.stdout.writelines(map(visible, _file_lines(tree)))


def _json_pieces(node: Node, line: str = "\n") -> Iterator[str]:
    """The tree as `print_json` prints its `as_dict`, in pieces: it may have millions of files.

    Args:
        line: a line break with the indentation of the node.
    """
    yield json_text(node.own)[:-2].replace("\n", line) + f',{line}  "inputs": ['
    comma = ""
    children = iter(node.inputs)
    while batch := list(islice(children, _BATCH)):
        for is_leaf, group in groupby(batch, lambda child: not child.inputs):
            if is_leaf:
                leaves = json_text([child.as_dict() for child in group])
                yield comma + leaves[1:-2].replace("\n", f"{line}  ")
                comma = ","
                continue
            for child in group:
                yield f"{comma}{line}    "
                yield from _json_pieces(child, f"{line}    ")
                comma = ","
    yield f"{f'{line}  ' if comma else ''}]{line}}}"


def _file_lines(root: Node) -> Iterator[str]:
    """All files of the ancestry, by the artefacts that were made of them."""
    seen = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        waiting += reversed(node.artefacts)
        if node.num_files:
            yield f"\nfiles of {node.kind} {node.uri}:\n"
            yield from (f"{file.fingerprint}  {file.kind} {file.uri}\n" for file in node.files)


def _print_tree(root: Node, *, listed: bool) -> None:
    """Print the ancestry as a tree, and whatever several artefacts were made from in full where it first comes.

    Args:
        listed: files are listed elsewhere, and the tree says only how many there are.
    """
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    seen: set[int] = set()

    def add(node: Node, parent: Tree | None) -> Tree:
        text = Text.assemble((node.kind, "bold"), visible(f" {node.uri}\n  {node.fingerprint}  {node.note}"))
        if parent is not None and id(node) in seen:
            return parent.add(text.append(", as above"))
        seen.add(id(node))
        for line in _facts(node):
            text.append(visible(f"\n  {line}"), "dim")
        if node.problem:
            text.append(visible(f"\n  {node.problem}"), "red")
        tree = Tree(text) if parent is None else parent.add(text)
        for child in node.artefacts:
            add(child, tree)
        if node.num_files:
            tree.add(Text(visible("\n".join(_files_in_short(node, listed=listed)))))
        return tree

    # Rich cuts lines of trees; what a program or a file gets must be whole.
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, highlight=False).print(add(root, None))


def _files_in_short(node: Node, *, listed: bool) -> Iterator[str]:
    """The number of a node's files by kind, the size of their texts, and the names of the first."""
    counts = (
        f"{count:,} {kind.replace('-', ' ')}{'s' if count > 1 else ''}"
        for kind, count in node.kinds_of_files.items()
    )
    text_bytes = sum(stats.get("text_bytes", 0) for stats in node.facts.get("sources", {}).values())
    size = f", {text_bytes:,} bytes of text" if text_bytes else ""
    yield (
        ", ".join(counts) + size + (", listed below" if listed else " (--files lists them with their hashes)")
    )
    if not listed:
        yield from (f"  {file.uri}" for file in islice(node.files, _FIRST_FILES))
        if node.num_files > _FIRST_FILES:
            yield "  ..."


def _facts(node: Node) -> Iterator[str]:
    """The facts that people read of a node: the course of a run or up to a checkpoint; documents by source."""
    from pipeline.checkpoint.checkpoint import KIND
    from pipeline.inspect.lineage import MODEL_KIND, RUN_KIND
    from pipeline.inspect.run_lineage import described

    if node.kind in (RUN_KIND, KIND, MODEL_KIND):
        yield from described(node.facts)
        return
    for name, stats in node.facts.get("sources", {}).items():
        if "rows" in stats:
            yield f"{name}: {stats['rows']:,} documents"
