"""Are the cards that are there also visible to a program: CUDA_VISIBLE_DEVICES against what the driver shows."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem, skipped
from holdfast.environment.machine import Machine
from holdfast.environment.nvidia import Card

_NAME = "CUDA_VISIBLE_DEVICES"
_UNSET = Fix("let programs see all GPUs", (f"unset {_NAME}",))


def ask(machine: Machine, environment: Mapping[str, str] = os.environ) -> Verdict:
    """What a program would see."""
    cards = machine.nvidia.cards
    if not cards:
        return skipped("no NVIDIA GPU visible")
    value = environment.get(_NAME)
    if value is None:
        return _order(cards, environment)
    shown, why = visible(value, cards)
    facts = {"cards": len(cards), "visible": len(shown), _NAME: value}
    every = ",".join(str(card.index) for card in cards)
    choose = Fix("name cards that exist", (f"export {_NAME}={every}",))
    if not shown:
        return problem(f"{_NAME}={value!r} hides every GPU ({why}): training would silently use the CPU", _UNSET, choose, **facts)
    if why:
        return problem(f"{_NAME}={value!r}: {why}; only {len(shown)} of {len(cards)} GPUs are used", choose, **facts)
    if len(shown) < len(cards):
        return note(f"{_NAME}={value!r} shows {len(shown)} of {len(cards)} GPUs", **facts)
    return ok(f"all {len(cards)} visible", **facts)


def visible(value: str, cards: tuple[Card, ...]) -> tuple[list[Card], str]:
    """The cards that CUDA would show, and why not all that are named: it stops at the first name that it does not know."""
    shown: list[Card] = []
    if not value.strip():
        return shown, "it is empty"
    for name in (part.strip() for part in value.split(",")):
        if name.startswith("MIG-"):
            return list(cards), ""  # parts of cards: NVML's list says nothing about them
        card = _named(name, cards)
        if card is None:
            return shown, f"{name!r} is not a GPU, and CUDA ignores the rest of the list"
        if card in shown:
            return [], f"GPU {card.index} is listed twice"
        shown.append(card)
    return shown, ""


def _named(name: str, cards: tuple[Card, ...]) -> Card | None:
    if name.isdigit():
        return next((card for card in cards if card.index == int(name)), None)
    matching = [card for card in cards if name.startswith("GPU-") and card.uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


def _order(cards: tuple[Card, ...], environment: Mapping[str, str]) -> Verdict:
    facts = {"cards": len(cards), _NAME: "not set"}
    if len({card.name for card in cards}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        fix = Fix("use nvidia-smi's numbering", ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",))
        return note("different GPUs: torch numbers the fastest first, nvidia-smi by slot", fix, **facts)
    return ok(f"all {len(cards)} visible" if len(cards) > 1 else "the card is visible", **facts)


CHECK = Check(name="gpu-visible", asks="visible GPUs", ask=ask, seconds=30.0)
