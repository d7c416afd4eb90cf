"""A Python that has imported torch already and runs scripts in forked children: each run is seconds shorter.

Reads one JSON list a line, `[folder, environment, script, arguments…]`, and answers with the script's exit code; what the
script prints goes to `printed` in the folder. With HOLDFAST_RUN in the environment the script is watched: Holdfast is
armed before it starts, as it otherwise is when the script imports torch.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path


def run(folder: str, environment: dict[str, str], script: str, *arguments: str) -> None:
    """Become the script; called in the forked child."""
    os.chdir(folder)
    descriptor = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    if "HOLDFAST_RUN" in environment:
        from holdfast.inside.arm import arm_from_environment

        arm_from_environment()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Serve until the other side closes."""
    import torch._dynamo  # what the first step of an optimizer would import
    import torch.utils.data  # noqa: F401

    gc.collect()
    gc.freeze()  # what torch has made is neither searched nor collected again in the children

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(*json.loads(line))
                code = 0
            except BaseException:  # noqa: BLE001 - whatever ends the script is told in its output and by the exit code
                traceback.print_exc()
            finally:
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
