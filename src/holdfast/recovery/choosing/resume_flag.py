"""The command of a run with the script's own flag for resuming. The script's source is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_NAMES = (  # the likeliest first
    *("resume_from_checkpoint", "resume_from", "resume_path", "resume", "resume_checkpoint", "ckpt_path", "checkpoint_path"),
    *("checkpoint", "ckpt", "load_checkpoint", "load_ckpt", "load_from", "load_path", "restore_from", "restore", "init_from"),
)
_DECLARES = ("add_argument", "add_arg", "option", "Option", "DEFINE_string")
_SWITCHES = ("store_true", "store_false", "store_const", "count", "BooleanOptionalAction")
_NO_PATH = ("bool", "int", "float", "str2bool")
_SUFFIXES = (".pt", ".pth", ".ckpt")
_LARGEST = 2 << 20  # bytes of a source file
_FILES = 40


class Flag(NamedTuple):
    """How the script is told what to resume from: `--resume PATH`, or with a `value` of its own, `--init_from=resume`."""

    name: str
    value: str = ""


def resume_command(command: Sequence[str], checkpoint: Path, folder: Path) -> list[str] | None:
    """The command that resumes from a checkpoint, or None where the script has no flag for it that is known.

    `folder` is where the command was started.
    """
    flag = _flag_of(command, checkpoint.name, folder)
    if flag is None:
        return None
    arguments = _without(command, flag.name)
    return [*arguments, f"{flag.name}={flag.value}"] if flag.value else [*arguments, flag.name, str(checkpoint)]


def resume_template(command: Sequence[str], folder: Path) -> str | None:
    """What `--resume-args` takes for this script, before it has saved anything: `--resume {checkpoint}`."""
    flag = _flag_of(command, "", folder)
    if flag is None:
        return None
    return f"{flag.name}={flag.value}" if flag.value else f"{flag.name} {{checkpoint}}"


def _flag_of(command: Sequence[str], checkpoint: str, folder: Path) -> Flag | None:
    """The flag, or None. `checkpoint` is a file's name; empty where it is not known."""
    trees = list(_sources(command, folder))
    declared = {_plain(flag): flag for tree in trees for flag in _declared(tree)}
    typed = {_plain(word): word.partition("=")[0] for word, value in _pairs(command) if value}
    for name in _NAMES:
        if name in declared or (name in typed and name != "init_from"):
            return Flag(declared.get(name) or typed[name])
    return next((flag for tree in trees for flag in _of_library(tree, checkpoint)), None)


def _pairs(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with its value; none for a switch."""
    for word, following in zip(command, (*command[1:], ""), strict=True):
        if word.startswith("--"):
            yield word, word.partition("=")[2] or ("" if following.startswith("-") else following)


def _without(command: Sequence[str], flag: str) -> list[str]:
    """The command without the flag and its old value."""
    arguments: list[str] = []
    skip = False
    for place, word in enumerate(command):
        if skip or word.partition("=")[0] == flag:
            has_value = not skip and "=" not in word and place + 1 < len(command) and not command[place + 1].startswith("-")
            skip = has_value
        else:
            arguments.append(word)
    return arguments


def _sources(command: Sequence[str], folder: Path) -> Iterator[ast.Module]:
    """The script, and the modules beside it that it imports."""
    script = _script(command, folder)
    waiting, seen = [script] if script is not None else [], set[Path]()
    for path in waiting:
        if path in seen or len(seen) >= _FILES or (tree := _parsed(path)) is None:
            continue
        seen.add(path)
        yield tree
        waiting += [file for name in _imported(tree) for base in (script.parent if script else folder, folder)
                    if (file := base / f"{name.replace('.', '/')}.py").is_file()]  # fmt: skip


def _script(command: Sequence[str], folder: Path) -> Path | None:
    for before, word in zip(("", *command), command, strict=False):
        named = folder / (f"{word.replace('.', '/')}.py" if before == "-m" else word)
        if (before == "-m" or word.endswith(".py")) and named.is_file():
            return named
    return None


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes()) if path.stat().st_size <= _LARGEST else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{name.name}" if node.module else name.name for name in node.names)


def _declared(tree: ast.Module) -> Iterator[str]:
    """The flags that take a path, by what their parser is told of them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _name(node.func) not in _DECLARES:
            continue
        settings = {word.arg: _name(word.value) for word in node.keywords}
        if settings.get("action") in _SWITCHES or settings.get("type") in _NO_PATH or {"is_flag", "choices"} & settings.keys():
            continue
        for word in node.args:
            if isinstance(word, ast.Constant) and isinstance(word.value, str) and _name(node.func) == "DEFINE_string":
                yield f"--{word.value}"
            elif isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("--"):
                yield word.value


def _of_library(tree: ast.Module, checkpoint: str) -> Iterator[Flag]:
    """Flags that no parser in the script declares: those of a library's own command line."""
    names = {_name(node) for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    if "HfArgumentParser" in names and "resume_from_checkpoint" in names:
        yield Flag("--resume_from_checkpoint")
    if "LightningCLI" in names:
        yield Flag("--ckpt_path")
    saved = checkpoint in texts if checkpoint else any(text.endswith(_SUFFIXES) for text in texts)
    if "init_from" in names and "resume" in texts and saved:  # settings that are module-level names, as in nanoGPT
        yield Flag("--init_from", "resume")


def _name(node: ast.AST) -> str:
    """A name, the last part of a dotted one, or a text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _plain(flag: str) -> str:
    return flag.partition("=")[0].lstrip("-").replace("-", "_")
