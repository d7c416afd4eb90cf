"""A Python that has imported torch already and runs scripts in forked children: each run is seconds shorter.

Reads one JSON list a line, `[folder, environment, script, arguments…]`, and answers with the script's exit code; what the
script prints goes to `printed` in the folder. With HOLDFAST_RUN or HOLDFAST_ALSO in the environment Holdfast is armed before
the script starts, as it otherwise is when the script imports torch. Holdfast's own modules are imported already, too.
A JSON object, `{"import": […]}`, has more modules imported for all scripts that follow; it is answered with 0.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn


def run(folder: str, environment: dict[str, str], script: str, *arguments: str) -> None:
    """Become the script; called in the forked child."""
    os.chdir(folder)
    descriptor = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    if "HOLDFAST_ALSO" in environment:
        start_generators_anew()
    if "HOLDFAST_RUN" in environment or "HOLDFAST_ALSO" in environment:
        from holdfast.inside.arm import arm_from_environment

        arm_from_environment()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def start_generators_anew() -> None:
    """A process that seeds nothing draws other numbers than the process before it; forked ones would draw the same."""
    import numpy as np
    import torch

    torch.seed()
    np.random.seed(None)
    random.seed()


def become(asked: list[Any]) -> NoReturn:
    """Run a script in this forked child and end with it."""
    code = 1
    try:
        try:
            run(*asked)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever ends the script is reported in its output and by the exit code
            traceback.print_exc()
    except BaseException:  # noqa: BLE001 - torch's signal handler raised once more, for the same dead worker, while that was told
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve until the other side closes."""
    import torch._dynamo  # what the first step of an optimizer would import
    import torch.utils.data  # noqa: F401

    gc.collect()
    gc.freeze()  # what torch has made is neither searched nor collected again in the children

    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            for module in asked["import"]:
                importlib.import_module(module)
            print(0, flush=True)
            continue
        child = os.fork()
        if child == 0:
            become(asked)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
