"""Have a running Python execute a little code of ours: through `sys.remote_exec` where it has that (3.14), else by loading a
library into it with ptrace (pyinjector).

A Python that is asked gets to it when its own code moves on. One that waits in a system call does not: there the library is
the way for every version. What it executes makes `holdfast` importable there, arms it, and writes down what came of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from holdfast.errors import CannotAttach
from holdfast.probe.attach.checks import refused
from holdfast.probe.attach.moment import Place, is_good, threads

_SECONDS = 20.0  # that the process has to get to our code
_ASKED = 4.0  # of them, before a library is loaded into a Python that was asked and does not come to it
_PATIENCE = 4.0  # seconds in which a thread that cannot be stopped is tried again
_TRIED = 8  # threads that are stopped in turn
_ASK_VERSION = "import sys; print(hasattr(sys, 'remote_exec'))"
_REMOTE = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_NOTHING = "pass\n"  # for a process that was asked and may get to it when we are gone: a missing file would be an error there
_CODE = """\
def _holdfast():
    import json, os, sys
    try:
        os.close(os.open({answer!r} + ".taken", os.O_CREAT | os.O_EXCL))
    except OSError:
        return  # asked for in two ways, or given up since
    answer = {{"state": "failed", "error": "Python %d.%d is older than 3.10" % sys.version_info[:2]}}
    if sys.version_info >= (3, 10):
        try:
            from importlib.machinery import PathFinder
            import importlib, importlib.util
            if importlib.util.find_spec("holdfast") is None:
                spec = PathFinder.find_spec("holdfast", [{package!r}])
                module = importlib.util.module_from_spec(spec)
                sys.modules["holdfast"] = module
                spec.loader.exec_module(module)
            answer = importlib.import_module("holdfast.inside.attached").enter({folder!r}, {policy!r}, {budget!r})
        except BaseException as error:
            answer = {{"state": "failed", "error": "%s: %s" % (type(error).__name__, error)}}
    with open({answer!r} + ".part", "w") as file:
        file.write(json.dumps(answer))
    os.replace({answer!r} + ".part", {answer!r})

try:
    _holdfast()
finally:
    del _holdfast
"""


class _NotYet(CannotAttach):
    """Our code is in the process, and has not run."""


def enter(process: psutil.Process, folder: Path, *, policy: str, budget: float) -> dict[str, Any]:
    """Arm Holdfast in a process; its answer. Raises CannotAttach, in words; the process runs on."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-attach-"))
    answer, script = place / "answer.json", place / "enter.so.py"
    try:
        package = str(Path(__file__).resolve().parents[3])
        script.write_text(
            _CODE.format(package=package, folder=str(folder), policy=policy, budget=budget, answer=str(answer)), encoding="utf-8"
        )
        _give_to(process, place, script)
        found, may_come_again = _executed(process, place, script, answer)
    except _NotYet:
        script.write_text(_NOTHING, encoding="utf-8")
        raise
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    if may_come_again:
        script.write_text(_NOTHING, encoding="utf-8")
    else:
        shutil.rmtree(place, ignore_errors=True)
    return found


def _executed(process: psutil.Process, place: Path, script: Path, answer: Path) -> tuple[dict[str, Any], bool]:
    """Have it execute the script, in the gentlest way that it takes; what it answered, and whether it may open it once more."""
    asked = _has_remote_exec(process)
    if asked:
        _through_python(process, script)
        with contextlib.suppress(*([_NotYet] if _has_library() else [])):
            return _wait(process, answer, _ASKED if _has_library() else _SECONDS), False
    _through_library(process, place)
    return _wait(process, answer), asked


