"""`holdfast checkpoints inspect`: what is in a checkpoint, as a tree, without running any of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.checkpoints.paths import Paths, chosen, opened
from holdfast.cli.options import AsJson, Targets, all_of

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.contents import Contents, TensorInfo
    from holdfast.checkpoints.summary import Summary

_BIGGEST = 5
_SETTINGS = 20
_LABEL = 14
_NAME = 50


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("inspect")(inspect)


def inspect(
    paths: Paths = None,
    target: Targets = None,
    as_json: AsJson = False,
    depth: Annotated[int | None, typer.Option(min=1, help="Depth of the tree.", show_default=False)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The whole tree, without grouping equal layers, and all settings.")
    ] = False,
) -> None:
    """Show the contents of checkpoints: keys, shapes, dtypes, parameters, settings, versions.

    Reads only indexes and runs no code from a checkpoint. Exit code 1: a checkpoint is incomplete or unsafe.
    """
    from holdfast.checkpoints.summary import summarise
    from holdfast.cli.checkpoints.layout import page

    console, rows, states = page(), [], []
    for contents in opened(chosen(all_of(paths, target))):
        summary = summarise(contents)
        states.append(contents.state)
        if as_json:
            rows.append(as_row(contents, summary))
        else:
            if len(states) > 1:
                console.print()
            show(console, contents, summary, depth=depth, everything=everything)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
    if any(state != "clean" for state in states):
        raise typer.Exit(1)


def as_row(contents: Contents, summary: Summary) -> dict[str, Any]:
    """Everything that is known, for --json."""
    from holdfast.cli.checkpoints.layout import in_one_row
    from holdfast.cli.checkpoints.trees import bytes_of, plain_tree
    from holdfast.cli.show import for_json

    tensors = [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": bytes_of(tensor), "shared": shared}
        for tensor, shared in _with_shared(contents)
    ]
    row: dict[str, Any] = {
        **in_one_row(contents),
        "state": contents.state,
        **summary.as_row(),
        "bytes_by_dtype": by_dtype(contents),
        "biggest": [tensor.name for tensor in biggest(contents)],
        "settings": plain_tree(summary.settings),
        "needs_code": contents.needs_code,
        "refused": contents.refused,
        "notes": contents.notes,
        "troubles": [{"state": trouble.state, "words": trouble.text, "fix": trouble.fix} for trouble in contents.troubles],
        "tensors": tensors,
        "tree": plain_tree(contents.tree),
    }
    safe: dict[str, Any] = for_json(row)
    return safe


def _with_shared(contents: Contents) -> Iterator[tuple[TensorInfo, bool]]:
    """Each tensor, and whether its numbers are also those of another one."""
    uses = Counter((tensor.storage, tensor.offset) for tensor in contents.tensors if tensor.count)
    yield from ((tensor, uses[tensor.storage, tensor.offset] > 1) for tensor in contents.tensors)


def by_dtype(contents: Contents) -> dict[str, int]:
    """Bytes of tensors by kind of number; numbers that several tensors share count once."""
    from holdfast.cli.checkpoints.trees import bytes_of

    once = {(tensor.storage, tensor.offset, tensor.shape, tensor.dtype): tensor for tensor in contents.tensors}
    total = Counter[str]()
    for tensor in once.values():
        total[tensor.dtype] += bytes_of(tensor)
    return dict(total.most_common())


def biggest(contents: Contents) -> list[TensorInfo]:
    """The largest tensors, each once."""
    from holdfast.cli.checkpoints.trees import bytes_of

    once = {(tensor.storage, tensor.offset, tensor.shape): tensor for tensor in reversed(contents.tensors)}
    return sorted(once.values(), key=lambda tensor: (-bytes_of(tensor), tensor.name))[:_BIGGEST]


def show(console: Console, contents: Contents, summary: Summary, *, depth: int | None, everything: bool) -> None:
    """The tree, and under it what it amounts to."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import STYLES, name_of, trouble_lines
    from holdfast.cli.checkpoints.trees import tree_of
    from holdfast.cli.show import size

    facts = ", ".join(dict.fromkeys(part for part in (contents.format, contents.producer, size(contents.size)) if part))
    console.print(Text.assemble((name_of(contents.path), "bold"), (f"  {facts}", "dim")), soft_wrap=True)
    if contents.state != "clean":
        console.print(Text(contents.state, STYLES[contents.state]))
    for text, style in trouble_lines(contents.troubles, contents.path, console.width, "  "):
        console.print(Text(text, style), soft_wrap=True)
    if contents.tree is not None:
        console.print(tree_of(contents.tree, depth=depth, everything=everything, width=console.width))
    for label, lines in _facts(contents, summary, everything=everything):
        for number, line in enumerate(lines):
            _print(console, label if number == 0 else "", line, fold=label != "biggest")


