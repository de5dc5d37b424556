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
    path = Path(f"{_FOLDER}/{given}{SUFFIX}" if given in TEMPLATES else given)
    if given not in TEMPLATES and not path.is_file() and not given.endswith(SUFFIX):
        raise _unknown(given)
    kind = load_plain(ClusterTemplate, path, overrides).get("kind")
    if kind not in TEMPLATES:
        raise _unknown(f"{kind}" if kind else f"in {path}")
    return load_config(TEMPLATES[kind], path, overrides)


def _unknown(kind: str) -> ConfigError:
    near = nearest(kind, TEMPLATES)
    return ConfigError(
        f"There is no kind of clusters {kind}.{f' Did you mean {near}?' if near else ''}",
        next_step=f"one of {', '.join(TEMPLATES)}, or a YAML file whose `kind` is one of them",
    )
