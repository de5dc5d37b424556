"""What training reads, and where things came from: `cloze data inspect`, `cloze lineage`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.artefacts.visible import visible
from pipeline.commands import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from pipeline.inspect.lineage import Node

_MAX_SHOWN_DOCUMENTS = 60
"""Documents of a batch listed on a terminal; `--json` has all."""


def inspect(
    store: Annotated[
        str | None,
        typer.Argument(help="A token store (a directory or a URI), or the YAML of a pre-training run."),
    ] = None,
    overrides: output.Overrides = None,
    sample: Annotated[int, typer.Option(help="Number of the training sample; 0 is the first.")] = 0,
    document: Annotated[int | None, typer.Option(help="Show this document instead of a sample.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="Kind of objective that corrupts the sample of a store; mlm unless said."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Show what an update of this run read: its name, directory or MLflow run id."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help="The update that made this step, numbered as in the log; step 1 is the first."),
    ] = None,
    data_step: Annotated[
        int | None,
        typer.Option(
            help="In place of --step: the global batch of this number, as in skipped.json; 0 is the first."
        ),
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(help="Only this micro-batch of the update, over all ranks; 0 is the first.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Also every text of the update, with its prediction targets.")
    ] = False,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
) -> None:
    """Show what training reads: a sample, a document, or with --run and --step the global batch of an update.

    Of a sample, its text is shown, what the objective makes of it, and where its documents lie. With a pre-training
    YAML it is exactly that run's sample; with a store, a sample of any objective, with its default settings unless they
    are given, such as objective.rate=0.3 batch.sequence_length=64.

    Of an update, the documents are listed, and with --texts everything is shown. Nothing but the run's directory and
    its stores is needed: no checkpoint, no log.
    """
    if run is not None:
        if (step is None) == (data_step is None):
            raise typer.BadParameter("an update is named by --run RUN with --step N or --data-step N")
        changed = (*([] if store is None else [store]), *(overrides or ()))
        _show_step(run, step, data_step, changed, micro_batch, texts, runs_dir, as_json)
        return
    if store is None or texts or any(one is not None for one in (step, data_step, micro_batch)):
        raise typer.BadParameter("name a store or a YAML; or an update, with --run RUN --step N")
    if document is not None:
        _show_document(store, document, as_json)
        return
    from pipeline.checkpoint.references import resolve_model
    from pipeline.inspect.sample import inspect_sample
    from pipeline.run.inputs import open_inputs

    config = _pretrain_config(store, tuple(overrides or ()), objective)
    inputs = open_inputs(config, verify=False, resolve=resolve_model)
    output.warn_of_damage(inputs.stores)
    pieces = [piece.as_dict() for piece in inspect_sample(inputs, sample)]
    if as_json:
        output.print_json(pieces)
        return
    console = _console()
    count = "1 piece" if len(pieces) == 1 else f"{len(pieces)} pieces"
    console.print(
        f"sample {sample}, objective {config.objective.kind}: {count}; in brackets: what was changed or is predicted",
        markup=False,
    )
    _print_pieces(console, pieces)


def _show_step(
    name: str,
    step: int | None,
    data_step: int | None,
    overrides: tuple[str, ...],
    micro_batch: int | None,
    texts: bool,
    runs_dir: Path,
    as_json: bool,
) -> None:
    from pipeline.inspect.step import inspect_step, rebuild_data_step, rebuild_step
    from pipeline.run.directory import find_run

    run = find_run(name, runs_dir)
    if step is not None:
        rebuilt = rebuild_step(run, step, overrides)
    else:
        assert data_step is not None
        rebuilt = rebuild_data_step(run, data_step, overrides)
    output.warn_of_damage(rebuilt.inputs.stores)
    found = inspect_step(rebuilt, micro_batch, texts=texts)
    if as_json:
        output.print_json(found)
        return
    documents, samples = found.pop("documents"), found.pop("samples")
    spike = ""
    if rebuilt.spike is not None:
        spike = f": its loss of {output.shown(rebuilt.spike.loss)} was a spike, and its data is left out"
    output.print_line(f"{found['run']}, step {found['step']}{spike}")
    for line in _described(found):
        output.print_line(f"  {line}")
    columns = {
        "document": "doc_id",
        "title": lambda own: own["title"] or "-",
        "source": "source",
        "uri": lambda own: own["uri"] or "-",
        "bytes": lambda own: _bytes(own) if own["uri"] else "-",
        "tokens": "tokens",
        "samples": lambda own: (
            ", ".join(map(str, own["samples"][:4])) + (", ..." if own["samples"][4:] else "")
        ),
    }
    chosen = "" if micro_batch is None else f" of micro-batch {micro_batch}"
    title = f"{len(documents)} documents{chosen}, the ones with the most tokens first"
    output.print_table(title, columns, documents[:_MAX_SHOWN_DOCUMENTS])
    if len(documents) > _MAX_SHOWN_DOCUMENTS:
        typer.echo(f"... and {len(documents) - _MAX_SHOWN_DOCUMENTS} more (--json lists all)")
    if not texts:
        typer.echo("\nTheir texts, and what was predicted: the same command with --texts")
        return
    console = _console()
    for one in samples:
        owner = f"micro-batch {one['micro_batch']} (rank {one['rank']})"
        console.rule(f"sample {one['sample']}, {owner}", characters="=", align="left")
        _print_pieces(console, one["pieces"])


def _described(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts as lines to read; those that say nothing are left out."""
    for name, value in facts.items():
        if value in (None, "", [], {}) or name in ("run", "step"):
            continue
        label = name.replace("_", " ")
        if isinstance(value, list) and isinstance(value[0], Mapping):
            yield f"{label}:"
            yield from (f"  {output.shown(item)}" for item in value)
        else:
            yield f"{label}: {output.shown(value)}"


