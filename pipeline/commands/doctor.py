"""`cloze doctor`: is this machine fit to run, and what to type if not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.output import Json, RunsDir, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add this file's verb to the command line."""
    app.command()(doctor)


def doctor(
    runs_dir: RunsDir = Path("runs"),
    data_dir: Annotated[
        Path | None, typer.Option(envvar="CLOZE_DATA", help="Directory of the corpora.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to check; default: the environment's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check Python, packages, compiler, memory, disks, Ray and tracking; exit code 1 when something fails."""
    import os
    from dataclasses import asdict

    from cluster.connecting import named_address
    from cluster.preflight import Places, run_checks

    places = Places(
        runs_dir=runs_dir,
        data_dir=data_dir,
        ray_address=named_address(address),
        tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"),
    )
    checks = run_checks(places)
    failed = sum(check.status == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        rows = [(check.name, check.status, check.found, check.remedy) for check in checks]
        print_table("this machine", ("check", "", "found", "what to do"), rows)
        warned = sum(check.status == "warn" for check in checks)
        typer.echo(f"{len(checks) - failed - warned} ok, {warned} to look at, {failed} failed")
    if failed:
        raise typer.Exit(1)
