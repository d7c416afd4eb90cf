"""Verbs of the command line as functions: what they print with `--json`, for what no smaller function answers.

A verb runs in a process of its own: it can be ended, and what it loads goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError

_SECONDS = 120.0


async def answer_of(verb: Sequence[str], *arguments: str, seconds: float = _SECONDS) -> Any:
    """What `holdfast VERB --json -- WORDS` prints. An error of it is raised here, with its fix."""
    return await json_of(["-m", "holdfast", *verb, "--json", "--", *arguments], f"holdfast {' '.join(verb)}", seconds=seconds)


async def checkpoints_of(folder: Path, *, quick: bool = True) -> list[dict[str, Any]]:
    """What `holdfast checkpoints list` says of a run; a run without any has none."""
    try:
        return list(await answer_of(["checkpoints", "list", *(["--quick"] if quick else [])], str(folder), seconds=300.0))
    except HoldfastError as error:
        if "without a checkpoint" in error.problem:
            return []
        raise


async def json_of(arguments: Sequence[str], shown: str, *, seconds: float) -> Any:
    """What Python prints with these words, as JSON; `shown` is how a person calls it."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "400"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        printed, errors = await asyncio.wait_for(process.communicate(), seconds)
    except asyncio.TimeoutError:
        raise HoldfastError(f"`{shown}` was not ready in {seconds:.0f} s.", fix="run it in a terminal") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode in (0, 1):
        with contextlib.suppress(ValueError):
            return json.loads(printed)
    raise _error(errors.decode(errors="replace"), shown)


def _error(errors: str, shown: str) -> HoldfastError:
    """What a verb wrote on stderr: `error: …` and `fix: …`."""
    problem = next((line.removeprefix("error: ") for line in errors.splitlines() if line.startswith("error: ")), "")
    fix = next((line.strip().removeprefix("fix: ") for line in errors.splitlines() if line.strip().startswith("fix: ")), "")
    return HoldfastError(problem or f"`{shown}` failed: {errors.strip()[-200:]}", fix=fix or "run it in a terminal")
