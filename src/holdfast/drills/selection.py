"""Which faults to inject into a training, and at which steps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.drills import faults
from holdfast.drills.plan import Planned
from holdfast.errors import UsageError

_EARLIEST, _LATEST = 0.3, 0.6  # of the run: it has settled, and there is time left to see what comes of it
_FIRST_OF_SEVERAL, _LAST_OF_SEVERAL = 0.15, 0.85


@dataclass(frozen=True, slots=True)
class At:
    """Steps that were asked for: for every fault, or for one."""

    steps: tuple[int, ...] = ()
    of_fault: Mapping[str, tuple[int, ...]] | None = None

    def of(self, code: str) -> tuple[int, ...]:
        """The steps for one fault; none: drawn."""
        return (self.of_fault or {}).get(code, self.steps)

    @property
    def latest(self) -> int:
        """The latest of all."""
        return max((*self.steps, *(step for steps in (self.of_fault or {}).values() for step in steps)), default=0)


def read_codes(text: str, own: Sequence[str] = ()) -> list[str]:
    """`all`, or codes and numbers of the list apart by commas; `own` are codes of the user's file. Unknown ones are named."""
    all_codes = [*faults.every(), *own]
    chosen: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if word == "all":
            chosen += all_codes
        elif word.isdigit():
            if not 1 <= int(word) <= len(all_codes):
                raise UsageError(f"there is no fault number {word}.", fix=f"name 1 to {len(all_codes)}: holdfast drill --list")
            chosen.append(all_codes[int(word) - 1])
        elif word in own:
            chosen.append(word)
        elif word:
            faults.find(word)
            chosen.append(word)
    if not chosen:
        raise UsageError("no fault was named.", fix="--faults nan-batch,lr-x100, or --faults all")
    return list(dict.fromkeys(chosen))


def read_at(texts: Iterable[str], codes: Sequence[str]) -> At:
    """`step=200` or `200` for all faults, `nan-batch=200` for one."""
    every: list[int] = []
    of_fault: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not number.isdigit() or (name not in ("", "step") and name not in codes):
            raise UsageError(f"{text!r} is not a step.", fix="--at step=200, or for one fault --at nan-batch=200")
        if name in ("", "step"):
            every.append(int(number))
        else:
            of_fault[name] = (*of_fault.get(name, ()), int(number))
    return At(tuple(every), of_fault)


def load_faults(path: Path | None) -> dict[str, str]:
    """The codes in a file of the user's own, each with that file."""
    if path is None:
        return {}
    try:
        own = faults.all_in_file(path)
    except UsageError:
        raise
    except Exception as error:  # whatever the file does
        raise UsageError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}", fix=f"make this work: python {path}"
        ) from error
    if not own:
        raise UsageError(
            f"{path} contains no fault.", fix="define a class that derives from holdfast.drills.Fault and has a `code`"
        )
    for fault in own:
        if fault.code in faults.every():
            raise UsageError(f"{path}: the fault {fault.code!r} already exists.", fix="give yours another code")
        for name in ("description", "expected"):
            if not hasattr(fault, name):
                raise UsageError(f"{path}: the fault {fault.code!r} has no `{name}`.", fix="docs/drills.md shows a complete one")
    return {fault.code: str(path.absolute()) for fault in own}


def missing_requirements(code: str, source: str, have: Iterable[str]) -> str:
    """What a training lacks for a fault, as text; empty if it has everything."""
    from holdfast.drills.injection.facts import FACTS

    there = set(have)
    missing = [need for need in faults.find(code, source).needs if need not in there]
    return ", ".join(_without(FACTS.get(need, need)) for need in missing)


def _without(fact: str) -> str:
    """`a DataLoader` → `no DataLoader`; `several ranks` → `not several ranks`."""
    if fact.startswith("several "):
        return f"not {fact}"
    return f"no {fact.removeprefix('a ').removeprefix('an ')}"


def plan_fault(code: str, source: str, seed: int, steps: int, at: At) -> list[Planned]:
    """One fault, at each of the steps that were asked for; else at one drawn from the seed."""
    if faults.find(code, source).from_start:
        return [Planned(code=code, step=0, source=source)]
    steps_wanted = at.of(code) or (draw_step(code, seed, steps),)
    return [Planned(code=code, step=step, source=source) for step in steps_wanted]


def with_strength(planned: Planned, step_seconds: float) -> Planned:
    """The fault, at least as strong as so many usual steps of the control take, where its strength is in seconds."""
    fault = faults.find(planned.code, planned.source)
    if planned.strength is not None or fault.strength_in_steps * step_seconds <= fault.strength:
        return planned
    return replace(planned, strength=fault.strength_in_steps * step_seconds)


def draw_step(code: str, seed: int, steps: int) -> int:
    """A step in the middle of the run: the same for the same seed."""
    share = random.Random(f"{seed} {code}").uniform(_EARLIEST, _LATEST)
    return max(1, min(int(share * steps), steps - 1))


def plan_sequence(codes: Sequence[str], sources: Mapping[str, str], steps: int, at: At) -> tuple[Planned, ...]:
    """All faults in one run: at the steps that were asked for in that order, else as far apart as there is room."""
    if at.steps and len(at.steps) != len(codes):
        raise UsageError(
            f"{len(at.steps)} steps for {len(codes)} faults in a sequence.", fix="name a step for each fault, or none at all"
        )
    apart = (_LAST_OF_SEVERAL - _FIRST_OF_SEVERAL) / max(1, len(codes) - 1)
    even = [int((_FIRST_OF_SEVERAL + apart * number) * steps) for number in range(len(codes))]
    chosen = [(at.of_fault or {}).get(code, (step,))[0] for code, step in zip(codes, at.steps or even, strict=True)]
    return tuple(Planned(code=code, step=step, source=sources.get(code, "")) for code, step in zip(codes, chosen, strict=True))


def why_not_in_sequence(code: str, source: str) -> str:
    """Why a fault cannot be one of several in a run, in words; nothing if it can."""
    fault = faults.find(code, source)
    if fault.from_start:
        return "it is active from the first step"
    return "" if fault.expected.survivable else "no run survives it"