def _has_library() -> bool:
    """Whether a library could be loaded."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyinjector", "holdfast.probe.attach._enter"))


def _give_to(process: psutil.Process, *paths: Path) -> None:
    """Let the process read what root has written."""
    uid = process.uids().real
    for path in paths if uid != os.geteuid() else ():
        os.chown(path, uid, -1)


def _has_remote_exec(process: psutil.Process) -> bool:
    """Whether the interpreter of the process can be asked; its own executable says so."""
    with contextlib.suppress(OSError, psutil.Error, subprocess.SubprocessError):
        asked = subprocess.run([process.exe(), "-I", "-c", _ASK_VERSION], capture_output=True, text=True, timeout=20, check=False)
        return asked.stdout.strip() == "True"
    return False


def _through_python(process: psutil.Process, script: Path) -> None:
    """Its own interpreter must be the one that asks: the two have to be of one version."""
    words = [process.exe(), "-I", "-c", _REMOTE, str(process.pid), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return
    last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
    if "PermissionError" in last or "not permitted" in last:
        raise refused(process.pid)
    raise CannotAttach(
        f"process {process.pid} did not take it: {last}.", fix="it may have been started with PYTHON_DISABLE_REMOTE_DEBUG set"
    )


def _through_library(process: psutil.Process, place: Path) -> None:
    library = place / "enter.so"
    built = importlib.util.find_spec("holdfast.probe.attach._enter")
    if built is None or built.origin is None:
        raise CannotAttach(
            "the compiled part of Holdfast that gets into a process is not there.",
            fix="install a C compiler and Holdfast anew; a process with Python 3.14 or newer needs neither",
        )
    try:
        import pyinjector
    except ImportError:
        raise CannotAttach(
            f"to get into process {process.pid}, whose Python is older than 3.14, the package pyinjector is needed.",
            fix="pip install 'holdfast[attach]'",
        ) from None
    shutil.copyfile(built.origin, library)
    library.chmod(0o755)
    _give_to(process, library)
    try:
        _load(process, str(library))
    except pyinjector.PyInjectorError as error:
        if "permission" in str(error).lower() or "not permitted" in str(error).lower() or getattr(error, "ret_val", 0) == -8:
            raise refused(process.pid) from error
        raise CannotAttach(
            f"process {process.pid} could not be entered: {' '.join(str(error).split())}.",
            fix="it runs on as it was; try again, or start it with: holdfast run -- …",
        ) from error


def _load(process: psutil.Process, library: str) -> None:
    """Load the library at a moment that does no harm; threads are stopped again and again until one stands well."""
    begun = time.monotonic()
    while time.monotonic() - begun < _SECONDS:
        for thread, before in threads(process.pid)[:_TRIED]:
            if _loaded(process.pid, thread, before, library, patient=time.monotonic() - begun < _PATIENCE):
                return
        time.sleep(random.uniform(0.001, 0.01))
    raise CannotAttach(
        f"process {process.pid} was never at a point where a library can be loaded into it without harm.",
        fix="try again; it runs on as it was",
    )


def _loaded(pid: int, thread: int, before: Place, library: str, *, patient: bool) -> bool:
    """Stop one thread, and load the library if it stands well. Who looks at its stack just now holds it for a moment."""
    import pyinjector

    try:
        with pyinjector.attach(thread) as injector:
            if not is_good(pid, thread, before):
                return False
            injector.inject(library.encode())
            return True
    except pyinjector.InjectorError as error:
        if patient and error.func_name == "injector_attach":
            return False
        raise


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait(process: psutil.Process, answer: Path, seconds: float = _SECONDS) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while time.monotonic() < until and _lives(process):
        if answer.exists():
            content: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return content
        time.sleep(0.02)
    if not _lives(process):
        raise CannotAttach(f"process {process.pid} has ended.", fix="start it with: holdfast run -- …")
    more = "" if _has_library() else "; pip install 'holdfast[attach]' gets into one that waits in a system call, too"
    raise _NotYet(
        f"process {process.pid} has not got to our code in {seconds:.0f} s: it hangs, or holds the interpreter lock.",
        fix=f"see where it is: py-spy dump --pid {process.pid}; it runs on as it was{more}",
    )