def _bytes(place: Mapping[str, Any]) -> str:
    return f"{output.shown(place['byte_start'])}-{output.shown(place['byte_end'])}"


def _console() -> Console:
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False)


def _print_pieces(console: Console, pieces: Sequence[Mapping[str, Any]]) -> None:
    from rich.text import Text

    for piece in pieces:
        for one in piece["slices"]:
            console.rule(Text(visible(f"{one['title'] or one['doc_id']}  ({one['source']})")), align="left")
            place = f"{one['uri']} bytes {_bytes(one)}"
            known = place if one["uri"] else "(its document is not beside the tokens)"
            first, last = one["tokens"]
            output.print_text(console, f"{one['doc_id']}  {known}  tokens {first}-{last}")
        output.print_text(console, piece["text"])
        output.print_text(console, f"reads:   {piece['read']}")
        output.print_text(console, f"target:  {piece['target']}")
        if piece["relation"]:
            output.print_text(console, f"pair:    {piece['relation']}")


def _pretrain_config(name: str, overrides: tuple[str, ...], objective: str | None) -> Any:
    from pipeline.config.loading import load_config, validate, with_overrides
    from pipeline.objectives import OBJECTIVES
    from pipeline.run.config import PretrainConfig

    if name.endswith((".yaml", ".yml")):
        chosen = (f"objective.kind={objective}",) if objective else ()
        return load_config(PretrainConfig, Path(name), (*chosen, *overrides))
    kind = objective or "mlm"
    networks = OBJECTIVES[kind].NETWORKS if kind in OBJECTIVES else ("encoder",)
    # Samples are cut before any network reads them: this one takes pairs, and any length.
    limitless = {"positions": "rotary", "num_segments": 2} if networks != ("elmo",) else {}
    plain = {
        "name": "inspect",
        "data": {"stores": [{"path": name}]},
        "model": {"network": networks[0], **limitless},
        "objective": {"kind": kind},
        "batch": {"sequence_length": 128, "samples": 1, "micro_batch_size": 1},
        "steps": 1,
        "optimizer": {"lr": 1e-3},
    }
    return validate(PretrainConfig, with_overrides(PretrainConfig, plain, overrides, name), name)


