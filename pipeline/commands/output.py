"""How verbs answer: a table for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.visible import escaped, visible

if TYPE_CHECKING:
    from rich.console import Console

    from data_prep.token_store import TokenStore

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Resolve and check everything, start nothing.")]
ConfigPath = Annotated[Path, typer.Argument(help="YAML file, or a name of `cloze configs list`.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings that win over the file: a.b=c")]
Address = Annotated[str | None, typer.Option(help="Ray address; else RAY_ADDRESS, else a local cluster.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Shards to work on at a time; else one for every CPU of the cluster."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace what is there and differs.")]
Html = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Also write one self-contained page to this file.")
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Directory that holds the runs.")]
RunsDirOfGroup = Annotated[
    Path | None, typer.Option("--runs-dir", help="Directory that holds the runs.", show_default="runs")
]
"""For verbs of `cloze runs`, which takes the option itself."""
RunsDirOfConfig = Annotated[
    Path | None, typer.Option("--runs-dir", help="Directory that holds the runs; else the configuration's.")
]
Run = Annotated[str, typer.Argument(help="A run: its name, directory or MLflow run id.")]
REFERENCE_HELP = "RUN, RUN@STEP, RUN@best, models:/NAME@ALIAS, a checkpoint or Hugging Face directory"
Reference = Annotated[str, typer.Option("--from", help=f"{REFERENCE_HELP}.")]
Average = Annotated[bool, typer.Option("--ema", help="Take the moving average of the weights.")]


def _start_log(context: typer.Context, value: str | None) -> str | None:
    from cluster import logs

    # `cloze submit` parses a verb for its job, whose messages are not this process's.
    if value and context.parent is not None:
        logs.start(value)
    return value


LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        "--log-format",
        help="Messages on stderr: text, or one JSON object a line; else CLOZE_LOG says it.",
        callback=_start_log,
        is_eager=True,
    ),
]
"""For verbs that take long; the value is used as soon as it is read."""
SMALLEST_COLUMN = 8
"""Characters of a cell that a column without room for its words still gets."""
MOST_FRAMED = 1000
"""Rows of a table with a frame."""


Column = str | Callable[[Any], Any]
"""A cell of a row: its key or attribute, or a function of the row."""


def show(
    value: Any,
    title: str,
    *,
    as_json: bool,
    columns: Mapping[str, Column] | Sequence[str] = (),
    copied: Collection[str] = (),
) -> bool:
    """Print a result: JSON for programs; for people, names and values of a mapping or a table of rows.

    Args:
        value: a mapping or a list of rows; a dataclass counts as a mapping.
        columns: what the table shows of a row by heading, or keys that are headings too.

    Returns:
        Whether it was printed for people, who may get more.
    """

    def plain(one: Any) -> Any:
        return asdict(one) if is_dataclass(one) and not isinstance(one, type) else one

    if as_json:
        print_json([plain(row) for row in value] if isinstance(value, list) else plain(value))
    elif isinstance(value, list):
        chosen = columns if isinstance(columns, Mapping) else {name: name for name in columns}
        print_table(title, chosen, value, copied)
    else:
        print_mapping(title, plain(value))
    return not as_json


def print_json(value: Any) -> None:
    """Print `value` as indented JSON on stdout."""
    sys.stdout.write(json_text(value) + "\n")


def json_text(value: Any) -> str:
    """`value` as indented JSON, without credentials."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return escaped(without_credentials(orjson.dumps(value, option=options, default=str).decode()))


