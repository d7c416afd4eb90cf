"""Every command that Holdfast prints can be pasted: its verb is there, and takes those options and that many words."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from holdfast_run import PYTHON, run, typed

import holdfast
from holdfast.cli.app import app
from holdfast.cli.run import _parser
from holdfast.cli.train_cloud import parser as cloud_options
from holdfast.signals.run_folder import RunFolder
from holdfast.train.settings import DetectSettings

VERBS = typer.main.get_command(app)
SOURCE = Path(holdfast.__file__).parent
COMMAND = re.compile(r"(?<![\w./@-])holdfast ((?:checkpoints |launch )?[a-z]+)((?: (?:-t (?!…)\S+|--?[a-z][a-z-]*|‹›))*)")
END = re.compile(r"[`\n;)]|, | -- |\. |: | \$\(")  # of a command within a text
NAMES = (  # every verb that is about a run, with what else it needs
    *("ps", "tail --once", "journal", "diagnose", "tables", "backtrace", "replay"),
    *("pause", "continue", "repl", "save"),
    *("checkpoints list", "checkpoints verify", "checkpoints inspect", "checkpoints choose"),
)
WITH_WORDS = (("query", "select 1"), ("eval", "1"), ("set", "lr=1"), ("undo", "1"))


def texts() -> Iterator[tuple[str, str]]:
    """All texts in the source, what is filled in as ‹›."""
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if COMMAND.search(source) is None and "holdfast {" not in source:
            continue
        tree = ast.parse(source)
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "‹›" for part in node.values)
                yield path.name, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield path.name, node.value


@cache
def verb_of(name: str) -> Any:
    found: Any = VERBS
    for word in name.split():
        found = getattr(found, "commands", {}).get(word)
    return found


def printed() -> list[tuple[str, str, str]]:
    found = [
        (file, match[1], END.split(text[match.end(1) :], maxsplit=1)[0].rstrip(".,"))
        for file, text in texts()
        for match in COMMAND.finditer(text)
    ]
    return sorted({one for one in found if one[1].split()[0] not in ("is", "has", "and", "was", "can", "keeps", "in", "itself")})


def problem_of(verb: str, rest: str) -> str | None:
    command = verb_of(verb) or verb_of(verb.split()[0])
    if command is None:
        return "there is no such verb"
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
    known |= set(_parser()._option_string_actions) if verb == "run" else set()
    settings = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(DetectSettings)}
    known |= settings if verb in ("train", "resume") else set()
    known |= set(cloud_options()._option_string_actions) if verb == "train" else set()
    if wrong := [option for option in re.findall(r"(?<= )--?[a-z][a-z-]*", rest) if option not in known]:
        return f"it has no option {wrong[0]}"
    words = rest.startswith(" ‹›") and verb not in ("run", "checkpoints", "train")
    takes = any(one.param_type_name == "argument" for one in command.params)
    return "it takes no words" if words and not takes else None


def test_a_printed_command_is_one_that_holdfast_takes() -> None:
    found = printed()
    assert len(found) > 60 and ("restarts.py", "backtrace", " ‹›") in found
    assert [(*one, problem) for one in found if (problem := problem_of(*one[1:])) is not None] == []


@pytest.mark.parametrize("words", [*NAMES, *(" ".join(words) for words in WITH_WORDS)])
def test_a_run_is_named_by_its_place_and_with_t_in_every_verb(words: str, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "runs", "alpha", started=1.0, ended=2.0, exit_code=0)
    RunFolder.create(tmp_path / "runs", "beta", started=3.0, ended=4.0, exit_code=0)
    verb, own = next(((verb, [word]) for verb, word in WITH_WORDS if words.startswith(f"{verb} ")), (words, []))
    by_place = typed(*verb.split(), "alpha", *own, folder=tmp_path)
    with_t = typed(*verb.split(), *own, "-t", "alpha", folder=tmp_path)
    assert by_place == with_t and "no such option" not in by_place.stderr and "extra argument" not in by_place.stderr
    wrong = typed(*verb.split(), "nobody", *own, folder=tmp_path)
    assert wrong.returncode == 2 and "nobody" in wrong.stderr


HINTS = """
ps
ps --all
ps nobody
tail nobody
tail --once alpha
journal alpha
diagnose alpha
diagnose nobody
query alpha
query alpha selct
query alpha 'select * from nowhere'
backtrace alpha
eval alpha 1
set alpha lr=1
set alpha nonsense
pause alpha
save alpha
replay alpha
repl alpha
explain nan
explain loss-spike
explain nothing-like-it
attach
attach x
checkpoints choose alpha
checkpoints list alpha
checkpoints inspect
plan
repro
run
run --polcy heal -- true
run -- nowhere-to-be-found
drill
doctor --only dsk
validate nowhere
stats nowhere
visualize nowhere
dignose
demo --nonsense
"""  # typed by someone who errs, or asks what is next
PASTED = re.compile(r"(?:fix: |: |`|\s\s)(holdfast [a-z]+(?: [^`\n;,()\[$]+)?)")
SAID_OF_IT = re.compile(r" (?:shows|says|does|lists|tells|takes|gives)\b")
START_SOMETHING = ("run", "plan", "repro", "demo", "serve", "attach", "drill")


@pytest.fixture(scope="module")
def hints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The commands that are printed in a folder with two runs that are over, and in an empty one."""
    folder, empty = tmp_path_factory.mktemp("hints"), tmp_path_factory.mktemp("empty")
    for name, code in (("alpha", 0), ("beta", 1)):
        over = RunFolder.create(folder / "runs", name, started=1.0, ended=2.0, exit_code=code, command=["python", "t.py"])
        over.journal.write("finding", code="loss-spike", step=3, severity="warning", evidence={"loss": 9.0, "normal": 1.0})
    found: dict[str, None] = {}
    for words in HINTS.strip().splitlines():
        for place in (folder,) if "alpha" in words else (folder, empty):
            done = typed(*shlex.split(words), folder=place)
            assert "Traceback" not in done.stderr, (words, done.stderr)
            matches = PASTED.findall(done.stdout + done.stderr)
            found |= dict.fromkeys(SAID_OF_IT.split(one, maxsplit=1)[0].rstrip(" .:") for one in matches)
    return folder, list(found)


