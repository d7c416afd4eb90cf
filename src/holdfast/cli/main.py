"""The command line: `holdfast VERB`. Data goes to stdout, words to stderr; exit 0, 1 (something is wrong), 2 (could not)."""

from __future__ import annotations

import io
import os
import sys

from holdfast.cli.errors import INTERRUPTED, in_words


def main() -> None:
    """The entry point of the `holdfast` command. `run` goes without typer, which takes longer to import than all of `run`."""
    if sys.argv[1:2] == ["run"] and "_HOLDFAST_COMPLETE" not in os.environ:
        from holdfast.cli.run import run

        raise SystemExit(in_words(lambda: run(sys.argv[2:])))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is not UTF-8 is printed as \udcff, which is JSON, too
            stream.reconfigure(errors="backslashreplace")
    try:
        from holdfast.cli.app import app

        app()
    except KeyboardInterrupt:  # before a verb runs: importing all of them takes a moment
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
