"""A Python that has imported torch already and runs scripts in forked children: each run is seconds shorter.

Reads one JSON list a line, `[folder, output, script, arguments…]`, and answers with the script's exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path


def run(folder: str, output: str, script: str, *arguments: str) -> None:
    """Become the script; called in the forked child."""
    os.chdir(folder)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Serve until the other side closes."""
    import torch._dynamo  # what the first step of an optimizer would import
    import torch.utils.data  # noqa: F401

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
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
