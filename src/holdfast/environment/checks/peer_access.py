"""Can the cards reach each other's memory directly? Without it every exchange goes through the host."""

from __future__ import annotations

from holdfast.environment.check import Check, Fix, Verdict, note, ok, skipped
from holdfast.environment.machine import Machine
from holdfast.environment.nvidia import Card

_WHY = {
    1: "the chip set does not support it", 2: "the GPUs do not support it", 3: "the driver does not support it",
    4: "disabled by a registry key", 5: "they do not support it",
}  # nvmlGpuP2PStatus_t  # fmt: skip


def ask(machine: Machine) -> Verdict:
    """The pairs that cannot, by the driver's word and by torch's."""
    cards = machine.nvidia.cards
    if len(cards) < 2:
        return skipped("fewer than two NVIDIA GPUs")
    without = pairs_without(cards)
    by_torch = [pair for pair, able in machine.torch.peers.items() if not able]
    facts = {"pairs without": [f"{a}-{b}: {why}" for a, b, why in without], "pairs without, by torch": by_torch}
    if not without and not by_torch:
        return ok(f"each of the {len(cards)} GPUs reaches the others directly")
    first = f" ({without[0][2]})" if without else ""
    count = max(len(without), len(by_torch) // 2)
    message = f"{count} of {len(cards) * (len(cards) - 1) // 2} pairs of GPUs cannot reach each other directly{first}"
    fix = Fix("exchanges go through the host: slower, not wrong. If ranks hang at the start", ("export NCCL_P2P_DISABLE=1",))
    return note(message, fix, **facts)


def pairs_without(cards: tuple[Card, ...]) -> list[tuple[int, int, str]]:
    """Pairs that NVML reports as unreachable, with its reason."""
    return [
        (card.index, other, _WHY.get(status, "for an unknown reason"))
        for card in cards
        for other, status in card.links.items()
        if other > card.index and status != 0
    ]


CHECK = Check(name="peer-access", asks="direct access between GPUs", ask=ask, seconds=120.0, heavy=True)