def _print(console: Console, label: str, line: str, *, fold: bool) -> None:
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import folded

    first, *rest = folded(line, console.width - _LABEL, "") if fold else [line]
    console.print(Text.assemble((label.ljust(_LABEL), "bold"), first), soft_wrap=True)
    for continuation in rest:
        console.print(Text(" " * _LABEL + continuation), soft_wrap=True)


def _facts(contents: Contents, summary: Summary, *, everything: bool) -> Iterator[tuple[str, list[str]]]:
    """What is told under the tree: a label, and its lines."""
    from holdfast.cli.checkpoints.layout import age
    from holdfast.cli.checkpoints.list import holds
    from holdfast.cli.show import number, size

    if contents.tree is None:
        return
    place = [f"step {summary.step:,}"] if summary.step is not None else []
    place += [f"epoch {summary.epoch:,}"] if summary.epoch is not None else []
    place += [f"{name} {number(value)}" for name, value in list(summary.metrics.items())[: None if everything else 6]]
    if summary.saved_at is not None:
        place.append(f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(summary.saved_at))} ({age(summary.saved_at)})")
    yield "saved at", [", ".join(place)]
    yield "holds", [holds(summary)]
    if summary.parameters:
        yield "parameters", [f"{summary.parameters:,}"]
    kinds = by_dtype(contents)
    if kinds:
        yield "numbers", [", ".join(f"{kind} {size(count)}" for kind, count in kinds.items())]
        yield "biggest", list(_biggest_lines(contents))
    yield from _settings(summary, everything=everything)
    if contents.versions:
        yield "versions", [", ".join(f"{name} {version}" for name, version in contents.versions.items())]
    yield from _code(contents)
    if contents.notes:
        yield "notes", list(contents.notes)


def _biggest_lines(contents: Contents) -> Iterator[str]:
    from holdfast.cli.checkpoints.layout import shortened
    from holdfast.cli.checkpoints.trees import tensor_words

    names = [shortened(tensor.name, _NAME) for tensor in biggest(contents)]
    widest = max(map(len, names), default=0)
    yield from (f"{name.ljust(widest)}  {tensor_words(tensor)}" for name, tensor in zip(names, biggest(contents), strict=True))


def _settings(summary: Summary, *, everything: bool) -> Iterator[tuple[str, list[str]]]:
    from holdfast.cli.checkpoints.trees import value_words

    if not summary.settings:
        return
    settings = [(name, value) for name, value in summary.settings.items() if everything or value is not None]
    shown = settings[: None if everything else _SETTINGS]
    lines = [", ".join(f"{name}={value_words(value)}" for name, value in shown)]
    if len(summary.settings) > len(shown):
        lines.append(f"and {len(summary.settings) - len(shown)} more: --all shows them")
    yield "settings", lines


def _code(contents: Contents) -> Iterator[tuple[str, list[str]]]:
    if contents.needs_code:
        few = ", ".join(contents.needs_code[:6])
        more = f" and {len(contents.needs_code) - 6} more" if len(contents.needs_code) > 6 else ""
        yield "needs code", [f"{few}{more}: a full load would import these; nothing was run here"]
    if contents.refused:
        yield "refused", [", ".join(contents.refused)]
