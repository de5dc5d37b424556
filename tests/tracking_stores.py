"""New tracking stores in this process are copies of one with all tables: MLflow makes a new one in sixty migrations,
which take a second of a processor."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster.artefacts.private import private_cache
from pipeline.run.tracking import connect


@contextmanager
def copied_stores() -> Iterator[None]:
    """A new `mlflow.db` is a copy of one that has all tables and no experiments."""
    from sqlalchemy import Engine, event

    empty = private_cache() / f"mlflow-{version('mlflow')}.db"
    if not empty.exists():
        _make(empty)

    def copy(dialect: Any, record: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        path = Path(str(arguments[0])) if dialect.name == "sqlite" and arguments else empty
        if path.name == "mlflow.db" and path.parent.is_dir() and not path.exists():
            # Another process may open it at the same time, and must find none or all of it.
            with TemporaryDirectory(dir=path.parent) as own, suppress(FileExistsError):
                os.link(shutil.copyfile(empty, Path(own, path.name)), path)

    event.listen(Engine, "do_connect", copy)
    yield
    event.remove(Engine, "do_connect", copy)


def _make(path: Path) -> None:
    """Have MLflow make a store, and leave its tables."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    connect(f"sqlite:///{made}").search_experiments()
    with closing(sqlite3.connect(made)) as database, database:
        database.execute("DELETE FROM experiments")
    made.replace(path)
