"""The settings of a cluster, by the name of their kind or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster.artefacts.errors import ConfigError
from cluster.templates import TEMPLATES
from cluster.templates.base import ClusterTemplate
from pipeline.config.loading import load_config, load_plain
from pipeline.config.problems import nearest
from pipeline.config.shipped import SUFFIX

_FOLDER = "configs/cluster"


def load_template(given: str, overrides: Sequence[str] = ()) -> ClusterTemplate:
    """Settings of a cluster.

    Args:
        given: one of TEMPLATES, which takes the settings that come with cloze, or a YAML file with `kind`.

    Raises:
        ConfigError: every problem at once, or there is no such kind.
        MissingInputError: there is no such file.
    """
    path, kind = Path(f"{_FOLDER}/{given}{SUFFIX}" if given in TEMPLATES else given), given
    if given in TEMPLATES or path.is_file() or given.endswith(SUFFIX):
        kind = str(load_plain(ClusterTemplate, path, overrides).get("kind") or f"in {path}")
        if kind in TEMPLATES:
            return load_config(TEMPLATES[kind], path, overrides)
    near = nearest(kind, TEMPLATES)
    raise ConfigError(
        f"There is no kind of clusters {kind}.{f' Did you mean {near}?' if near else ''}",
        next_step=f"one of {', '.join(TEMPLATES)}, or a YAML file whose `kind` is one of them",
    )