def _show_document(name: str, number: int, as_json: bool) -> None:
    from cluster.artefacts.errors import ReferenceNotFoundError
    from data_prep.provenance import trace_document
    from data_prep.token_store import TokenStore

    store = TokenStore.open(name, verify=False)
    output.warn_of_damage([store])
    if not 0 <= number < store.num_documents:
        raise ReferenceNotFoundError(
            f"{name} has documents 0 to {store.num_documents - 1}; there is no document {number}."
        )
    found = trace_document(store, number)
    document = found.document
    facts = {"tokens": int(store.lengths[number]), "sentences": len(found.sentences)}
    if as_json:
        # Its tokens would be longer than its text.
        traced = ("source_path", "source_text", "removed")
        output.print_json(asdict(document) | facts | {key: getattr(found, key) for key in traced})
        return
    place = {"bytes": f"{document.meta.get('byte_start')}-{document.meta.get('byte_end')}"}
    names = ("doc_id", "title", "source", "uri", "lang")
    facts |= {"source file": found.source_path or "not known"}
    output.print_mapping(
        f"document {number}", {name: getattr(document, name) for name in names} | place | facts
    )
    parts = [
        ("in the source file", found.source_text or "(the source file cannot be read any more)"),
        ("text", document.text),
        *(("removed from it", removed) for removed in found.removed),
        ("tokens, a line for each sentence", "\n".join("|".join(each) for each in found.sentences)),
    ]
    console = _console()
    for title, text in parts:
        console.rule(title, align="left")
        output.print_text(console, text)


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
        list[str] | None, typer.Option(help="Also look for inputs at addresses below this URI; repeatable.")
    ] = None,
    runs_dir: output.RunsDir = Path("runs"),
    as_json: output.Json = False,
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
    yield output.json_text(node.own)[:-2].replace("\n", line) + f',{line}  "inputs": ['
    comma = ""
    children = node.children()
    while batch := list(islice(children, _BATCH)):
        for is_leaf, group in groupby(batch, lambda child: not child.inputs):
            if is_leaf:
                leaves = output.json_text([child.as_dict() for child in group])
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
        waiting += node.artefacts[::-1]
        if node.files:
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
        if node.files:
            tree.add(Text(visible("\n".join(_files_in_short(node, listed=listed)))))
        return tree

    # Rich cuts lines of trees; what a program or a file gets must be whole.
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, highlight=False).print(add(root, None))


def _files_in_short(node: Node, *, listed: bool) -> Iterator[str]:
    """The number of a node's files by kind, the size of their texts, and the names of the first."""
    files = node.files
    counts = (
        f"{count:,} {kind.replace('-', ' ')}{'s' if count > 1 else ''}"
        for kind, count in Counter(file.kind for file in files).items()
    )
    text_bytes = sum(stats.get("text_bytes", 0) for stats in node.facts.get("sources", {}).values())
    size = f", {text_bytes:,} bytes of text" if text_bytes else ""
    yield (
        ", ".join(counts) + size + (", listed below" if listed else " (--files lists them with their hashes)")
    )
    if not listed:
        yield from (f"  {file.uri}" for file in files[:_FIRST_FILES])
        if len(files) > _FIRST_FILES:
            yield "  ..."


def _facts(node: Node) -> Iterator[str]:
    """The facts that people read of a node: the course of a run or up to a checkpoint; documents by source."""
    from pipeline.checkpoint.checkpoint import KIND
    from pipeline.inspect.lineage import MODEL_KIND, RUN_KIND

    if node.kind in (RUN_KIND, KIND, MODEL_KIND):
        yield from _described(node.facts)
        return
    for name, stats in node.facts.get("sources", {}).items():
        if "rows" in stats:
            yield f"{name}: {stats['rows']:,} documents"
