"""`cloze doctor`: are this machine and the nodes of a cluster fit to run, and what to type if not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands import output

if TYPE_CHECKING:
    from cluster.checks.machine import Check, Places
    from cluster.checks.nodes import NodeReport


def doctor(
    runs_dir: output.RunsDir = Path("runs"),
    data_dir: Annotated[
        Path | None, typer.Option(envvar="CLOZE_DATA", help="Directory of the corpora.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster, HOST:6379 or auto, whose nodes are all checked; default: the environment's."
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes that the cluster must have; waits for them two minutes.")
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Check this machine and, with a cluster, every node of it; exit code 1 when something fails.

    Python, packages, memory, disks, tracking; of a cluster also equal versions, shared storage, clocks, and
    all-reduce between nodes.
    """
    import os
    from dataclasses import asdict

    from cluster.checks.machine import Places, run_checks
    from cluster.connecting import await_head, named_address

    places = Places(
        runs_dir=runs_dir,
        data_dir=data_dir,
        ray_address=named_address(address),
        tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"),
    )
    if nodes is not None and places.ray_address is not None:
        await_head(places.ray_address)
    checks = run_checks(places)
    more, reports = _look_at_nodes(places, nodes)
    checks += more
    found = [*checks, *(check for report in reports for check in report.checks)]
    counts = {status: sum(check.status == status for check in found) for status in ("ok", "warn", "fail")}
    if as_json:
        own = [asdict(check) for check in checks]
        others = [{"status": report.status, **asdict(report)} for report in reports]
        output.print_json({"ok": not counts["fail"], "checks": own, "nodes": others})
    else:
        columns = {"check": "name", "": "status", "found": "found", "what to do": "remedy"}
        output.print_table("this machine", columns, checks)
        if reports:
            columns = ("node", "", "found", "what to do")
            output.print_table("nodes of the cluster", columns, _node_rows(reports))
        typer.echo(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed")
    if counts["fail"]:
        raise typer.Exit(1)


def _look_at_nodes(places: Places, num_nodes: int | None) -> tuple[list[Check], list[NodeReport]]:
    """Reports about all nodes of the cluster, or a check that says why there are none."""
    from cluster.artefacts.errors import ClusterUnreachableError
    from cluster.checks.machine import Check
    from cluster.checks.nodes import check_nodes

    address = places.ray_address
    if address is None:
        return [], []
    if address.startswith(("http://", "https://")):
        remedy = f"cloze submit --address {address} --wait -- doctor --address auto"
        return [Check("nodes", "warn", "not checked: a dashboard does not lead to the nodes", remedy)], []
    try:
        return [], check_nodes(address, places, num_nodes=num_nodes)
    except ClusterUnreachableError as error:
        return [Check("nodes", "fail", error.problem, error.next_step)], []


def _node_rows(reports: list[NodeReport]) -> list[tuple[str, str, str, str]]:
    """A verdict for every node, followed by the checks of it that did not pass."""
    rows = []
    for report in reports:
        wanting = [check for check in report.checks if check.status != "ok"]
        rows.append((report.node, report.status, f"{len(report.checks) - len(wanting)} checks ok", ""))
        rows += [("", check.status, f"{check.name}: {check.found}", check.remedy) for check in wanting]
    return rows
