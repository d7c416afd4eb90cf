"""The process in which a loader is measured: makes it once, then does what the lines on its standard input ask for.

Answers are lines of JSON on what was its standard output; whatever the user's code prints goes to the standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

_SOME = 4
_LOOK = 2.0  # seconds
_AT = 32  # bytes of the file that holds the index of the sample that is being loaded


def main() -> None:
    """Make the loader, and measure until there is nothing left to be asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False, chain=False)  # forked workers keep it: where do they stand?
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    asked = json.loads(sys.argv[1])
    sys.path.insert(0, str(Path.cwd()))
    source = _made(asked, answers)
    for line in sys.stdin:
        command = json.loads(line)
        _answer(answers, _done(source, command, asked["at"], answers))
        _answer(answers, {"over": True})


def _end_with(parent: int) -> None:
    """Who measures may be killed while a worker hangs here: then all of this ends as well."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.killpg(0, signal.SIGKILL)


def _made(asked: dict[str, Any], answers: IO[str]) -> Any:
    from holdfast.data.loading.opened import opened
    from holdfast.errors import HoldfastError

    try:
        source = opened(asked["target"], asked["options"])
        loader = source.described()
    except HoldfastError as error:
        _answer(answers, {"problem": error.problem, "fix": error.fix})
        raise SystemExit(0) from None
    _answer(answers, {"loader": _row(loader)})
    return source


def _done(source: Any, command: dict[str, Any], at: str, answers: IO[str]) -> dict[str, Any]:
    from holdfast.data.loading.blame import of_error
    from holdfast.data.loading.phases import SampleFailed
    from holdfast.data.loading.rate import LoaderFailed

    try:
        return _phases(source, command, at) if command["do"] == "phases" else _rate(source, command, answers)
    except SampleFailed as failed:
        return {"failed": of_error(failed.error), "sample": str(failed.index)}
    except LoaderFailed as failed:
        return _blamed(source, failed)
    except Exception as error:  # noqa: BLE001 - a collate_fn, a sampler or a transfer of the user's may raise anything
        return {"failed": of_error(error)}


def _phases(source: Any, command: dict[str, Any], at: str) -> dict[str, Any]:
    from holdfast.data.loading.phases import measured_phases

    file = os.open(at, os.O_WRONLY)

    def told(index: Any) -> None:
        os.pwrite(file, str(index)[:_AT].ljust(_AT).encode("ascii", "replace"), 0)

    try:
        return {"phases": _row(measured_phases(source, command["seconds"], told, device=_device()))}
    finally:
        os.close(file)


def _rate(source: Any, command: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    from holdfast.data.loading.rate import free_memory, measured_rate
    from holdfast.data.loading.setting import Setting

    def full() -> None:
        _answer(answers, {"full": True})
        sys.stdin.readline()  # until the memory was looked at

    try:
        return measured_rate(
            source, Setting(**command["setting"]), seconds=command["seconds"], at_most=command["at_most"], cut=command["cut"],
            device=_device(), full=full,
        )  # fmt: skip
    finally:
        free_memory()


def _blamed(source: Any, failed: Any) -> dict[str, Any]:
    """Which sample it was: those of the batch are tried once more, here. A worker that was killed is not followed."""
    from holdfast.data.loading.blame import of_error, sample_of

    said = of_error(failed.error)
    died = f"{failed.error} {failed.error.__cause__}"
    if "exited unexpectedly" in died or "killed by signal" in died:
        by = re.search(r"killed by signal: ([\w ]+)", died)
        return {"failed": f"a worker died{f' ({by[1].strip()})' if by else ''}", "died": True}
    found = sample_of(source.dataset, failed.indices) if not source.stream else None
    if found is not None:
        return {"failed": found[1], "sample": str(found[0])}
    some = ", ".join(str(index) for index in failed.indices[:_SOME]) + (", …" if len(failed.indices) > _SOME else "")
    return {"failed": said + (f", in a worker only, for one of the samples {some}" if some else "")}


def _device() -> str | None:
    from holdfast.data.loading.source import card

    return "cuda" if card() else None


def _row(value: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)


def _answer(answers: IO[str], row: dict[str, Any]) -> None:
    print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    main()