def test_a_hint_that_was_printed_for_real_is_understood_when_it_is_pasted(hints: tuple[Path, list[str]]) -> None:
    folder, commands = hints
    assert len(commands) > 15, commands
    for command in commands:
        verb, *words = shlex.split(command)[1:]
        assert verb_of(verb) is not None, command
        if verb in START_SOMETHING:  # read, and not run
            words = words[: words.index("--")] if "--" in words else words
            known = {option for one in verb_of(verb).params for option in one.opts} | set(_parser()._option_string_actions)
            assert {word for word in words if word.startswith("--")} <= known, command
        else:
            done = typed(verb, *words, folder=folder)
            assert not re.search("no such option|no such command|extra argument|takes one", done.stderr, re.I), (command, done)


def test_the_command_after_a_crash_works_wherever_the_run_is(tmp_path: Path) -> None:
    crashed = run(tmp_path, "--folder", "my runs", "--name", "a", "--", PYTHON, "-c", "import no_such_module")
    command = next(line.split("more: ")[1].split(";")[0] for line in crashed.stderr.splitlines() if "more: " in line)
    assert shlex.split(command) == ["holdfast", "diagnose", "my runs/a"]
    assert "no_such_module" in typed(*shlex.split(command)[1:], folder=tmp_path).stdout


def test_a_run_that_ended_before_its_first_step_is_not_said_to_wait_for_it(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "runs", "a", started=1.0, ended=2.0, exit_code=1)
    said = typed("eval", "a", "1", folder=tmp_path).stderr
    assert "a ended before its first step" in said and "holdfast diagnose a" in said
