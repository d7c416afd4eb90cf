"""A command line that is off gets the problem and the fix in two lines, like every other error."""

from __future__ import annotations

import subprocess
import sys

from every_case import every_case
from holdfast_run import typed

INTERRUPTED_AT_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["holdfast", "ps"]
from holdfast.cli.main import main
main()
"""


@every_case(
    ("words", "problem", "fix"),
    [
        (("valdate",), "no such command 'valdate'. Did you mean 'validate'?", "holdfast -h"),
        (("tail", "--nope"), "no such option: --nope", "holdfast tail -h"),
        (("--nope",), "no such option: --nope", "holdfast -h"),
        (("query",), "missing argument '[RUN]... SQL'.", "holdfast query -h"),
        (("tail", "--once=x"), "does not take a value.", "-h shows the usage"),
        (("run", "--polcy", "heal", "--", "x"), "no such option: --polcy.", "did you mean --policy?"),
        (("run", "--patience", "0", "--", "x"), "'0' must be a whole number of at least 1.", "holdfast run -h"),
        (("run", "--name"), "argument --name: expected one argument.", "holdfast run -h"),
        (("run", "--resume-args", "--resume", "no-such-program", "--polcy"), "there is no command no-such-program.", "spelling"),
        (("attach", "host:80"), "'host:80' is not a PID of this machine.", "run it there"),
    ],
)
def test_a_wrong_command_line_is_told_in_two_lines(words: tuple[str, ...], problem: str, fix: str) -> None:
    done = typed(*words)
    said = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == "" and len(said) == 2
    assert said[0].startswith("error: ") and problem in said[0]
    assert said[1].startswith("  fix: ") and fix in said[1]


def test_help_and_version_are_no_errors() -> None:
    assert typed("--version").stdout.startswith("holdfast ") and typed("--version").returncode == 0
    assert "--resume-args" in typed("run", "-h").stdout and typed("run", "--help").returncode == 0
    assert "backtrace" in typed("--help").stdout and typed("tail", "-h").returncode == 0
    assert "backtrace" in (typed().stdout + typed().stderr)


def test_ctrl_c_before_the_verb_runs_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_AT_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
