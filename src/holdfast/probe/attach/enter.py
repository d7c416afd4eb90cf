"""Have a running Python execute a little of our code: through `sys.remote_exec` where it has that (3.14), else by loading a
library into it with ptrace (pyinjector).

A Python that is asked gets to it when its own code moves on. One that waits in a system call does not: there the library is
the way for every version. What it executes makes `holdfast` importable there, arms it, and writes down what came of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from holdfast.errors import CannotAttach
from holdfast.probe.attach.checks import refused

_SECONDS = 20.0  # that the process has to get to our code
_ASKED = 4.0  # of them, before a library is loaded into a Python that was asked and does not come to it
_PATIENCE = 4.0  # seconds in which a thread that cannot be stopped is tried again
_TRIED = 8  # threads that are stopped in turn
_GET_REGISTERS, _SET_REGISTERS = 0x4204, 0x4205  # of ptrace
_XSTATE, _FLOATS, _REGISTERS = 0x202, 2, 1 << 14  # their kind on x86_64 and elsewhere, and room for them
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
        reply, may_come_again = _executed(process, place, script, answer)
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
    return reply


def _executed(process: psutil.Process, place: Path, script: Path, answer: Path) -> tuple[dict[str, Any], bool]:
    """Have it execute the script, in the gentlest way that it takes; what it answered, and whether it may open it once more."""
    supported = _has_remote_exec(process)
    if supported:
        _through_python(process, script)
        with contextlib.suppress(*([_NotYet] if _has_library() else [])):
            return _wait(process, answer, _ASKED if _has_library() else _SECONDS), False
    _through_library(process, place)
    return _wait(process, answer), supported


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
        completed = subprocess.run(
            [process.exe(), "-I", "-c", _ASK_VERSION], capture_output=True, text=True, timeout=20, check=False
        )
        return completed.stdout.strip() == "True"
    return False


def _through_python(process: psutil.Process, script: Path) -> None:
    """Its own interpreter must be the one that asks: the two have to be of one version."""
    command = [process.exe(), "-I", "-c", _REMOTE, str(process.pid), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return
    last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
    if "PermissionError" in last or "not permitted" in last:
        raise refused(process.pid)
    raise CannotAttach(f"process {process.pid} refused the code:  {last}.", fix="PYTHON_DISABLE_REMOTE_DEBUG may be set in it")


def _through_library(process: psutil.Process, place: Path) -> None:
    library = place / "enter.so"
    built = importlib.util.find_spec("holdfast.probe.attach._enter")
    if built is None or built.origin is None:
        raise CannotAttach(
            "Holdfast's compiled part for attaching is missing.",
            fix="install a C compiler and reinstall Holdfast; processes with Python 3.14 or newer need neither",
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
            fix="the process continues unchanged; try again, or start it with: holdfast run -- …",
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
        f"process {process.pid} was never at a point where a library can be loaded safely.",
        fix="try again; the process continues unchanged",
    )


def _loaded(pid: int, thread: int, before: Place, library: str, *, patient: bool) -> bool:
    """Stop one thread, and load the library if it stands well. Who looks at its stack just now holds it for a moment."""
    import pyinjector

    try:
        with pyinjector.attach(thread) as injector:
            if not is_good(pid, thread, before):
                return False
            with _vector_registers_kept(thread):
                injector.inject(library.encode())
            return True
    except pyinjector.InjectorError as error:
        if patient and error.func_name == "injector_attach":
            return False
        raise


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@contextlib.contextmanager
def _vector_registers_kept(thread: int) -> Iterator[None]:
    """Keep the vector registers of a thread that is traced by this one: pyinjector restores only the general ones.

    What is called in the thread changes them, and C code outside a call holds pointers in them.
    """
    ptrace, memory = ctypes.CDLL(None, use_errno=True).ptrace, ctypes.create_string_buffer(_REGISTERS)
    ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    span, kind = _Span(ctypes.addressof(memory), _REGISTERS), _XSTATE if platform.machine() in ("x86_64", "AMD64") else _FLOATS
    kept = ptrace(_GET_REGISTERS, thread, kind, ctypes.byref(span)) == 0
    try:
        yield
    finally:
        if kept:
            ptrace(_SET_REGISTERS, thread, kind, ctypes.byref(span))


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
        f"process {process.pid} did not run Holdfast's code within {seconds:.0f} s: it hangs, or holds the interpreter lock.",
        fix=f"see where it is: py-spy dump --pid {process.pid}; the process continues unchanged{more}",
    )


_C_LIBRARY = re.compile(r"(^|/)(libc[.-]|ld[.-]|libpthread|libdl|libm?i?malloc|libjemalloc|libtcmalloc)|malloc|^\[")
_WAITS_X86 = {0, 7, 23, 35, 43, 45, 47, 61, 202, 230, 232, 247, 270, 271, 281, 288}  # read, poll, select, nanosleep, futex, …
_WAITS_ARM = {22, 63, 72, 73, 95, 98, 101, 115, 202, 207, 212, 242, 260}
_WAITS = {"x86_64": _WAITS_X86, "aarch64": _WAITS_ARM, "arm64": _WAITS_ARM}
_FUTEX = {202, 98}
_INSTRUCTION = 8  # bytes, at most, of the instruction that enters the kernel, which is done again


class Place(NamedTuple):
    """Where a thread is: the call of the system that it is in, if it is in one, and the address of its next instruction."""

    call: int | None
    address: int | None

    @property
    def waits(self) -> bool:
        """Whether it waits in the kernel for something from outside."""
        return self.call in _WAITS.get(platform.machine(), set())


def threads(pid: int) -> list[tuple[int, Place]]:
    """The threads of a process and where they are: those first that sleep; helpers that wait for work before those that run."""
    located = [(thread, where(pid, thread)) for thread in (int(task.name) for task in Path(f"/proc/{pid}/task").glob("*"))]
    return sorted(located, key=lambda thread: (not thread[1].waits, thread[1].call in _FUTEX, thread[0]))


def is_good(pid: int, thread: int, before: Place) -> bool:
    """Whether a thread that is stopped now was stopped where it does no harm. What cannot be seen is not.

    A call that was interrupted is not always told any more: then it is one if the thread stands where it waited before.
    """
    now = where(pid, thread)
    if now.address is None:
        return False
    if now.call is not None:
        return now.waits
    if before.waits and before.address is not None and abs(before.address - now.address) <= _INSTRUCTION:
        return True
    return _C_LIBRARY.search(_file_at(pid, now.address)) is None


def where(pid: int, thread: int) -> Place:
    """Where a thread is, as far as that can be seen."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
        if fields[0] != "running":
            number = int(fields[0])
            return Place(number if number >= 0 else None, int(fields[-1], 16))
    return Place(None, None)


def _file_at(pid: int, address: int) -> str:
    """The file that the code at an address comes from; made by a compiler at run time, it comes from none."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, _, rest = line.partition(" ")
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest.split(maxsplit=4)[-1].rpartition("/")[2] if "/" in rest or "[" in rest else ""
    return "["
