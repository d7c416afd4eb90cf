"""Run a script as ranks that are forked: `forked_ranks.py SCRIPT WORDS…`. Torch is imported once, or is there already.

There are two, or as many as RANKS says. Who wants them as a user starts them takes torchrun.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback

import torch  # noqa: F401 - before the ranks are forked


def free_port() -> str:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def fork(rank: int, shared: dict[str, str], script: str, words: list[str]) -> int:
    """Start one rank."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = [script, *words]
        _kept = runpy.run_path(script, run_name="__main__")  # a process group of gloo that is freed may wait for the GIL for ever
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - told in the output and by the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Start all and wait for them."""
    import torch._dynamo  # noqa: F401 - as every rank would at its first step

    script, *words = sys.argv[1:]
    ranks = int(os.environ.get("RANKS", "2"))
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    children = [fork(rank, shared, script, words) for rank in range(ranks)]
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert not any(codes), codes


if __name__ == "__main__":
    main()
