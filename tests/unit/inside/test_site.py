"""The way into a script that nobody changed: `inside/site` first on PYTHONPATH, as `holdfast run` puts it.

A small `torch` of our own stands in for the real one, and a small `holdfast.inside.arm` where it must not matter what
the real one does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

SITE = Path(__file__).parents[3] / "src" / "holdfast" / "inside" / "site"
SAY = "import json, sys; print(json.dumps({'armed': getattr(sys, 'armed', 0)}))"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small torch, and a copy of the site folder inside a small holdfast that counts how often it armed."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "import os\nif os.environ.get('BROKEN'): raise ImportError('libfoo.so is missing')"
    )
    package = tmp_path / "away" / "holdfast"
    (package / "inside").mkdir(parents=True)
    shutil.copytree(SITE, package / "inside/site", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, package / "inside"):
        (folder / "__init__.py").touch()
    arm = "import sys\ndef arm_from_environment(): sys.armed = getattr(sys, 'armed', 0) + 1\n"
    (package / "inside/arm.py").write_text(arm)
    (tmp_path / "away/numpy.py").write_text("raise SystemExit('the neighbours of holdfast leaked in')")
    return tmp_path


def python(
    place: Path, *words: str, watched: bool = True, user: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Python as `holdfast run` would start it, without site-packages that hold the real holdfast or torch."""
    path = [str(place / "away/holdfast/inside/site"), *([str(user)] if user else []), str(place)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PYTHON"))}
    env = {**kept, "PYTHONPATH": os.pathsep.join(path), **({"HOLDFAST_RUN": "/run"} if watched else {}), **more}
    return subprocess.run([bare_python(), *words], env=env, capture_output=True, text=True, cwd=place, check=False, timeout=600)


def bare_python() -> str:
    """The Python under this virtual environment: it knows neither holdfast nor torch."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def armed_in(place: Path, code: str, **more: str) -> int:
    done = python(place, "-c", f"{textwrap.dedent(code)}\n{SAY}", **more)
    assert done.stderr == "", done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["armed"])


def test_importing_torch_arms_once(place: Path) -> None:
    assert armed_in(place, "import torch, importlib; import torch; importlib.reload(torch)") == 1


def test_a_process_that_never_imports_torch_is_left_alone(place: Path) -> None:
    assert armed_in(place, "import sys; assert not any(name.startswith('holdfast.') for name in sys.modules)") == 0


def test_looking_whether_torch_is_there_does_not_arm(place: Path) -> None:
    assert armed_in(place, "import importlib.util; assert importlib.util.find_spec('torch')") == 0
    assert armed_in(place, "import importlib.util; importlib.util.find_spec('torch'); import torch") == 1


def test_outside_of_a_run_nothing_is_armed(place: Path) -> None:
    assert armed_in(place, "import torch", watched=False) == 0


def test_no_trace_is_left_in_the_import_system(place: Path) -> None:
    code = """
    import sys
    import torch
    assert torch.__spec__.loader is torch.__loader__
    assert 'exec_module' not in vars(torch.__loader__), vars(torch.__loader__)
    assert type(torch.__loader__).__name__ == 'SourceFileLoader'
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == 'TorchFinder']
    assert not [entry for entry in sys.path if entry.endswith('site') or entry.endswith('away')], sys.path
    """
    assert armed_in(place, code) == 1


def test_a_torch_that_cannot_be_imported_fails_as_it_would_alone_and_arms_when_it_can(place: Path) -> None:
    code = """
    import os
    os.environ['BROKEN'] = '1'
    try: import torch
    except ImportError as error: assert str(error) == 'libfoo.so is missing'
    else: raise AssertionError
    del os.environ['BROKEN']
    import torch
    """
    assert armed_in(place, code) == 1


def test_a_missing_torch_is_the_same_error_as_without_us(place: Path) -> None:
    shutil.rmtree(place / "torch")
    done = python(place, "-c", "import torch")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"
    assert "holdfast" not in done.stderr


@pytest.mark.parametrize("text", ["raise RuntimeError", "import not_there", "this is no python"])
def test_an_arming_that_fails_does_not_reach_the_script(text: str, place: Path) -> None:
    (place / "away/holdfast/inside/arm.py").write_text(text)
    assert armed_in(place, "import torch") == 0


def test_the_users_own_sitecustomize_runs_and_is_the_one_in_sys_modules(place: Path) -> None:
    user = place / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text("import sys; sys.mine = __name__, __file__")
    code = f"""
    import sys, sitecustomize
    assert sys.mine == ('sitecustomize', {str(user / "sitecustomize.py")!r}), sys.mine
    assert sitecustomize.__file__ == sys.mine[1] and sitecustomize.__spec__.origin == sys.mine[1]
    import torch
    """
    assert armed_in(place, code, user=user) == 1


@pytest.mark.parametrize("text", ["raise ValueError('mine')", "import not_there", "this is no python"])
def test_an_error_in_the_users_sitecustomize_reads_as_without_us(text: str, place: Path) -> None:
    user = place / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text(text)
    with_us = python(place, "-c", "import torch, sys; print(sys.armed)", user=user)
    env = {**os.environ, "PYTHONPATH": str(user)}
    alone = subprocess.run([bare_python(), "-c", ""], env=env, capture_output=True, text=True, check=False)
    assert with_us.stdout == "1\n"
    assert with_us.stderr == alone.stderr != ""


def test_without_a_sitecustomize_of_the_users_there_is_none(place: Path) -> None:
    done = python(place, "-c", "import sitecustomize")
    assert "No module named 'sitecustomize'" in done.stderr.splitlines()[-1] or "/usr/" in done.stderr


def test_holdfast_can_be_imported_where_it_is_not_installed_and_its_neighbours_cannot(place: Path) -> None:
    code = """
    import holdfast, sys
    try: import numpy
    except ImportError: pass
    import torch
    import holdfast.inside.arm
    """
    assert armed_in(place, code) == 1


def test_a_folder_called_holdfast_beside_the_script_is_not_mistaken_for_the_package(place: Path) -> None:
    (place / "holdfast/docs").mkdir(parents=True)
    assert armed_in(place, "import torch") == 1


def test_it_works_for_scripts_and_modules(place: Path) -> None:
    (place / "train.py").write_text(f"import torch\n{SAY}")
    for words in (["train.py"], ["-m", "train"]):
        assert json.loads(python(place, *words).stdout) == {"armed": 1}


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_python_is_simply_not_watched(option: str, place: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(place)!r}); import torch; {SAY}"
    assert json.loads(python(place, option, "-c", code).stdout) == {"armed": 0}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing_are_armed_too(method: str, place: Path) -> None:
    (place / "train.py").write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys

        def work(queue):
            import torch
            queue.put(getattr(sys, "armed", 0))

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get(timeout=600))
            child.join()
        """)
    )
    done = python(place, "train.py")
    assert done.stdout == "1\n", done.stderr


def test_a_virtual_environment_of_the_users_is_watched_without_holdfast_in_it(place: Path) -> None:
    venv.create(place / "venv", symlinks=True, with_pip=False)
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    shutil.move(place / "torch", packages / "torch")
    env = {**os.environ, "PYTHONPATH": str(place / "away/holdfast/inside/site"), "HOLDFAST_RUN": "/run"}
    words = [place / "venv/bin/python", "-c", f"import torch; {SAY}"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == {"armed": 1}, done.stderr


def test_a_python_without_torch_loads_one_small_file_more(place: Path) -> None:
    say = "import sys; print(*sys.modules)"
    alone = subprocess.run([bare_python(), "-c", say], capture_output=True, text=True, check=True).stdout.split()
    assert set(python(place, "-c", say).stdout.split()) - set(alone) == {"holdfast_on_torch", "__future__"}
