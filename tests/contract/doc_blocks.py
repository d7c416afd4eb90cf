"""The code blocks of the documentation, and how they are run.

    ```console    lines that start with `$ ` are commands; the lines under a command are compared with what it prints
    ```bash, sh   one script
    ```python     one program
    ```text, sql, json, toml, yaml   never run

A line `…` stands for any lines, `…` at the end of a line for the rest of it. A command with no lines under it may print anything.
A comment on the line above a block says what is special about it:

    <!-- run: with a live training -->   from here to the end of the page a training runs, `runs/live`
    <!-- run: stop after 3 s -->         the command never ends: Ctrl-C stops it
    <!-- run: exits 1 -->                the command reports a problem
    <!-- run: numbers vary -->           numbers with their units, dates, bars and line breaks are not compared
    <!-- run: output varies -->          the output depends on the machine: not compared
    <!-- run: in a terminal -->          the command prints to a terminal, not into a pipe

Several can be combined: `<!-- run: with a live training, numbers vary -->`.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DamagedSegment
from holdfast.signals.segment import Segment

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("console", "bash", "sh", "python")
NOT_RUN = ("text", "sql", "json", "toml", "yaml", "html", "mermaid")
SKIPPED = {
    "git clone": "needs the network",
    "pip install": "needs the network",
    "make demo": "is `holdfast demo` after the set-up, which has its own test",
    "make test": "is this suite",
    "make lint": "is how `make test` begins",
    "make pytest": "is this suite",
    "make bench": "takes minutes and is about numbers",
    "make clean": "removes what the next command needs",
}
_IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
_BLOCK = re.compile(r"^(?:<!-- run: (?P<how>.*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_COPIED = ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "README.md", "docs", "examples")
_LINKED = ("src", "tests", "benchmarks")  # a thousand files that no command writes to


@dataclass(frozen=True, slots=True)
class Block:
    """One code block: where it stands, its language, what is special about it."""

    page: Path
    line: int
    language: str
    how: str
    body: str

    @property
    def commands(self) -> list[str]:
        """What a shell is given, one after the other."""
        if self.language == "console":
            joined = self.body.replace("\\\n> ", "\\\n")
            return re.findall(r"^\$ ((?:.*\\\n)*.*)$", joined, re.MULTILINE)
        return [self.body]

    @property
    def outputs(self) -> list[str]:
        """What the page shows under each command."""
        if self.language != "console" or "output varies" in self.how:
            return ["" for _ in self.commands]
        return re.split(r"^\$ (?:.*\\\n)*.*\n", self.body.replace("\\\n> ", "\\\n"), flags=re.MULTILINE)[1:]

    def shows(self, place: int, printed: str) -> bool:
        """Whether the page shows what the command at this place printed."""
        shown = self.outputs[place].rstrip()
        if not shown:
            return True
        plain = masked if "numbers vary" in self.how else stripped
        return re.fullmatch(_pattern(plain(shown)), plain(printed), re.DOTALL) is not None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["how"] or "", found["body"])
        for found in _BLOCK.finditer(text)
    ]


def stripped(text: str) -> str:
    """The lines without what nobody sees: spaces at their ends, empty lines at the end."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def masked(text: str) -> str:
    """The words in their order, with `#` for every number with its unit, and for every bar of a plot."""
    units = r"(?:[µm]?s|min|h|[KMGT]i?B|B|bytes)\b|%"
    text = re.sub(r"\b\d+ (?:h|min) (?=\d+ (?:min|s)\b)", "", text)  # a slow machine takes 1 min 15 s for what took 18 s
    text = re.sub(rf"\b[0-9a-f]{{7,}}\b|[+-]?\b\d[\d,.:/%-]*(?:e[+-]?\d+)?(?:\s?(?:{units}))?", "#", text)
    text = re.sub(r"[▁-▏·]+", "#", text)
    return " ".join(text.split())


def _pattern(shown: str) -> str:
    return re.sub(r"\\?…|\\\.\\\.\\\.", lambda _: ".*", re.escape(shown))


