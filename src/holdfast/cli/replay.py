"""`holdfast replay`: run a bad step again, and name the operation that broke it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson, RunName, Target, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from holdfast.probe.meaning import Meaning
    from holdfast.supervisor.replaying import SavedStep

_NAMED_INDICES = 8
_RANKS = 8  # that are replayed in turn, until one shows it


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("replay")(replay)


def replay(
    run: RunName = None,
    step: Annotated[int | None, typer.Option(min=0, help="Which saved step. (default: the first)", show_default=False)] = None,
    target: Target = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the batch of this rank.", show_default=False)] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that the script may take until its first update.")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Repeat a bad step on its saved batch and weights, and name the operation that made NaN or Inf.

    Starts the run's command again and stops before its first update. Exit code 1: it failed again; 0: it did not.
    """
    from holdfast.probe.meaning import meaning_of
    from holdfast.probe.target import resolve
    from holdfast.supervisor.replaying import choose
    from holdfast.supervisor.replaying import replay as run_again

    folder = resolve(one_of(run, target))
    for saved in choose(folder, step, rank)[:_RANKS]:
        of_rank = f" (rank {saved.rank})" if saved.rank else ""
        print(f"replaying step {saved.step:,} of {folder.name}{of_rank}: running its command again …", file=sys.stderr)
        answer = run_again(folder, saved, timeout=timeout)
        if answer.get("found"):
            break
    meaning = meaning_of(answer)
    if as_json:
        print(json.dumps(as_row(folder.name, saved, answer, meaning), ensure_ascii=False))
    else:
        show(folder.name, saved, saved.facts(), answer, meaning)
    raise typer.Exit(1 if answer.get("found") else 0)


def as_row(name: str, saved: SavedStep, answer: dict[str, Any], meaning: Meaning | None) -> dict[str, Any]:
    """Everything that is known, as one JSON object."""
    facts = saved.facts()
    batch = {key: facts.get(key) for key in ("dataset", "indices", "dataset_indices", "bad_samples", "not_saved")}
    means = {"cause": meaning.cause, "meaning": meaning.text, "fixes": list(meaning.fixes)} if meaning is not None else {}
    samples = bad_samples(facts, answer)
    return {"run": name, "step": saved.step, "rank": saved.rank, **answer, **means, "samples": samples, "batch": batch}


