"""The comparison of two runs as one self-contained HTML page, and where MLflow draws their curves."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.artefacts.visible import finalize
from pipeline.run.directory import RunInfo
from pipeline.run.tracking import runs_page

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{{ names | join(" and ") }}</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .8rem .2rem 0; text-align: left;
vertical-align: top; border-bottom: 1px solid #8886; overflow-wrap: anywhere }
</style></head><body>
<h1>{{ names | join(" and ") }}</h1>
{% for title, rows in tables %}<h2>{{ title }}</h2>
{% if rows %}<table><tr><th></th>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% else %}<p>none</p>{% endif %}
{% endfor %}
<h2>curves</h2>
<p>{{ curves }}</p>
</body></html>
"""


def page(names: Sequence[str], tables: Sequence[tuple[str, Sequence[Sequence[str]]]], curves: str) -> str:
    """HTML of one page without scripts, images or links to other files.

    Args:
        names: of the two runs.
        tables: (title, rows); a row is a label and a cell for each run.
        curves: where the curves are drawn.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_PAGE).render(names=names, tables=tables, curves=curves)


def curves_in_mlflow(left: RunInfo, right: RunInfo) -> str:
    """The command to type and the address to open for the curves of two runs in MLflow's own charts."""
    stores = {left.tracking_uri, right.tracking_uri}
    if len(stores) > 1 or "" in stores:
        return "The runs are not in one MLflow tracking store, which could draw their curves together."
    (uri,) = stores
    ids = sorted({left.experiment_id, right.experiment_id})
    return runs_page(uri, ids, (left.run_id, right.run_id))
