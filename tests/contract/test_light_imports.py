"""The part inside the training process loads only torch, numpy and the standard library."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
STARTER = SOURCE / "inside" / "site" / "sitecustomize.py"
INSIDE = sorted(
    [
        SOURCE / "errors.py",
        SOURCE / "memory_errors.py",
        SOURCE / "version.py",
        SOURCE / "environment" / "cgroup.py",
        *(SOURCE / "signals").rglob("*.py"),
        *(SOURCE / "checkpoints").rglob("*.py"),
        *(SOURCE / "matching").rglob("*.py"),
        *(SOURCE / "state").rglob("*.py"),
        *(SOURCE / "inside").rglob("*.py"),
        *(SOURCE / "drills" / name for name in ("fault.py", "plan.py")),
        *(SOURCE / "drills" / "faults").rglob("*.py"),
        *(SOURCE / "drills" / "injection").rglob("*.py"),
    ]
)
_DRILLS = ("holdfast.drills.fault", "holdfast.drills.plan", "holdfast.drills.injection")  # what runs and scores them is outside
_UNITS = ("signals", "checkpoints", "matching", "environment.cgroup", "state", "inside")
OWN = (
    "holdfast.errors",
    "holdfast.memory_errors",
    "holdfast.units",
    "holdfast.version",
    *(f"holdfast.{unit}" for unit in _UNITS),
    *_DRILLS,
)
ALLOWED = {"torch", "numpy", *sys.stdlib_module_names}
READERS = {("keras_file.py", "h5py")}  # in a function, for a file that Keras has written with the same package

LOAD_ALL = """
import importlib, json, pkgutil, sys
import numpy, torch
before = set(sys.modules)
import holdfast.drills.faults, holdfast.drills.injection, holdfast.errors, holdfast.inside, holdfast.signals, holdfast.state
for package in (holdfast.drills.faults, holdfast.drills.injection, holdfast.inside, holdfast.signals, holdfast.state):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if ".site" not in module.name:
            importlib.import_module(module.name)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps({"new": sorted(new), "loaded": sorted(n for n in sys.modules if n.startswith("holdfast"))}))
"""


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, in functions too; what stands under TYPE_CHECKING is never loaded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            module = node.module or ""
            yield from ([f"holdfast.{name.name}" for name in node.names] if module == "holdfast" else [module])
        yield from imports_of(node)


def test_what_runs_inside_the_training_names_no_other_package() -> None:
    foreign = [
        f"{file} imports {module}"
        for file in INSIDE
        for module in imports_of(ast.parse(file.read_text(encoding="utf-8")))
        if module.split(".")[0] not in ALLOWED and module != "holdfast" and not module.startswith(OWN)
        if (file.name, module) not in READERS
    ]
    assert not foreign, "\n".join(foreign)


def test_loading_all_of_it_adds_nothing_to_a_process_that_has_torch() -> None:
    answer = subprocess.run([sys.executable, "-c", LOAD_ALL], capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout.splitlines()[-1])
    assert {"holdfast.signals.recorder", "holdfast.drills.faults.nan_batch"} <= set(seen["loaded"])
    assert not {"holdfast.drills.trial", "holdfast.drills.score"} & set(seen["loaded"]), "a training loads what scores it"
    foreign = set(seen["new"]) - ALLOWED - {"holdfast"}
    assert not foreign, f"importing holdfast.inside also loads {sorted(foreign)}"


@pytest.mark.skipif(not STARTER.exists(), reason="inside/site/sitecustomize.py is not there")
def test_starting_python_under_holdfast_run_loads_only_the_standard_library() -> None:
    tree = ast.parse(STARTER.read_text(encoding="utf-8"))
    for node in tree.body:
        for module in imports_of(ast.Module([node], [])) if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            assert module.split(".")[0] in sys.stdlib_module_names, f"sitecustomize.py imports {module} at its top"


BEFORE_THE_SCRIPT = """
import json, os, sys
before = set(sys.modules)
def spawn(*_, **__):
    print(json.dumps(sorted(set(sys.modules) - before)), flush=True)
    os._exit(0)
os.posix_spawn = spawn
from holdfast.cli.main import main
sys.argv = ["holdfast", "run", "--", sys.executable, "-c", "pass"]
main()
"""


def test_holdfast_run_starts_the_script_before_it_loads_anything_but_its_own_supervisor(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEFORE_THE_SCRIPT]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stderr
    loaded = [name.split(".") for name in json.loads(answer.stdout)]
    assert {top for top, *_ in loaded} - set(sys.stdlib_module_names) == {"holdfast"}
    assert {names[1] for names in loaded if names[0] == "holdfast" and names[1:]} == {
        *("cli", "environment", "errors", "inside", "probe", "signals", "supervisor", "version")
    }
    assert [names for names in loaded if names[:2] == ["holdfast", "environment"]][1:] == [
        ["holdfast", "environment", "interpreter"]
    ], "which Python is meant, and nothing else of it"


LOADED_BY_DOCTOR = """
import sys
from holdfast.cli.main import main
sys.argv = ["holdfast", "doctor"]
try:
    main()
finally:
    print("loaded:", *({"numpy", "torch", "pyarrow", "psutil"} & set(sys.modules)))
"""


def test_doctor_loads_neither_numpy_nor_torch_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADED_BY_DOCTOR]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert answer.stdout.splitlines()[-1] == "loaded: psutil", answer.stdout + answer.stderr