def is_skipped(command: str) -> bool:
    """Whether a command is one of the few that are not run here, for a stated reason."""
    return any(re.search(rf"(^|[ /]){re.escape(words)}\b", command) for words in SKIPPED)


class Workplace:
    """A copy of the project, in which a page's commands are typed one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._training: subprocess.Popen[bytes] | None = None
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            elif source.exists():
                shutil.copy2(source, folder / name)
        for name in _LINKED:
            (folder / name).symlink_to(ROOT / name)
        shutil.copy2(ROOT / "tests" / "victims" / "small_training.py", folder / "train.py")
        self._make_environment(Path(sys.prefix))
        (folder / "runtime").mkdir()

    def _make_environment(self, real: Path) -> None:
        """A `.venv` that is the real one, and counts as installed."""
        (self.folder / ".venv").mkdir()
        for name in ("bin", "lib", "include", "pyvenv.cfg"):
            (self.folder / ".venv" / name).symlink_to(real / name)
        for mark in (".installed-product", ".installed-tools"):
            (self.folder / ".venv" / mark).touch()

    @property
    def environment(self) -> dict[str, str]:
        """As in a fresh terminal with the project's environment activated."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "MAKE", "OMP_", "PYTEST"))}
        path = f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "PATH": path, "XDG_RUNTIME_DIR": str(self.folder / "runtime"), "COLUMNS": "100", "TERM": "dumb"}

    def type(self, block: Block) -> None:
        """Run a block as its language and its comment say, and fail as it fails."""
        if "live training" in block.how and self._training is None:
            self._start_training()
        seconds = re.search(r"stop after (\d+) s", block.how)
        expected = re.search(r"exits (\d+)", block.how)
        for place, command in enumerate(block.commands):
            if not is_skipped(command):
                printed = self._run(block, command, float(seconds[1]) if seconds else None, int(expected[1]) if expected else 0)
                shown = block.outputs[place].rstrip()
                assert block.shows(place, printed), f"{block}: `{command}` printed\n\n{printed}\n\nbut the page shows\n\n{shown}"

    def _run(self, block: Block, command: str, stop_after: float | None, expected: int) -> str:
        words = [sys.executable, "-c", command] if block.language == "python" else ["bash", "-ec", command]
        if "in a terminal" in block.how:
            words = [sys.executable, "-c", _IN_A_TERMINAL, *words]
        process = self._start(words, subprocess.PIPE)
        if stop_after:
            select.select([process.stdout], [], [], 600)  # it is stopped so long after its first words, however late those come
        try:
            printed, _ = process.communicate(timeout=stop_after or 600)
            codes = {expected}
        except subprocess.TimeoutExpired:
            assert stop_after, f"{block}: `{command}` did not come to an end"
            os.killpg(process.pid, signal.SIGINT)
            printed, _ = process.communicate(timeout=600)
            codes = {0, 130, -signal.SIGINT}
        assert process.returncode in codes, f"{block}: `{command}` exited {process.returncode}:\n{printed.decode()}"
        assert not stop_after or printed.strip(), f"{block}: `{command}` printed nothing"
        return printed.decode().replace("\r", "").replace(f"{self.folder}/", "")

    def _start(self, words: list[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def _start_training(self) -> None:
        command = "exec holdfast run --name live -- python train.py 600"
        self._training = self._start(["bash", "-ec", command], subprocess.DEVNULL)
        deadline = time.monotonic() + 600
        while self._steps() < 50:
            assert time.monotonic() < deadline and self._training.poll() is None, f"`{command}` does not train"
            time.sleep(0.2)

    def _steps(self) -> int:
        rows = 0
        for path in (self.folder / "runs" / "live" / "rank-0" / "steps").glob("*.seg"):
            try:
                rows += Segment(path).rows
            except (DamagedSegment, FileNotFoundError):
                continue
        return rows

    def leave(self) -> None:
        """End the training."""
        if self._training is not None:
            os.killpg(self._training.pid, signal.SIGTERM)
            self._training.wait(timeout=600)
