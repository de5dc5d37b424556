"""`cloze schema`: every setting of the YAML files."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.output import print_json, print_table

_KIND_HELP = (
    "`data`, `pretrain`, `finetune`, `prompt`, `probe`, `road`, `ladder`, a kind of `cloze cluster render`; after a dot"
    " a part: `data.filters.pii`, `pretrain.optimizer`."
)


def schema(
    kind: Annotated[str | None, typer.Argument(help=_KIND_HELP, show_default=False)] = None,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON Schema for editors.")
    ] = False,
) -> None:
    """Print every setting with its type, default, unit and meaning."""
    from cluster.artefacts.errors import ConfigError
    from pipeline.config import reference as config_reference
    from pipeline.config.problems import nearest

    if kind is None:
        rows = [[name, (config_reference.reference(name)[0]).meaning] for name in config_reference.KINDS]
        print_table("kinds of YAML files; `cloze schema KIND` prints the settings of one", ("kind", ""), rows)
        return
    name, _, part = kind.partition(".")
    if name not in config_reference.KINDS:
        near = nearest(name, config_reference.KINDS)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"There is no kind {name} of YAML files.",
            next_step=f"{hint}There are {', '.join(config_reference.KINDS)}",
        )
    if json_schema:
        print_json(config_reference.json_schema(name))
        return
    sections = config_reference.reference(name)
    chosen = [each for each in sections if not part or each.key == part or each.key.startswith(f"{part}.")]
    if not chosen:
        keys = [each.key for each in sections if each.key]
        near = nearest(part, keys)
        hint = f"did you mean {name}.{near}? " if near else ""
        raise ConfigError(
            f"{name} files have no settings below {part}.", next_step=f"{hint}There are {', '.join(keys)}"
        )
    for section in chosen:
        rows = [[each.name, each.type, each.default, each.meaning] for each in section.settings]
        title = f"{name}.{section.key}".rstrip(".") + f": {section.meaning}"
        print_table(title, ("setting", "type", "default", "meaning"), rows)