def print_table(
    title: str,
    columns: Sequence[str] | Mapping[str, Column],
    rows: Sequence[Any],
    copied: Collection[str] = (),
) -> None:
    """Print rows as a table; numbers are aligned to the right. Without columns there is no header.

    Args:
        columns: headings of rows of cells; or by heading, what the table shows of a row.
        copied: columns whose cells are not folded, so that they can be copied, as far as the terminal is wide enough.
    """
    if isinstance(columns, Mapping):
        rows = cells_of(rows, columns)
    title, columns = visible(title), [*map(visible, columns)]
    cells = [[shown(cell) for cell in row] for row in rows]
    num_columns = len(columns) or (len(rows[0]) if rows else 0)
    numeric = [
        bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        for number in range(num_columns)
    ]
    if columns and len(rows) > MOST_FRAMED:
        _print_lines(title, columns, cells, numeric)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A word of the title is not folded at the width of a narrow table, so that it can be found and copied.
    widest = min(max(map(len, title.split()), default=0), 120)
    table = Table(title=title, title_justify="left", show_header=bool(columns), min_width=widest)
    console = Console(width=None if sys.stdout.isatty() else 120)
    borders = 3 * len(columns) + 1
    widths = [max((len(row[number]) for row in cells), default=0) for number in range(len(columns))]
    wanted = [max(len(column), width) for column, width in zip(columns, widths, strict=True)]
    words = [max(map(len, column.split()), default=0) for column in columns]
    least = [max(word, numeric[place] * widths[place]) for place, word in enumerate(words)]
    # Too wide as it is, but it fits with a word of its headings in each line and digits unbroken.
    whole = sum(least) + borders <= console.width < sum(wanted) + borders
    taken = [wanted[place] if name in copied else SMALLEST_COLUMN for place, name in enumerate(columns)]
    kept = copied if sum(taken) + borders <= console.width else ()
    for number, column in enumerate(columns or [""] * num_columns):
        heading = column.replace(" ", "\n") if whole and widths[number] < len(column) else column
        no_wrap = (whole and numeric[number]) or column in kept
        justify = "right" if numeric[number] else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=no_wrap)
    for row in cells:
        # Brackets are part of texts, such as [MASK], and never markup.
        table.add_row(*map(Text, row))
    console.print(table)


def cells_of(rows: Sequence[Any], columns: Mapping[str, Column]) -> list[list[Any]]:
    """The cells of each row."""

    def cell(row: Any, column: Column) -> Any:
        if callable(column):
            return column(row)
        return row.get(column) if isinstance(row, Mapping) else getattr(row, column)

    return [[cell(row, column) for column in columns.values()] for row in rows]


def _print_lines(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    """Every row as one line, however long: a frame around ten thousand rows takes ten seconds, and is searched with
    other tools anyway."""
    lines = [columns, *([" ".join(cell.splitlines()) for cell in row] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sys.stdout.write(title + "\n")
    for line in lines:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def print_mapping(title: str, values: Mapping[str, Any]) -> None:
    """Print names and values as a two-column table."""
    print_table(title, (), [(name, shown(value)) for name, value in values.items()])


def print_line(text: str, *, err: bool = False) -> None:
    """Print texts of strangers, such as titles, errors and what a network writes, without what would act on the
    terminal."""
    typer.echo(visible(text), err=err)


def print_text(console: Console, text: str) -> None:
    """Print a text of a corpus or of a stranger as it is, but for what would act on the terminal."""
    console.print(visible(text), markup=False)


def require_place(html: Path | None) -> None:
    """Refuse a page that could not be written, before the work for it is done."""
    from cluster.artefacts.errors import MissingInputError

    if html is not None and not html.absolute().parent.is_dir():
        raise MissingInputError(
            f"There is no directory {html.parent} to write {html.name} into.",
            next_step=f"`mkdir -p {html.parent}`, or name another file",
        )


def write_page(html: Path, text: str) -> None:
    """Write a page, and say so on stderr."""
    from cluster.artefacts.storage import storage_errors

    with storage_errors(html):
        html.write_text(text, encoding="utf-8")
    print(f"written: {html}", file=sys.stderr)


def warn_of_damage(stores: Iterable[TokenStore]) -> None:
    """Print on stderr which of the shown files differ from their manifests."""
    from cluster.artefacts.storage import describe_damage

    for store in stores:
        if damage := describe_damage(store.path, store.manifest):
            print_line(f"{store.place} is {damage}\nNext: cloze data verify {store.place}", err=True)


def duration(seconds: float, digits: int = 1) -> str:
    """Seconds in the largest unit with a value of at least two, such as `3.5 h`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.{digits}f} {unit}"
    return f"{seconds:,.{digits}f} s"


def shown(value: Any) -> str:
    """A value as people read it: thousands separated, four significant digits, lists and settings as one line, such as
    `kind unigram, vocab_size 32,768`, without the settings that are unset."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, Mapping):
        value = [
            f"{name} ({shown(one)})" if isinstance(one, Mapping) else f"{name} {shown(one)}"
            for name, one in value.items()
            if one not in (None, [], {})
        ]
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return visible(without_credentials(str(value)))
