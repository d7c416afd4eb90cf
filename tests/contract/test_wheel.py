"""A wheel that was built without a compiler: for every machine, and all of it works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from holdfast_run import VICTIMS, environment

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
pytestmark = pytest.mark.slow


def done(*words: str | Path, **how: object) -> str:
    answer = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, check=False, **how)  # type: ignore[call-overload]
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return str(answer.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "made/src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "made")
    build = (*PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, folder / "made")
    done(*build, env={**os.environ, "CC": "false", "CXX": "false"})
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The commands of an environment that has the wheel, and sees the packages of this one."""
    home = wheel.parent / "environment"
    done(sys.executable, "-m", "venv", "--without-pip", home)
    done(*PIP, "--python", home / "bin/python", "install", "--no-deps", "--no-index", wheel)
    (packages,) = home.glob("lib/python*/site-packages")
    import torch

    beside = {sysconfig.get_paths()["purelib"], str(Path(torch.__file__).parents[1])}
    (packages / "beside.pth").write_text("\n".join(beside) + "\n")
    return home / "bin"


def test_it_is_tagged_for_every_machine(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_doctor_says_once_what_runs_in_pure_python(installed: Path, tmp_path: Path) -> None:
    words = (installed / "holdfast", "doctor", "--only", "compiled-parts", "--only", "packages", "--json")
    checks = json.loads(done(*words, cwd=tmp_path, env=environment(tmp_path)))["checks"]
    told = {one["check"]: one for one in checks if "pure Python" in one["message"]}
    assert list(told) == ["compiled-parts"] and told["compiled-parts"]["verdict"] == "note"


def test_a_training_is_recorded(installed: Path, tmp_path: Path) -> None:
    own = environment(tmp_path, PATH=f"{installed}{os.pathsep}{os.environ['PATH']}")
    script = VICTIMS / "trains_a_little.py"
    done(installed / "holdfast", "run", "--name", "a", "--", "python", script, cwd=tmp_path, env=own)
    asked = (installed / "holdfast", "query", "a", "select count(*) as n, count(grad_norm) as norms from steps", "--json")
    assert json.loads(done(*asked, cwd=tmp_path, env=own)) == [{"n": 20, "norms": 20}]
    where = done(installed / "python", "-c", "import holdfast; print(holdfast.__file__)", cwd=tmp_path, env=own)
    assert str(installed.parent) in where, "the wheel was not what ran"
