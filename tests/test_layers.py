"""The tree keeps its promises: imports point downwards, help is instant, and no machine is named."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = ("cluster", "models", "data_prep", "pipeline")
FLOORS = (
    *("cli commands", "api", "road", "preparation", "pretrain", "ask", "tune", "tasks", "watch"),
    *(
        "plan inspect export",
        "checkpoint",
        "engine",
        "run",
        "objectives optimizers",
        "samples",
        "config",
        "terms",
    ),
)
"""The folders and modules of `pipeline/`, from the top floor down. A folder imports from the floors below it only."""
PRIVATE_DOORS = ("pipeline/engine/deepspeed/", "cluster/ray_internals.py")
"""Where names may be used that a third party keeps for itself; each has a test that looks them up."""
DOCUMENTED = {"os._exit", "._asdict", "._replace", "._fields"}
"""Names with an underscore that Python documents."""
UNDOCUMENTED = {"numba.config.reload_config"}
"""Names without an underscore that no documentation has."""
INTERNAL = re.compile(
    r"(?:^|\.)(?:_(?!_)\w+|internals?)(?:\.|$)|^ray\.(?:dashboard|autoscaler)\b|^mwxml\.element_iterator"
)
"""Modules that a third party keeps for itself."""
HEAVY = {
    *("torch", "deepspeed", "ray", "mlflow", "transformers", "datasets", "pyarrow", "accelerate", "numpy"),
    *("prometheus_client", "omegaconf", "tokenizers", "sklearn", "scipy"),
}
"""What only the verb that needs it may import."""
SLOWEST = {"torch", "ray", "mlflow", "deepspeed", "pandas", "transformers", "accelerate"}
"""What no verb imports that only looks at what is there: each takes longer than all of ours."""
HOME_PATHS = re.compile(r"(?<![\w.*}])/(home|Users|root)/\w")
BINARY = {".png", ".gz", ".bz2", ".arrow", ".parquet"}

FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    ("importers", "imported"),
    [
        pytest.param("cluster/", r"(models|data_prep|pipeline)\b", id="cluster"),
        pytest.param("models/", r"(cluster|data_prep|pipeline|ray|deepspeed|mlflow)\b", id="models"),
        pytest.param("data_prep/", r"(models|pipeline)\b", id="data_prep"),
        pytest.param("cluster/artefacts/", r"(cluster(?!\.artefacts)|ray)\b", id="artefacts"),
        pytest.param("(?!pipeline/engine/deepspeed/)", r"deepspeed\b", id="deepspeed"),
        pytest.param(
            "(?!pipeline/engine/)", r"pipeline\.engine\.deepspeed(?!\.engine\b)", id="behind the engine"
        ),
    ],
)
def test_nothing_imports_what_lies_above_it_or_behind_a_door(importers: str, imported: str):
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in FILES
        if re.match(importers, name_of(path))
        for line, name in imports_of(path)
        if re.match(imported, name)
    ]
    assert wrong == []


def test_folders_of_the_pipeline_import_from_lower_floors_only():
    height = {folder: -number for number, floor in enumerate(FLOORS) for folder in floor.split()}
    folders = {path.name for path in (ROOT / "pipeline").iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(height) - {"cli", "api", "preparation", "terms"}
    upwards = {
        f"{importer} -> {imported}"
        for importer, imports in MODULES.items()
        for imported in imports
        if importer.startswith("pipeline.") and imported.startswith("pipeline.")
        for above, below in [(importer.split(".")[1], imported.split(".")[1])]
        if above != below and height[above] <= height[below] and {above, below} != {*FLOORS[0].split()}
    }
    assert upwards == set()


def test_one_file_knows_whether_a_place_is_remote():
    asked = re.compile(r"""["']://["']|["']file://|\bis_(?:uri|remote)\b""")
    found = {name_of(path) for path in FILES if asked.search(path.read_text(encoding="utf-8"))}
    # Addresses in texts that are shown, and of Ray's clusters, are no places.
    assert found == {
        "cluster/artefacts/places.py",
        "cluster/artefacts/credentials.py",
        "cluster/connecting.py",
    }


def test_no_modules_import_each_other_by_any_way_round():
    left = {name: set(imports) - {name} for name, imports in MODULES.items()}
    # What neither imports nor is imported by any module that is left belongs to no circle.
    while ends := {
        name
        for name, imports in left.items()
        if not imports or not any(name in others for others in left.values())
    }:
        left = {name: imports - ends for name, imports in left.items() if name not in ends}
    assert not left, f"in circles, or between two of them: {sorted(left)}"


def test_private_names_of_others_are_used_behind_two_doors_and_in_no_test():
    found = {
        f"{name_of(path)}:{use}"
        for path in [*FILES, *sorted((ROOT / "tests").rglob("*.py"))]
        if not name_of(path).startswith(PRIVATE_DOORS)
        for use in private_uses(path.read_text())
    }
    assert found == set()


