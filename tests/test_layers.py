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
MAY_IMPORT = {
    "cluster": {"cluster"},
    "models": {"models"},
    "data_prep": {"data_prep", "cluster"},
    "pipeline": {"pipeline", "data_prep", "models", "cluster"},
}
"""Our packages that each package may import."""
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"cli", "commands"}),
    frozenset({"api"}),
    frozenset({"road"}),
    frozenset({"preparation"}),
    frozenset({"pretrain"}),
    frozenset({"ask"}),
    frozenset({"tune"}),
    frozenset({"tasks"}),
    frozenset({"watch"}),
    frozenset({"plan", "inspect", "export"}),
    frozenset({"checkpoint"}),
    frozenset({"engine"}),
    frozenset({"run"}),
    frozenset({"objectives", "optimizers"}),
    frozenset({"samples"}),
    frozenset({"config"}),
    frozenset({"terms"}),
)
"""The folders and modules of `pipeline/`, from the top floor down. A folder imports from the floors below it only."""
DEEPSPEED_DOOR = "pipeline/engine/deepspeed/"
"""The only folder that imports deepspeed."""
PRIVATE_DOORS = (DEEPSPEED_DOOR, "cluster/ray_internals.py")
"""Where names may be used that a third party keeps for itself; each has a test that looks them up."""
DOCUMENTED = {"os._exit", "._asdict", "._replace", "._fields"}
"""Names with an underscore that Python documents."""
UNDOCUMENTED = {"numba.config.reload_config"}
"""Names without an underscore that no documentation has."""
INTERNAL = re.compile(
    r"(?:^|\.)(?:_(?!_)\w+|internals?)(?:\.|$)|^ray\.(?:dashboard|autoscaler)\b|^mwxml\.element_iterator"
)
"""Modules that a third party keeps for itself."""
NEVER_IN_MODELS = {"ray", "deepspeed", "mlflow"}
HEAVY = {
    *(
        "torch",
        "deepspeed",
        "ray",
        "mlflow",
        "transformers",
        "datasets",
        "pyarrow",
        "pydantic",
        "accelerate",
        "prometheus_client",
    ),
    *("numpy", "omegaconf", "tokenizers", "sklearn", "scipy"),
}
"""What only the verb that needs it may import."""
SLOWEST = {"torch", "ray", "mlflow", "deepspeed", "pandas", "transformers", "accelerate"}
"""What no verb imports that only looks at what is there: each takes longer than all of ours."""
HOME_PATHS = re.compile(r"(?<![\w.*}])/(home|Users|root)/\w")
BINARY = {".png", ".gz", ".bz2", ".arrow", ".parquet"}

FILES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_downwards_only(package: str):
    ours = set(MAY_IMPORT)
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in imports_of(path)
        if name.partition(".")[0] in ours - MAY_IMPORT[package]
    ]
    assert wrong == []


def test_networks_know_neither_cluster_nor_engine_nor_tracker():
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in sorted((ROOT / "models").rglob("*.py"))
        for line, name in imports_of(path)
        if name.partition(".")[0] in NEVER_IN_MODELS
    ]
    assert wrong == []