def show(name: str, saved: SavedStep, facts: dict[str, Any], answer: dict[str, Any], meaning: Meaning | None) -> None:
    """Print the report."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.output import output

    console = output()
    of_rank = f", rank {saved.rank}" if saved.rank else ""
    console.print(Text.assemble((f"step {saved.step:,}", "bold"), f" of {name}{of_rank}, on {_which_batch(facts)}"))
    if str(answer.get("input")) not in ("finite", "unknown"):
        console.print(Text(f"the batch itself is not finite: {answer['input']}", style="bold red"))
        if facts.get("bad_samples"):
            console.print(Text(f"samples of the data set: {_some(facts['bad_samples'])}"))
    if meaning is None:
        console.print(Text("not reproduced: the loss and every gradient are finite.", style="green"))
        console.print(Text("The script was at its first step: anything that depends on the epoch or on other ranks may differ."))
    else:
        console.print(Text(_headline(answer), style="bold red"))
        table = Table.grid(padding=(0, 2, 0, 0))
        for label, value in _lines(facts, answer):
            table.add_row(Text(label, style="dim"), value)
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        console.print(Text(f"\n{meaning.text}"))
        console.print(Text("what to change:", style="bold"))
        for fix in meaning.fixes:
            console.print(Padding(Text(f"- {fix}"), (0, 0, 0, 2), expand=False))
    for note in (*answer.get("notes", ()), *(f"not in the saved file: {missing}" for missing in facts.get("not_saved") or ())):
        print(f"note: {note}", file=sys.stderr)


def _headline(answer: dict[str, Any]) -> str:
    output = answer.get("output") or {}
    if answer.get("kind") == "input":
        return f"the values of the batch reached {answer['reached']}"
    if answer.get("kind") == "weights":
        return f"the saved weights reached {answer['reached']}"
    made = [f"{output[key]:,} {word}" for key, word in (("nan", "NaN"), ("inf", "Inf"), ("minus_inf", "-Inf")) if output.get(key)]
    total = 1
    for length in output.get("shape", ()):
        total *= int(length)
    where = f" in the backward pass ({answer['node']})" if answer.get("stage") == "backward" else ""
    return f"{answer.get('operation') or 'something unseen'}{where} gave {', '.join(made) or 'NaN or Inf'} in {total:,} values"


def _lines(facts: dict[str, Any], answer: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    from rich.text import Text

    for label, key in (("line", "line"), ("inside", "library_line")):
        line = answer.get(key)
        if line:
            place = Text.assemble((f"{_near(line['file'])}:{line['line']}", "bold"), f" in {line['function']}")
            yield label, Text.assemble(place, f"\n{line['code']}") if line.get("code") else place
    if answer.get("operation"):
        yield "module", Text(_module(answer))
    for number, operand in enumerate(answer.get("operands") or ()):
        yield "operands" if number == 0 else "", Text(_operand_words(operand))
    at = answer.get("at") or {}
    if at.get("index") is not None and any(value is not None for value in at.get("operands", ())):
        values = ", ".join("…" if value is None else _value(value) for value in at["operands"])
        yield "first at", Text(f"{at['index']}: {values} gave {_value(at['output'])}")
    samples = bad_samples(facts, answer)
    if samples:
        yield "samples", Text(f"{_some(samples)} of {facts.get('dataset') or 'the batch'}")
    loss = f" (loss {_value(answer['loss'])})" if answer.get("loss") is not None else ""
    yield "reached", Text(f"{answer['reached']}{loss}")


def _module(answer: dict[str, Any]) -> str:
    name, kind = answer.get("module"), answer.get("module_type")
    if name:
        return f"{name} ({kind})"
    return f"{kind}, the outermost" if kind else "none: between the modules, or in the loss"


def bad_samples(facts: dict[str, Any], answer: dict[str, Any]) -> list[Any]:
    """The samples whose rows came out bad, where the operation's first dimension is that of the one saved batch."""
    lists = facts.get("dataset_indices") or []
    rows, shape = (answer.get("output") or {}).get("bad_rows") or [], (answer.get("output") or {}).get("shape") or []
    if answer.get("kind") != "operation" or len(lists) != 1 or not lists[0] or not shape or shape[0] != len(lists[0]):
        return []
    return [lists[0][row] for row in rows if row < len(lists[0])] if len(rows) < len(lists[0]) else []


def _which_batch(facts: dict[str, Any]) -> str:
    lists = [indices for indices in facts.get("dataset_indices") or () if indices]
    if not lists:
        return "its saved batch"
    together = [index for indices in lists for index in indices]
    many = f"{len(lists)} saved batches" if len(lists) > 1 else "its saved batch"
    return f"{many} (samples {_some(together)} of {facts.get('dataset') or 'the data set'})"


def _some(values: list[Any]) -> str:
    return ", ".join(map(str, values[:_NAMED_INDICES])) + (
        f", … ({len(values):,} in all)" if len(values) > _NAMED_INDICES else ""
    )


def _operand_words(operand: dict[str, Any]) -> str:
    if "shape" not in operand:
        return f"the number {_value(operand['value'])}"
    text = f"{operand['dtype']} {operand['shape']}"
    if "min" in operand:
        text += f": {_value(operand['min'])} to {_value(operand['max'])}"
    for key, word in (("zeros", "zero"), ("negative", "negative"), ("nan", "NaN"), ("inf", "Inf"), ("minus_inf", "-Inf")):
        if operand.get(key):
            text += f", {operand[key]:,} {word}"
    return text


def _value(value: Any) -> str:
    from holdfast.cli.show import number

    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _near(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