def test_the_check_sees_private_modules_names_and_attributes():
    program = """
        from hypothesis.internal import floats
        from cluster.shards import _run as run
        def f(engine, monkeypatch):
            os._exit(engine._asdict())
            monkeypatch.setattr("cluster.shards._own", None)
            return engine._state, getattr(engine, "_hidden")
        class C:
            def __init__(self): self._own = 1
            def _apply(self, fn): return super()._apply(fn), numba.config.reload_config()
    """
    seen = "hypothesis.internal.floats cluster.shards._run cluster.shards._own engine._state _hidden"
    seen += " super()._apply numba.config.reload_config"
    assert [use.partition(": ")[2] for use in private_uses(dedent(program))] == seen.split()


def test_versions_of_what_is_used_behind_the_doors_are_bounded_above():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounded = {line.name for line in map(Requirement, lines) if "<" in str(line.specifier)}
    assert {"ray", "deepspeed", "torch", "py3langid"} <= bounded


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]):
    imported = modules_after(
        "import sys, pipeline.cli\n"
        f"sys.argv = ['cloze', *{arguments!r}]\n"
        "try: pipeline.cli.main()\n"
        "except SystemExit as end: assert not end.code"
    )
    assert HEAVY.isdisjoint(imported)


def test_verbs_that_only_look_import_neither_torch_nor_ray_nor_mlflow(tmp_path: Path, store: Path):
    from pipeline.checkpoint.store import store_of
    from pipeline.run.directory import RunDirectory
    from tests.pipeline.small_checkpoints import state_at, write_files
    from tests.pipeline.tune.written_scores import score_of, write_artefact
    from tests.pipeline.watch.conftest import watched_run

    one = watched_run(tmp_path, store, "one").path
    write_files(store_of(RunDirectory(one)), state_at(4))
    scores = write_artefact(tmp_path / "moods" / "one@4", [(score_of("moods", {"accuracy": 0.5}, 2), ())])
    verbs = [
        *(f"runs --runs-dir {tmp_path}/runs", f"checkpoints {one}", f"lineage {one}", f"lineage {scores}"),
        *(f"finetune list {tmp_path}", f"finetune show {scores}", f"data verify {store}"),
        *("configs list", "data prepare tiny --dry-run", f"top --once --runs-dir {tmp_path}/runs"),
    ]
    imported = modules_after(
        "from typer.testing import CliRunner\n"
        "from pipeline.commands.verbs import app\n"
        f"for verb in {verbs!r}:\n"
        "    done = CliRunner().invoke(app, verb.split())\n"
        "    assert done.exit_code == 0, (verb, done.output, done.exception)"
    )
    assert "pipeline" in imported
    assert SLOWEST.isdisjoint(imported), SLOWEST & imported


def test_architecture_names_only_what_exists():
    named = re.findall(
        r"`((?:cluster|data_prep|models|pipeline)/[\w./]*)`", (ROOT / "ARCHITECTURE.md").read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_text_of_the_project_names_no_place_on_somebodys_machine():
    own = [f"{path}/" for path in {ROOT, Path.home()} if len(path.parts) > 1]
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if HOME_PATHS.search(line) or any(place in line for place in own)
    ]
    assert found == []


def modules_after(program: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter holds after running a program."""
    program += "\nimport json, sys\nprint(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, at whatever depth."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, str(node.module)


def private_uses(source: str) -> list[str]:
    """`LINE: NAME` of each use of a private module, name or attribute of somebody else, in the order of lines.

    An attribute is a file's own where the file defines it, and does not take it from `super()` or an imported module.
    """
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    others = {"super()"} | {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [(node.lineno, alias.name) for alias in names if INTERNAL.search(alias.name)]
            case ast.ImportFrom(module=str(module), names=names):
                full = [f"{module}.{alias.name}" for alias in names]
                found += [(node.lineno, name) for name in full if INTERNAL.search(name)]
            case ast.Attribute(attr=attr, value=holder) if (
                is_private(attr) and (attr not in own or ast.unparse(holder) in others)
            ) or ast.unparse(node) in UNDOCUMENTED:
                name = ast.unparse(node)
                if not {name, f".{attr}"} & DOCUMENTED:
                    found.append((node.lineno, name))
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=arguments) if (
                called in ("getattr", "setattr", "delattr")
            ):
                names = [one.value for one in arguments[:2] if isinstance(one, ast.Constant)]
                found += [(node.lineno, name) for name in names if is_private(str(name).rpartition(".")[2])]
    return [f"{line}: {name}" for line, name in sorted(found, key=lambda use: use[0])]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def modules_of(path: Path) -> set[str]:
    """Our modules that a file imports, at whatever depth, those for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (submodules & NAMES) or {str(node.module)}
    return found & NAMES


def module_name(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def project_files() -> list[Path]:
    """What belongs to the project: what git tracks or would track; outside a clone, our packages."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode != 0:
        return FILES
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix not in BINARY]


NAMES = {module_name(path) for path in FILES}
MODULES = {module_name(path): modules_of(path) for path in FILES}
"""Our modules that each module imports."""