def test_folders_of_the_pipeline_import_from_lower_floors_only():
    height = {folder: -number for number, floor in enumerate(FLOORS) for folder in floor}
    folders = {path.name for path in (ROOT / "pipeline").iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(height) - {"cli", "api", "preparation", "terms"}
    upwards = {
        f"{importer} -> {imported}"
        for importer, imports in MODULES.items()
        for imported in imports
        if importer.startswith("pipeline.") and imported.startswith("pipeline.")
        for above, below in [(importer.split(".")[1], imported.split(".")[1])]
        if above != below and height[above] <= height[below] and {above, below} != FLOORS[0]
    }
    assert upwards == set()


def test_artefacts_know_nothing_of_the_cluster():
    above = {
        f"{importer} -> {imported}"
        for importer, imports in MODULES.items()
        for imported in imports
        if importer.startswith("cluster.artefacts") and not imported.startswith("cluster.artefacts")
    }
    ray = {
        f"{name_of(path)}:{line}"
        for path in sorted((ROOT / "cluster" / "artefacts").rglob("*.py"))
        for line, name in imports_of(path)
        if name.partition(".")[0] == "ray"
    }
    assert above | ray == set()


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


def test_deepspeed_is_imported_through_one_door():
    found = {
        f"{name_of(path)} imports {name}"
        for path in FILES
        for _, name in imports_of(path)
        if name.partition(".")[0] == "deepspeed" and not name_of(path).startswith(DEEPSPEED_DOOR)
    }
    assert not found


def test_what_is_behind_the_door_is_imported_by_the_engine_alone():
    found = {
        f"{importer} -> {imported}"
        for importer, imports in MODULES.items()
        for imported in imports
        if imported.startswith("pipeline.engine.deepspeed") and not importer.startswith("pipeline.engine.")
        if imported != "pipeline.engine.deepspeed.engine"
    }
    assert not found


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
        import torch._inductor.config
        from ray._private import worker
        from hypothesis.internal import floats
        from accelerate.commands.launch import _validate
        from cluster.shards import _run as run
        def f(engine, monkeypatch):
            os._exit(engine._asdict())
            monkeypatch.setattr(engine, "_patched", None)
            monkeypatch.setattr("cluster.shards._own", None)
            return engine._state, getattr(engine, "_hidden"), torch._foreach_add_, torch._own
        class C:
            def __init__(self): self._own = 1
            def same(self, other): return self._own == other._own
            def _apply(self, fn): return super()._apply(fn), numba.config.reload_config()
    """
    assert [use.partition(": ")[2] for use in private_uses(dedent(program))] == [
        "torch._inductor.config",
        "ray._private.worker",
        "hypothesis.internal.floats",
        "accelerate.commands.launch._validate",
        "cluster.shards._run",
        "_patched",
        "cluster.shards._own",
        "engine._state",
        "_hidden",
        "torch._foreach_add_",
        "torch._own",
        "super()._apply",
        "numba.config.reload_config",
    ]


def test_versions_of_what_is_used_behind_the_doors_are_bounded_above():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounded = {line.name for line in map(Requirement, lines) if "<" in str(line.specifier)}
    assert {"ray", "deepspeed", "torch", "py3langid"} <= bounded


def test_every_package_is_covered():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(MAY_IMPORT)


def test_the_check_sees_imports_inside_functions(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_text(
        "import os\ndef f():\n    if os:\n        from ray.train import x\n        import mlflow.pyfunc\n"
    )
    assert list(imports_of(path)) == [(1, "os"), (4, "ray.train"), (5, "mlflow.pyfunc")]


def test_command_line_imports_nothing_heavy():
    assert HEAVY.isdisjoint(modules_after("import pipeline.cli"))


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["pretrain", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]):
    imported = modules_after(
        "import sys, pipeline.cli\n"
        f"sys.argv = ['cloze', *{arguments!r}]\n"
        "try: pipeline.cli.main()\n"
        "except SystemExit as end: assert not end.code"
    )
    # typer itself uses pydantic to read the arguments of a verb.
    assert (HEAVY - {"pydantic"}).isdisjoint(imported)


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
        *(["runs", "--runs-dir", tmp_path / "runs"], ["checkpoints", one]),
        *(
            ["lineage", one],
            ["lineage", scores],
            ["finetune", "list", tmp_path],
            ["finetune", "show", scores],
        ),
        *(["data", "verify", store], ["configs", "list"], ["data", "prepare", "tiny", "--dry-run"]),
    ]
    imported = modules_after(
        "from typer.testing import CliRunner\n"
        "from pipeline.commands.verbs import app\n"
        f"for verb in {[[str(word) for word in verb] for verb in verbs]!r}:\n"
        "    done = CliRunner().invoke(app, verb)\n"
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
